"""Results that are stored beside the tests: a change of the code that changes one of them is seen in review."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest


def assert_stored(file: Path, found: Sequence[Any]) -> None:
    """Compare what was found with ``file``, one line each. To change it on purpose: delete it, run, and review it."""
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        file.write_text("[\n" + ",\n".join(json.dumps(each) for each in found) + "\n]\n", encoding="utf-8")
        pytest.fail(f"{file} was not there: the results of now are in it for review")
    stored = json.loads(file.read_text(encoding="utf-8"))
    assert len(found) == len(stored)
    for now, then in zip(found, stored, strict=True):
        assert alike(now, then), f"{str(now)[:2000]}\ninstead of\n{str(then)[:2000]}"


def alike(one: Any, other: Any) -> bool:
    """Return whether both are equal, where numbers may differ by the last digits that another numpy gives."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return isinstance(other, list) and len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9) or (one != one and other != other)  # noqa: PLR0124
    return bool(one == other)
