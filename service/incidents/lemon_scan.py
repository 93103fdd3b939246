"""Periodic scan for nodes that fail repeatedly: keeps the records that ``detectors.correlation.lemon_nodes`` evaluates.

A failure is an incident with a finding about the node's machinery. What struck several nodes at once is no node's own
(a rack, a network), and a fault that a job caused belongs to no node. Once an hour is enough: rates take days to show.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from sqlalchemy import select

from mainstay.detectors.correlation import lemon_nodes
from mainstay.detectors.finding import HARDWARE, Finding, FindingKind
from mainstay.probes.core_types import HOST_DEVICE, RecommendedAction, Severity
from mainstay.service.common.db import AnySession
from mainstay.service.common.loops import Loop
from mainstay.service.fleet.models import NodeRow
from mainstay.service.incidents.detection_shards import DETECTION
from mainstay.service.incidents.finding_retry import store_with_retry
from mainstay.service.incidents.models import FindingRow
from mainstay.service.services import Services

INTERVAL: Final = 3600.0
WINDOW: Final = 90 * 86_400.0
"""How far back failures count: Meta evaluated lemon nodes over a quarter."""


@dataclass(frozen=True, slots=True)
class NodeFailure:
    """A node's part in an incident."""

    node: str
    incident: str
    device: str | None
    time: float


@dataclass
class LemonScan:
    """One look an hour; remembers nothing that the database does not."""

    services: Services
    config: lemon_nodes.Config = field(default_factory=lemon_nodes.Config)

    def run_once(self) -> None:
        """Judge all nodes and hand what is new to the incidents."""
        now = self.services.clock.now()
        found = self.scan(now)
        if found:
            with self.services.database.session() as session:
                store_with_retry(session, lambda: found, now=now, settings=self.services.settings)

    def scan(self, now: float) -> list[Finding]:
        """Return the findings that are new at ``now``; write nothing."""
        with self.services.database.reading() as session:
            failures = _failures(session, now - WINDOW, self.services.settings.incidents.shared_fault_nodes)
            watched = {row.name: row.first_seen_at for row in session.scalars(select(NodeRow))}
            known, withdrawn = _lemon_findings(session)
        records = _records(failures, watched, now)
        found = lemon_nodes.findings(lemon_nodes.score_nodes(records, self.config), known, now, self.config)
        latest = {f.node: f.time for f in failures}  # in order of time
        return [f for f in found if not f.active or _is_new(f, latest, withdrawn)]


def _failures(session: AnySession, since: float, shared_fault_nodes: int) -> list[NodeFailure]:
    """One for each node and incident, oldest first; incidents of what nodes share are left out."""
    statement = (
        select(FindingRow.node, FindingRow.incident_id, FindingRow.device, FindingRow.time)
        .where(
            FindingRow.time >= since,
            FindingRow.kind.in_([kind.value for kind in HARDWARE]),
            FindingRow.severity != Severity.INFO,
            FindingRow.recommended_action != RecommendedAction.RESTART_JOB,
        )
        .order_by(FindingRow.time, FindingRow.id)
    )
    first: dict[tuple[str, str], NodeFailure] = {}
    struck: dict[str, set[str]] = defaultdict(set)
    for node, incident, device, time in session.execute(statement):
        if node is None or incident is None:
            continue
        first.setdefault((node, incident), NodeFailure(node, incident, device, time))
        struck[incident].add(node)
    return [failure for failure in first.values() if len(struck[failure.incident]) < shared_fault_nodes]


def _records(
    failures: Iterable[NodeFailure], watched: dict[str, float], now: float
) -> dict[str, lemon_nodes.NodeRecord]:
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
        records[node] = lemon_nodes.NodeRecord(
            failures=counts[node],
            seconds=max(0.0, min(now - since, WINDOW)),
            worst=worst if one else "",
            worst_failures=most if one else 0,
        )
    return records


def _lemon_findings(session: AnySession) -> tuple[frozenset[str], dict[str, float]]:
    """Return the lemon nodes, and when a validation or an operator last withdrew a finding about another node."""
    statement = select(FindingRow.node, FindingRow.active, FindingRow.cleared_at).where(
        FindingRow.kind == FindingKind.LEMON_NODE, FindingRow.detector == lemon_nodes.NAME
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


def _is_new(finding: Finding, latest: dict[str, float], withdrawn: dict[str, float]) -> bool:
    """A finding that an operator withdrew needs a further failure before it opens again."""
    node = finding.entity.node or ""
    return node not in withdrawn or latest.get(node, 0.0) > withdrawn[node]


def make_loops(services: Services, interval: float = INTERVAL) -> list[Loop]:
    """The loop; a test turns ``LemonScan`` by hand."""
    return [Loop("lemons", interval, services.leases.elect(DETECTION, lambda: LemonScan(services).run_once))]
