"""A node's past, as what a survival model can learn from and ask about.

The clock of a spell is hours since the node came back from its last incident (since it was first watched, before any):
so "how long has it held" needs no covariate, and an interval that began before we watched enters late. A spell is cut
where its covariates change: at doubling times, and at errors.

Everything a covariate says is from before the moment it speaks of. Times are Unix seconds, spells are hours.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from mainstay.detectors.selector.hazard import Floats, NotEnoughError

HOUR = 3600.0
_DAY_HOURS = 24.0
_FIRST_CUT = 24.0
"""Hours after which covariates are read again; then at every doubling."""
_CUTS = 8
_ERROR_APART = 6.0
"""Hours between two cuts for errors: an error storm is one piece of news."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Something that took the node, or a job on it, down."""

    at: float
    """Unix seconds."""
    back_at: float | None
    """When the node was in service again; None: it is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHistory:
    """What is known of one node between ``since`` and ``until``."""

    node: str
    since: float
    """Watched from then on, Unix seconds."""
    until: float
    in_service_since: float | None = None
    """When it began to serve, if that was before ``since``: its first spell enters late."""
    cohort: str = ""
    """Hardware that may be compared; empty when it is unknown."""
    incidents: tuple[Incident, ...] = ()
    """In order of time, none before the last one is over."""
    remediations: tuple[float, ...] = ()
    """When it was repaired, ascending."""
    checks: tuple[float, ...] = ()
    """When it was validated and nothing was found, ascending."""
    errors: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Kind (``xid``, ``ecc`` …) → when, ascending."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.since) and self.until >= self.since):
            raise ValueError(f"node {self.node}: watched until {self.until:g}, before it was watched ({self.since:g})")
        for what, times in (("remediations", self.remediations), ("checks", self.checks), *self.errors.items()):
            if any(later < earlier for earlier, later in pairwise(times)):
                raise ValueError(f"node {self.node}: {what} are not in order of time")
        free_at = -math.inf
        for incident in self.incidents:
            if incident.at < free_at or (incident.back_at is not None and incident.back_at < incident.at):
                raise ValueError(f"node {self.node}: the incident at {incident.at:g} begins before another is over")
            free_at = incident.at if incident.back_at is None else incident.back_at

    def origin(self, at: float) -> float | None:
        """When the spell that holds at ``at`` began; None while the node is down."""
        before = [i for i in self.incidents if i.at < at]
        if not before:
            return self.since if self.in_service_since is None else min(self.since, self.in_service_since)
        back = before[-1].back_at
        return None if back is None or back > at else back

    def survived(self, at: float) -> float:
        """Hours in service without an incident; 0 while the node is down, as when it has just come back."""
        origin = self.origin(at)
        return 0.0 if origin is None else max(0.0, (at - origin) / HOUR)


def as_known(history: NodeHistory, at: float) -> NodeHistory:
    """What was known at ``at``: nothing later, and an incident that was active then has no end."""
    known = tuple(
        replace(i, back_at=None) if i.back_at is not None and i.back_at > at else i
        for i in history.incidents
        if i.at <= at
    )
    return replace(
        history,
        until=max(history.since, min(history.until, at)),
        incidents=known,
        remediations=tuple(t for t in history.remediations if t <= at),
        checks=tuple(t for t in history.checks if t <= at),
        errors={kind: tuple(t for t in times if t <= at) for kind, times in history.errors.items()},
    )


@dataclass(frozen=True, slots=True)
class FailureRuns:
    """Times at risk with their covariates: one row a piece of a spell."""

    x: Floats
    """[row, covariate]."""
    entry: Floats
    stop: Floats
    observed: Floats
    """1.0 where it ended with an incident."""
    nodes: tuple[str, ...]
    """[row] whose."""


@dataclass(frozen=True, slots=True)
class CovariateEncoder:
    """Turns a node's past into covariates; knows which cohorts and errors there are, and the fleet's rate."""

    cohorts: tuple[str, ...]
    kinds: tuple[str, ...]
    rate: float
    """Incidents of an average node per hour in service."""
    prior: float = 1.0
    """Incidents' worth of belief that a node is an average one (a Gamma's shape)."""

    @classmethod
    def learn(cls, histories: Iterable[NodeHistory], *, least: int = 20) -> CovariateEncoder:
        """What the covariates need of the whole fleet.

        Args:
            histories: of every node.
            least: incidents of a cohort before it has a covariate of its own.

        Raises:
            NotEnoughError: no node was ever watched.
        """
        fleet = list(histories)
        hours = sum(h.until - h.since for h in fleet) / HOUR
        if hours <= 0:
            raise NotEnoughError("no node was watched for any time")
        counts: Counter[str] = Counter()
        for history in fleet:
            counts[history.cohort] += len(history.incidents)
        large = sorted(cohort for cohort, n in counts.items() if n >= least)
        kinds = sorted({kind for history in fleet for kind, times in history.errors.items() if times})
        return cls(tuple(large[1:]), tuple(kinds), max(counts.total(), 0.5) / hours)

    @property
    def names(self) -> tuple[str, ...]:
        """What the columns are called."""
        return (
            "node_rate", "incidents", "incidents_30d", "remediations", "no_incident_yet",
            "unchecked_hours",
            *(f"{kind}_{window}" for kind in self.kinds for window in ("1d", "7d")),
            *(f"cohort_{cohort}" for cohort in self.cohorts),
        )  # fmt: skip

    def row(self, history: NodeHistory, at: float) -> list[float]:
        """Covariates at ``at``, from what was known just before."""
        starts = [i.at for i in history.incidents]
        n = bisect_left(starts, at)
        hours = max(0.0, at - history.since) / HOUR
        # posterior mean of a Poisson rate under a Gamma prior at the fleet's rate, as in
        # mainstay.detectors.correlation.lemon_nodes
        rate = (self.prior + n) / (self.prior / self.rate + hours)
        month = n - bisect_left(starts, at - 30 * _DAY_HOURS * HOUR)
        repaired = bisect_left(history.remediations, at)
        values = [math.log(rate / self.rate), math.log1p(n), math.log1p(month), math.log1p(repaired), float(n == 0)]
        values.append(math.log1p(self._unchecked(history, at)))
        for kind in self.kinds:
            times = history.errors.get(kind, ())
            seen = bisect_left(times, at)
            values += [math.log1p(seen - bisect_left(times, at - days * 24 * HOUR)) for days in (1, 7)]
        return values + [float(history.cohort == cohort) for cohort in self.cohorts]

    @staticmethod
    def _unchecked(history: NodeHistory, at: float) -> float:
        """Hours in which a defect may have come without a check; a node that came back was looked at."""
        place = bisect_left(history.checks, at)
        looked = history.checks[place - 1] if place else -math.inf
        origin = history.origin(at)
        return max(0.0, at - max(looked, history.since if origin is None else origin)) / HOUR

    def rows(self, histories: Sequence[NodeHistory], at: float) -> Floats:
        """[node, covariate] at one moment."""
        return np.array([self.row(history, at) for history in histories], np.float64).reshape(-1, len(self.names))

    def failure_runs(self, histories: Iterable[NodeHistory]) -> FailureRuns:
        """Every time at risk of every node."""
        x: list[list[float]] = []
        spans: list[tuple[float, float, float]] = []
        nodes: list[str] = []
        for history in histories:
            for origin, begin, end, failed in _spells(history):
                edges = [begin, *_cuts(history, origin, begin, end), end]
                for start, stop in pairwise(edges):
                    x.append(self.row(history, start + 1e-3))
                    ended = failed and stop == end
                    spans.append(((start - origin) / HOUR, (stop - origin) / HOUR, float(ended)))
                    nodes.append(history.node)
        table = np.array(spans, np.float64).reshape(-1, 3)
        covariates = np.array(x, np.float64).reshape(-1, len(self.names))
        return FailureRuns(covariates, table[:, 0], table[:, 1], table[:, 2], tuple(nodes))


def _spells(history: NodeHistory) -> Iterable[tuple[float, float, float, bool]]:
    """(origin, first watched, end, whether an incident ended it) of each time in service; none of no length."""
    origin = history.since if history.in_service_since is None else min(history.since, history.in_service_since)
    begin: float | None = history.since
    for incident in history.incidents:
        if incident.at > history.until:
            break
        if begin is not None and incident.at > begin:
            yield origin, begin, incident.at, True
        begin = incident.back_at
        origin = begin if begin is not None else origin
    if begin is not None and history.until > begin:
        yield origin, max(begin, history.since), history.until, False


def _cuts(history: NodeHistory, origin: float, begin: float, end: float) -> list[float]:
    """Where covariates are read again within a spell."""
    marks = [origin + _FIRST_CUT * 2**k * HOUR for k in range(_CUTS)]
    for times in history.errors.values():
        last = -math.inf
        for time in times[bisect_right(times, begin) : bisect_left(times, end)]:
            if time - last >= _ERROR_APART * HOUR:
                marks.append(time)
                last = time
    return sorted({mark for mark in marks if begin + 1.0 < mark < end - 1.0})
