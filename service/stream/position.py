"""A place in the order of changes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, order=True, slots=True)
class Position:
    """Where a reader of changes is. Opaque: compare it, write it with ``str``, read it with ``parse``."""

    transaction: int = 0
    """PostgreSQL's number of the transaction; 0 on SQLite."""
    id: int = 0

    def __str__(self) -> str:
        return f"{self.transaction}-{self.id}" if self.transaction else f"{self.id}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what ``str`` wrote, or the plain id of a release before the pair.

        Raises:
            ValueError: it is neither.
        """
        found = re.fullmatch(r"(?:([0-9]{1,18})-)?([0-9]{1,18})", text)
        if found is None:
            raise ValueError(f"{text!r} is no position of a change")
        return cls(int(found[1] or 0), int(found[2]))


START = Position()
"""Before the oldest change that is kept."""
