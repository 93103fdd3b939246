"""What the code says about each detector and its limits. The documentation and the dashboard show the same text."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any


def about_detector(kind: type) -> str:
    """Return the documentation of the module of a detector."""
    return sys.modules[kind.__module__].__doc__ or ""


def detector_limits(config: Any, prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """Yield name, value, and description of each field of a configuration, nested ones with a dotted name."""
    if not is_dataclass(config) or isinstance(config, type):
        return
    described = field_descriptions(type(config))
    for each in fields(config):
        value = getattr(config, each.name)
        if is_dataclass(value) and not isinstance(value, type):
            yield from detector_limits(value, f"{prefix}{each.name}.")
        else:
            yield prefix + each.name, value, described.get(each.name, "")


def literal(value: Any) -> str:
    """Return a value as a short text."""
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, frozenset | set):
        return ", ".join(sorted(literal(each) for each in value))
    if isinstance(value, tuple | list):
        return ", ".join(f"({literal(each)})" if isinstance(each, tuple) else literal(each) for each in value)
    if isinstance(value, float):
        return f"{value:.6g}"
    return value.as_posix() if isinstance(value, Path) else str(value)


@cache
def field_descriptions(model: type) -> dict[str, str]:
    """Return the description of each field or member of a class: the string below it, or the comment behind it."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if base.__module__.startswith("mainstay."):
            found |= _described(base)
    return found


def _described(model: type) -> dict[str, str]:
    source = textwrap.dedent(inspect.getsource(model))
    lines = source.split("\n")
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for node, following in zip(body.body, [*body.body[1:], None], strict=True):
        name = _assigned(node)
        if name is None:
            continue
        comment = re.search(r"\s#\s+(?!noqa|type:)(.+)$", lines[(node.end_lineno or node.lineno) - 1])
        found[name] = comment[1] if comment else ""
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            found[name] = inspect.cleandoc(str(following.value.value))
    return found


def _assigned(node: ast.stmt) -> str | None:
    target = (
        node.target if isinstance(node, ast.AnnAssign) else node.targets[0] if isinstance(node, ast.Assign) else None
    )
    return target.id if isinstance(target, ast.Name) else None
