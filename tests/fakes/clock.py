"""A clock that moves only when a test advances it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class ManualClock:
    """A clock that a test moves by hand."""

    time: float

    def now(self) -> float:
        return self.time

    def advance(self, seconds: float) -> None:
        self.time += seconds
