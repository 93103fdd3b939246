"""The slow look at the past: which nodes fail again and again. ``detectors.lemon`` judges; here the records are kept.

A failure is an incident with a finding about the node's machinery. What struck several nodes at once is no node's own
(a rack, a network), and what a job did to itself is nobody's. Once an hour is often enough: rates take days to show.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from sqlalchemy import select

from detectors import lemon
from detectors.correlate import Config as Correlation
from detectors.finding import Finding, FindingKind
from probes.words import HOST_DEVICE, Remedy, Severity
from service.fleet.models import NodeRow
from service.incidents import intake
from service.incidents.models import FindingRow
from service.incidents.progress import Context
from service.incidents.service import IncidentChangedError
from service.kit.db import AnySession
from service.kit.loops import Loop
from service.services import Services

_log: Final = logging.getLogger(__name__)
_K = FindingKind
HARDWARE: Final = frozenset(
    {_K.NODE_LOST, _K.GPU_LOST, _K.XID, _K.SXID, _K.ECC_UNCORRECTABLE, _K.ROW_REMAP, _K.RECOVERY_ACTION}
    | {_K.NVLINK_ERRORS, _K.PCIE_DEGRADED, _K.NIC_DEGRADED, _K.FABRIC_DOWN, _K.THERMAL_THROTTLE, _K.POWER_BRAKE}
    | {_K.KERNEL_FAULT, _K.FAULT_LOCALISED, _K.MEMORY_FLIPS}
)
"""Kinds that speak of machinery, whatever job runs on it."""
INTERVAL: Final = 3600.0
WINDOW: Final = 90 * 86_400.0
"""How far back failures count: Meta's lemons were judged over a quarter."""
_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class Failure:
    """A node's part in an incident."""

    node: str
    incident: str
    device: str | None
    time: float


@dataclass
class Lemons:
    """One look an hour; remembers nothing that the database does not."""

    services: Services
    config: lemon.Config = field(default_factory=lemon.Config)

    def turn(self) -> None:
        """Judge all nodes and hand what is new to the incidents."""
        now = self.services.clock.now()
        found = self.look(now)
        for _ in range(_TRIES if found else 0):
            try:
                self._hand_in(found, now)
            except IncidentChangedError:
                _log.info("an incident changed while lemons were handed in; trying again")
            else:
                return

    def look(self, now: float) -> list[Finding]:
        """What is new about the fleet at ``now``; writes nothing."""
        with self.services.database.reading() as session:
            failures = _failures(session, now - WINDOW)
            watched = {row.name: row.first_seen_at for row in session.scalars(select(NodeRow))}
            said, taken_back = _said(session)
        records = _records(failures, watched, now)
        found = lemon.findings(lemon.judge(records, self.config), said, now, self.config)
        latest = {f.node: f.time for f in failures}  # in order of time
        return [f for f in found if not f.active or _news(f, latest, taken_back)]

    def _hand_in(self, found: Iterable[Finding], now: float) -> None:
        settings = self.services.settings
        with self.services.database.session() as session:
            context = Context(session, settings.incidents, now)
            intake.take(context, found, silent_after=settings.fleet.silent_after)


def _failures(session: AnySession, since: float) -> list[Failure]:
    """One for each node and incident, oldest first; incidents of several nodes are left out."""
    statement = (
        select(FindingRow.node, FindingRow.incident_id, FindingRow.device, FindingRow.time)
        .where(
            FindingRow.time >= since,
            FindingRow.kind.in_([kind.value for kind in HARDWARE]),
            FindingRow.severity != Severity.INFO,
            FindingRow.remedy != Remedy.RESTART_APP,
        )
        .order_by(FindingRow.time, FindingRow.id)
    )
    first: dict[tuple[str, str], Failure] = {}
    struck: dict[str, set[str]] = defaultdict(set)
    for node, incident, device, time in session.execute(statement):
        if node is None or incident is None:
            continue
        first.setdefault((node, incident), Failure(node, incident, device, time))
        struck[incident].add(node)
    most = Correlation().rack_nodes
    return [failure for failure in first.values() if len(struck[failure.incident]) < most]


def _records(failures: Iterable[Failure], watched: dict[str, float], now: float) -> dict[str, lemon.Record]:
    counts: Counter[str] = Counter()
    devices: dict[str, Counter[str]] = defaultdict(Counter)
    for failure in failures:
        counts[failure.node] += 1
        if failure.device not in {None, HOST_DEVICE}:
            devices[failure.node][str(failure.device)] += 1
    records = {}
    for node, since in watched.items():
        worst, most = devices[node].most_common(1)[0] if devices[node] else ("", 0)
        one = 2 * most > counts[node] and most > 1
        records[node] = lemon.Record(
            failures=counts[node],
            seconds=max(0.0, min(now - since, WINDOW)),
            worst=worst if one else "",
            worst_failures=most if one else 0,
        )
    return records


def _said(session: AnySession) -> tuple[frozenset[str], dict[str, float]]:
    """Nodes that are lemons now, and when others were last taken back (by a passed validation, by a person)."""
    statement = select(FindingRow.node, FindingRow.active, FindingRow.cleared_at).where(
        FindingRow.kind == _K.LEMON_NODE, FindingRow.detector == lemon.NAME
    )
    active: set[str] = set()
    over: dict[str, float] = {}
    for node, holds, cleared_at in session.execute(statement):
        if node is None:
            continue
        if holds:
            active.add(node)
        elif cleared_at is not None:
            over[node] = max(cleared_at, over.get(node, 0.0))
    return frozenset(active), over


def _news(finding: Finding, latest: dict[str, float], taken_back: dict[str, float]) -> bool:
    """What somebody took back needs a further failure before it is said again."""
    node = finding.entity.node or ""
    return node not in taken_back or latest.get(node, 0.0) > taken_back[node]


def make_loops(services: Services, interval: float = INTERVAL) -> list[Loop]:
    """The loop; a test turns ``Lemons`` by hand."""
    return [Loop("lemons", interval, Lemons(services).turn)]
