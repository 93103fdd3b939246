"""Routes: which incidents go to which receivers, and when. Pure: no database, no clock.

Routes are tried in order. The first one that matches takes the incident; with ``continue = true`` the next ones are
tried as well. All conditions of a route must hold; a condition that is a list holds if one of its patterns matches
(``*`` and ``?`` as in a shell).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict, Field, model_validator

from mainstay.detectors.finding import Cause, FindingKind
from mainstay.probes.core_types import Severity
from mainstay.service.common.schemas import Name, Text
from mainstay.service.common.selectors import Hours, Patterns, TimeZone, WeeklyHours, any_matches
from mainstay.service.notifications.receivers import AnyReceiver
from mainstay.service.notifications.receivers.email import Email
from mainstay.service.notifications.report_schedule import ReportSchedule

GroupBy = Literal["incident", "severity", "kind", "cause", "node", "rack", "cohort", "job"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedIncident:
    """What routes may look at. Empty collections: the incident names none."""

    id: str
    severity: Severity
    needs_operator: bool
    kinds: frozenset[str] = frozenset()
    cause: str | None = None
    nodes: frozenset[str] = frozenset()
    racks: frozenset[str] = frozenset()
    cohorts: frozenset[str] = frozenset()
    jobs: frozenset[str] = frozenset()


Minutes = Annotated[float, Field(ge=0, le=7 * 24 * 60)]


class Route(BaseModel):
    """One route."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, populate_by_name=True)

    name: Annotated[Text, Field(min_length=1, max_length=128)]
    receivers: tuple[Name, ...]
    """Empty: incidents of this route are not sent."""
    min_severity: Severity = Severity.WARNING
    needs_operator: bool | None = None
    kinds: frozenset[FindingKind] = frozenset()
    causes: frozenset[Cause] = frozenset()
    nodes: Patterns = ()
    racks: Patterns = ()
    cohorts: Patterns = ()
    jobs: Patterns = ()
    hours: WeeklyHours | None = None
    """The route matches only in these hours, such as ``Mon-Fri 09:00-18:00``."""
    timezone: TimeZone = "UTC"
    proceed: bool = Field(default=False, alias="continue")
    group_by: Annotated[tuple[GroupBy, ...], Field(max_length=4)] = ("incident",)
    """Incidents with the same values are one group. Its later incidents are one message."""
    wait_seconds: Annotated[float, Field(ge=0, le=3600)] = 0.0
    """Time that the first message of a group waits for further incidents."""
    group_seconds: Annotated[float, Field(ge=1, le=86_400)] = 60.0
    """Least time between two messages about changes of a group."""
    repeat_minutes: Minutes = 240.0
    """Interval of messages about a group that is open and not acknowledged. 0: none."""
    escalate_minutes: Minutes = 0.0
    """Time without acknowledgement after which ``escalate_to`` gets the message. 0: never."""
    escalate_to: tuple[Name, ...] = ()

    @model_validator(mode="after")
    def _check_escalation(self) -> Route:
        if bool(self.escalate_to) != bool(self.escalate_minutes):
            raise ValueError("escalate_minutes and escalate_to go together")
        return self

    def matches(self, incident: RoutedIncident, now: float) -> bool:
        """Whether it takes the incident at this time (Unix seconds)."""
        patterns = (
            (self.nodes, incident.nodes), (self.racks, incident.racks),
            (self.cohorts, incident.cohorts), (self.jobs, incident.jobs),
        )  # fmt: skip
        return (
            incident.severity.level >= self.min_severity.level
            and self.needs_operator in {None, incident.needs_operator}
            and (not self.kinds or not self.kinds.isdisjoint(incident.kinds))
            and (not self.causes or incident.cause in self.causes)
            and all(not wanted or any_matches(wanted, named) for wanted, named in patterns)
            and (self.hours is None or Hours.parse(self.hours).contains(datetime.fromtimestamp(now, self._zone)))
        )

    @property
    def _zone(self) -> ZoneInfo:
        return ZoneInfo(self.timezone)

    def group_key(self, incident: RoutedIncident) -> str:
        """The same text for incidents of one group."""
        values: Mapping[GroupBy, Iterable[str]] = {
            "incident": (incident.id,), "severity": (incident.severity,), "kind": incident.kinds,
            "cause": (incident.cause or "",), "node": incident.nodes, "rack": incident.racks,
            "cohort": incident.cohorts, "job": incident.jobs,
        }  # fmt: skip
        return "; ".join(f"{name}={','.join(sorted(values[name])[:20])}" for name in self.group_by)[:500]


class NotificationConfig(BaseModel):
    """Receivers by name, and routes in order."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    receivers: dict[Name, AnyReceiver] = Field(default_factory=dict)
    routes: Annotated[tuple[Route, ...], Field(max_length=200)] = ()
    report: ReportSchedule | None = None
    """Without it, no report is sent."""

    @model_validator(mode="after")
    def _check_names(self) -> NotificationConfig:
        names = [route.name for route in self.routes]
        if len(set(names)) < len(names):
            raise ValueError(f"two routes have the name {next(n for n in names if names.count(n) > 1)!r}")
        for route in self.routes:
            for name in (*route.receivers, *route.escalate_to):
                if name not in self.receivers:
                    raise ValueError(f"route {route.name!r} names the receiver {name!r}, which is not there")
        mail = {name for name, receiver in self.receivers.items() if isinstance(receiver, Email)}
        for name in self.report.receivers if self.report else ():
            if name not in mail:
                fault = "is not an e-mail receiver" if name in self.receivers else "is not there"
                raise ValueError(f"report names the receiver {name!r}, which {fault}")
        return self

    def routes_of(self, incident: RoutedIncident, now: float) -> list[Route]:
        """The routes that take the incident."""
        found = []
        for route in self.routes:
            if route.matches(incident, now):
                found.append(route)
                if not route.proceed:
                    break
        return found

    def route(self, name: str) -> Route | None:
        return next((route for route in self.routes if route.name == name), None)
