"""The first screen on the wire."""

from __future__ import annotations

from service.incidents.schemas import IncidentRead
from service.jobs.schemas import JobRead
from service.kit.schemas import Output


class Decision(Output):
    """One thing that the machine decided by itself."""

    time: float
    text: str
    incident: str
    plan: str | None
    job: str | None


class OverviewRead(Output):
    burning: list[IncidentRead]
    decided: list[Decision]
    needs_human: list[IncidentRead]
    nodes: dict[str, int]
    devices: int
    jobs: list[JobRead]
    data_age_seconds: float | None
    now: float
