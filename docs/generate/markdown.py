"""Markdown from Python objects: tables, docstrings, and the descriptions of fields."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Final

import msgspec

from mainstay.detectors.reference import field_descriptions, literal

GENERATED: Final = "<!-- `make docs` writes this page from the code. Edit the code instead. -->"
MANY: Final = 40
"""Keys of a mapping that a table shows; the page counts the keys of a larger one."""


def page(title: str, about: str, *parts: str) -> str:
    """Return a page with a title, an introduction, and its parts."""
    return "\n\n".join([GENERATED, f"# {title}", about, *(part for part in parts if part)]) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table, or an empty string without rows."""
    body = [f"| {' | '.join(cell(value) for value in row)} |" for row in rows]
    rule = f"| {' | '.join('---' for _ in head)} |"
    return "\n".join([f"| {' | '.join(head)} |", rule, *body]) if body else ""


def cell(value: object) -> str:
    """Return a value as one line in which no character ends the cell."""
    return " ".join(str(value).split()).replace("|", "\\|")


def code(value: object) -> str:
    """Return a value in backticks, or an empty string for an empty value."""
    text = str(value)
    return f"`{text}`" if text else ""


def prose(text: str | None) -> str:
    """Convert a docstring to Markdown.

    Double backticks become single ones, an indented literal block becomes a code block, and HTML is escaped.
    """
    lines = re.sub(r"``([^`]+)``", r"`\1`", inspect.cleandoc(text or "")).split("\n")
    kept: list[str] = []
    literal = False
    for line in lines:
        if literal and line and not line.startswith(" "):
            kept += ["```", ""]
            literal = False
        if not literal and line.endswith("::"):
            kept += [line[:-1], "", "```text"]
            literal = True
            continue
        kept.append(line if literal else _escape(line))
    return "\n".join([*kept, "```"] if literal else kept).strip()


def _escape(line: str) -> str:
    """Escape what Markdown or HTML would interpret outside code spans."""
    parts = re.split(r"(`[^`]*`)", line)
    return "".join(part if part.startswith("`") else part.replace("<", "&lt;").replace("*", "\\*") for part in parts)


def sentence(text: str | None) -> str:
    """Return the first paragraph of a text on one line."""
    return " ".join(prose(text).split("\n\n")[0].split())


def field_table(model: type, head: str = "field", limits: dict[str, str] | None = None) -> str:
    """Return the fields of a dataclass or struct with default and description."""
    described = field_descriptions(model)
    rows = [
        (
            code(f.name),
            default_text(f),
            *([(limits or {}).get(f.name, "")] if limits else []),
            sentence(described.get(f.name)),
        )
        for f in (msgspec.structs.fields(model) if issubclass(model, msgspec.Struct) else fields(model))
    ]
    return table((head, "default", *(["limits"] if limits else []), "description"), rows)


def default_text(field: Field[Any] | msgspec.structs.FieldInfo) -> str:
    """Return the default of a field, or *required*."""
    none = (MISSING, msgspec.NODEFAULT)
    if field.default not in none:
        return plain(field.default)
    if field.default_factory not in none:
        return plain(field.default_factory())
    return "*required*"


def plain(value: Any) -> str:
    """Return a value as a short code span."""
    if is_dataclass(value) and not isinstance(value, type):
        return f"see `{type(value).__name__}`"
    if isinstance(value, Mapping) and value and not all(isinstance(each, str | int | float) for each in value.values()):
        keys = [str(key) for key in value]
        shown = ", ".join(code(key) for key in keys[:MANY])
        return shown if len(keys) <= MANY else f"{len(keys)} entries"
    if value is None or (isinstance(value, tuple | list | dict | frozenset | set) and not value):
        return "*none*"
    return code(literal(value))
