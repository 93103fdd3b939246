"""What protection costs in lines: the two example scripts, compared as ``diff -w`` compares them."""

from __future__ import annotations

import difflib
from pathlib import Path

import mainstay.recovery

EXAMPLES = Path(mainstay.recovery.__path__[0]) / "examples"


def code(name: str) -> list[str]:
    """Lines without indentation, blank ones and the module's own docstring."""
    lines = [line.strip() for line in (EXAMPLES / name).read_text().splitlines()]
    return [line for line in lines if line and not line.startswith('"""')]


def test_protection_adds_at_most_five_lines() -> None:
    changes = [line for line in difflib.ndiff(code("train_plain.py"), code("train.py")) if line[0] in "+-"]
    added = [line[2:] for line in changes if line.startswith("+")]
    assert len(added) <= 5, added
    assert [line for line in added if "mainstay" in line or "run." in line] == added
