"""The first screen on the wire."""

from __future__ import annotations

from mainstay.service.common.schemas import Output
from mainstay.service.incidents.schemas import IncidentRead
from mainstay.service.jobs.schemas import JobRead


class AutomatedAction(Output):
    """One automated action of Mainstay."""

    time: float
    text: str
    incident: str
    plan: str | None
    job: str | None


class OverviewRead(Output):
    active_incidents: list[IncidentRead]
    automated_actions: list[AutomatedAction]
    needs_operator: list[IncidentRead]
    nodes: dict[str, int]
    devices: int
    jobs: list[JobRead]
    data_age_seconds: float | None
    now: float
