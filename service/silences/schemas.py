"""What silences look like on the wire."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from mainstay.service.common.schemas import Input, Output, Text
from mainstay.service.common.selectors import Patterns, TimeZone, WeeklyHours

MAX_DAYS = 366
_CONDITIONS = ("detectors", "kinds", "nodes", "racks", "switches", "cohorts", "jobs")


class SilenceCreate(Input):
    """A silence. All conditions that are given must hold; patterns are those of a shell."""

    reason: Annotated[Text, Field(min_length=1, max_length=2000, pattern=r"\S")]
    starts_at: Annotated[float, Field(strict=True)] | None = None
    """Unix seconds; null: now."""
    ends_at: Annotated[float, Field(strict=True)]
    """Unix seconds."""
    hours: WeeklyHours | None = None
    """Within start and end, it is active only in these hours, such as ``Sat 02:00-06:00``."""
    timezone: Annotated[TimeZone, Field(max_length=64)] = "UTC"
    detectors: Patterns = ()
    kinds: Patterns = ()
    nodes: Patterns = ()
    racks: Patterns = ()
    switches: Patterns = ()
    cohorts: Patterns = ()
    jobs: Patterns = ()

    @model_validator(mode="after")
    def _check_conditions(self) -> Self:
        if not any(getattr(self, name) for name in _CONDITIONS):
            raise ValueError(f"give at least one of {', '.join(_CONDITIONS)}; nodes ['*'] is the whole fleet")
        return self


class SilenceEnd(Input):
    """The end of a silence before its time."""


class SilenceRead(Output):
    id: str
    reason: str
    actor: str
    created_at: float
    starts_at: float
    ends_at: float
    ended_by: str | None
    hours: str | None
    timezone: str
    detectors: list[str]
    kinds: list[str]
    nodes: list[str]
    racks: list[str]
    switches: list[str]
    cohorts: list[str]
    jobs: list[str]
    state: str
    """``active``, ``pending`` (before its start, or outside its hours), or ``over``."""
    nodes_matched: int
    """Enrolled nodes that it covers."""
