"""Nodes' pasts, from the tables to what the Selector learns from.

An incident of a node is one with a finding about its machinery, unless it struck several nodes at once (a rack, a
network). A failed validation counts as one too: without it the defect would have struck a job, and a fleet that is
checked well would look as if it needed no checks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import select

from mainstay.detectors.finding import HARDWARE, FindingKind
from mainstay.detectors.selector.fleet_history import CleanCheck, PastDefect
from mainstay.detectors.selector.history import Incident, NodeHistory
from mainstay.probes.benchmarks.defects import Defect
from mainstay.probes.core_types import EventKind, HealthState, RecommendedAction, Severity, Verdict
from mainstay.service.common.db import AnySession
from mainstay.service.events.models import EventRow
from mainstay.service.fleet.lifecycle import OUT_OF_SERVICE
from mainstay.service.fleet.models import NodeRow, TransitionRow
from mainstay.service.incidents.models import FindingRow, IncidentRow
from mainstay.service.remediation.models import RemediationRow
from mainstay.service.remediation.schemas import RemediationState
from mainstay.service.validation.models import ResultRow, ValidationRow, ValidationState

WINDOW: Final = 365 * 86_400.0
"""How far back is looked."""
_TAKEN_OUT: Final = 6 * 3600.0
"""A node that leaves service so soon after an incident leaves because of it."""
_STILL_VALID: Final = 7 * 86_400.0
"""A defect that strikes so soon after a passed validation was missed by it."""
UNATTRIBUTED: Final = "unattributed"
"""A defect without a known location: no benchmark tests for it."""
_K = FindingKind
CLASS_OF: Final[dict[str, Defect]] = {
    _K.ECC_UNCORRECTABLE: Defect.GPU_MEMORY,
    _K.ROW_REMAP: Defect.GPU_MEMORY,
    _K.NVLINK_ERRORS: Defect.GPU_LINK,
    _K.PCIE_DEGRADED: Defect.HOST_LINK,
    _K.NIC_DEGRADED: Defect.FABRIC,
    _K.FABRIC_DOWN: Defect.FABRIC,
    _K.THERMAL_THROTTLE: Defect.THERMAL,
    _K.POWER_BRAKE: Defect.THERMAL,
    _K.KERNEL_FAULT: Defect.SOFTWARE,
}
"""Kind of finding → class of defect, where the kind alone says it."""


@dataclass(slots=True)
class NodeIncident:
    """An incident of one node."""

    at: float
    over_at: float | None
    kinds: set[str] = field(default_factory=set)


@dataclass(slots=True)
class NodeCheck:
    """A finished validation of one node."""

    at: float
    verdict: Verdict
    found: tuple[str, ...] = ()
    ran: tuple[str, ...] = ()


@dataclass(slots=True)
class NodePastRow:
    """What the tables say of one node."""

    row: NodeRow
    troubles: list[NodeIncident] = field(default_factory=list)
    checks: list[NodeCheck] = field(default_factory=list)
    outages: list[tuple[float, float | None]] = field(default_factory=list)
    """(left service, came back)."""
    repaired: list[float] = field(default_factory=list)
    errors: dict[str, list[float]] = field(default_factory=lambda: {"xid": [], "ecc": []})


def read(
    session: AnySession, now: float, nodes: Collection[str] | None = None, *, shared_fault_nodes: int
) -> list[NodePastRow]:
    """Return the history of all nodes, or of some, with a fixed number of queries.

    Incidents of at least ``shared_fault_nodes`` nodes say nothing about one node and are left out.
    """
    since = now - WINDOW
    statement = select(NodeRow)
    found = {row.name: NodePastRow(row) for row in session.scalars(_only(statement, NodeRow.name, nodes))}
    _troubles(session, found, since, nodes, shared_fault_nodes)
    _checks(session, found, since, nodes)
    _outages(session, found, since, nodes)
    for table, time, where, kind in (
        (EventRow, EventRow.time, EventRow.kind == EventKind.XID, "xid"),
        (FindingRow, FindingRow.time, FindingRow.kind.in_([_K.ECC_UNCORRECTABLE, _K.ROW_REMAP]), "ecc"),
        (RemediationRow, RemediationRow.ended_at, RemediationRow.state == RemediationState.DONE, "repaired"),
    ):
        rows = select(table.node, time).where(time >= since, where).order_by(time)
        for node, at in session.execute(_only(rows, table.node, nodes)):
            if node in found:
                (found[node].repaired if kind == "repaired" else found[node].errors[kind]).append(at)
    return list(found.values())


def _only(statement: Any, column: Any, nodes: Collection[str] | None) -> Any:
    """The statement, about some nodes only."""
    return statement if nodes is None else statement.where(column.in_(nodes))


def _troubles(
    session: AnySession,
    found: Mapping[str, NodePastRow],
    since: float,
    nodes: Collection[str] | None,
    shared_fault_nodes: int,
) -> None:
    ends = (IncidentRow.recovered_at, IncidentRow.verified_at, IncidentRow.closed_at)
    statement = (
        select(FindingRow.node, FindingRow.incident_id, FindingRow.time, FindingRow.kind, *ends)
        .join(IncidentRow, IncidentRow.id == FindingRow.incident_id)
        .where(
            FindingRow.time >= since,
            FindingRow.kind.in_([kind.value for kind in HARDWARE]),
            FindingRow.severity != Severity.INFO,
            FindingRow.recommended_action != RecommendedAction.RESTART_JOB,
        )
        .order_by(FindingRow.time, FindingRow.id)
    )
    if nodes is not None:
        theirs = select(FindingRow.incident_id).where(FindingRow.node.in_(nodes), FindingRow.time >= since)
        statement = statement.where(FindingRow.incident_id.in_(theirs))
    of: dict[tuple[str, str], NodeIncident] = {}
    struck: dict[str, set[str]] = defaultdict(set)
    for node, incident, time, kind, *over in session.execute(statement):
        if node is None or incident is None:
            continue
        struck[incident].add(node)  # all nodes of an incident count, whoever is asked about
        if node in found and (nodes is None or node in nodes):
            end = next((at for at in over if at is not None), None)
            trouble = of.setdefault((node, incident), NodeIncident(time, None if end is None else max(end, time)))
            trouble.kinds.add(kind)
    for (node, incident), trouble in of.items():
        if len(struck[incident]) < shared_fault_nodes:
            found[node].troubles.append(trouble)


def _checks(session: AnySession, found: Mapping[str, NodePastRow], since: float, nodes: Collection[str] | None) -> None:
    done = select(ValidationRow.id, ValidationRow.node, ValidationRow.finished_at, ValidationRow.verdict).where(
        ValidationRow.state == ValidationState.DONE, ValidationRow.finished_at >= since
    )
    of: dict[str, NodeCheck] = {}
    for id_, node, at, verdict in session.execute(_only(done, ValidationRow.node, nodes)):
        if node in found:
            of[id_] = NodeCheck(at, Verdict(verdict))
            found[node].checks.append(of[id_])
    said: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    results = (
        select(ResultRow.validation_id, ResultRow.benchmark, ResultRow.verdict)
        .join(ValidationRow, ValidationRow.id == ResultRow.validation_id)
        .where(ValidationRow.state == ValidationState.DONE, ValidationRow.finished_at >= since)
        .distinct()
    )
    for id_, benchmark, verdict in session.execute(_only(results, ValidationRow.node, nodes)):
        said[id_][benchmark].add(verdict)
    for id_, check in of.items():
        check.found = tuple(sorted(name for name, verdicts in said[id_].items() if Verdict.FAIL in verdicts))
        # a benchmark that could not tell has not looked
        check.ran = tuple(
            sorted(name for name, v in said[id_].items() if Verdict.FAIL in v or Verdict.UNKNOWN not in v)
        )
    for past in found.values():
        past.checks.sort(key=lambda check: check.at)


def _outages(
    session: AnySession, found: Mapping[str, NodePastRow], since: float, nodes: Collection[str] | None
) -> None:
    statement = (
        select(TransitionRow.node, TransitionRow.time, TransitionRow.to_state)
        .where(TransitionRow.time >= since)
        .order_by(TransitionRow.node, TransitionRow.version)
    )
    left: dict[str, float] = {}
    for node, time, state in session.execute(_only(statement, TransitionRow.node, nodes)):
        if HealthState(state) in OUT_OF_SERVICE:
            left.setdefault(node, time)
        elif node in left and node in found:
            found[node].outages.append((left.pop(node), time))
    for node, time in left.items():
        if node in found:
            found[node].outages.append((time, None))


def history(past: NodePastRow, now: float) -> NodeHistory:
    """The node as the Selector's model sees it."""
    since = min(past.row.first_seen_at, now)
    incidents = [(t.at, _back(past, t.at, t.over_at, now)) for t in past.troubles]
    incidents += [(c.at, _back(past, c.at, c.at, now)) for c in past.checks if c.verdict is Verdict.FAIL]
    return NodeHistory(
        node=past.row.name,
        since=max(since, now - WINDOW),
        until=now,
        in_service_since=since,
        cohort=past.row.cohort,
        incidents=_merged(incidents),
        remediations=tuple(sorted(past.repaired)),
        checks=tuple(c.at for c in past.checks if c.verdict is Verdict.PASS),
        errors={kind: tuple(times) for kind, times in past.errors.items()},
    )


def _back(past: NodePastRow, at: float, over_at: float | None, now: float) -> float | None:
    """When the node served again: back from the outage that followed, or when it was over."""
    until = (now if over_at is None else over_at) + _TAKEN_OUT
    for left, back in past.outages:
        if left <= until and (back is None or back >= at):
            return back if back is None or over_at is None else max(back, over_at)
    return over_at


def _merged(spans: Iterable[tuple[float, float | None]]) -> tuple[Incident, ...]:
    """What begins before the last one is over is part of it."""
    merged: list[Incident] = []
    for at, back in sorted(spans, key=lambda span: span[0]):
        last = merged[-1] if merged else None
        if last is None or (last.back_at is not None and at >= last.back_at):
            merged.append(Incident(at=at, back_at=back))
        elif last.back_at is not None:
            merged[-1] = Incident(at=last.at, back_at=None if back is None else max(back, last.back_at))
    return tuple(merged)


def defects(past: NodePastRow, claims: Mapping[str, Sequence[str]], now: float) -> list[PastDefect]:
    """Defects of a node and what found them: failed validations, and what struck soon after one that passed.

    Args:
        past: the node's.
        claims: benchmark → classes that it is made to find, the one that it finds best first.
        now: Unix seconds.
    """
    made = [
        PastDefect(at=c.at, node=past.row.name, defect=_blamed(c.found, claims), found=c.found, ran=c.ran)
        for c in past.checks
        if c.verdict is Verdict.FAIL and c.found
    ]
    failed = sorted(c.at for c in past.checks if c.verdict is Verdict.FAIL)
    for trouble in past.troubles:
        over = _back(past, trouble.at, trouble.over_at, now)
        place = bisect_left(failed, trouble.at)
        if place < len(failed) and failed[place] <= (now if over is None else over):
            continue  # a check found it afterwards: that record tells more
        passed = [c for c in past.checks if c.at < trouble.at <= c.at + _STILL_VALID and c.verdict is Verdict.PASS]
        if passed:
            made.append(PastDefect(at=trouble.at, node=past.row.name, defect=_class_of(trouble), ran=passed[-1].ran))
    return made


def _class_of(trouble: NodeIncident) -> str:
    return next((CLASS_OF[kind].value for kind in sorted(trouble.kinds) if kind in CLASS_OF), UNATTRIBUTED)


def looks(past: NodePastRow) -> list[CleanCheck]:
    """What ran on a node and found nothing: a check that failed ends in a repair, which looks at everything."""
    return [
        CleanCheck(at=c.at, node=past.row.name, ran=c.ran)
        for c in past.checks
        if c.verdict is not Verdict.FAIL and c.ran
    ]


def _blamed(found: Sequence[str], claims: Mapping[str, Sequence[str]]) -> str:
    """The class that the failed benchmarks agree on most, what each finds best counting most."""
    votes: dict[str, float] = defaultdict(float)
    for name in found:
        for place, defect in enumerate(claims.get(name, ())):
            votes[defect] += 1 / (place + 1)
    return max(votes, key=lambda defect: (votes[defect], defect)) if votes else UNATTRIBUTED
