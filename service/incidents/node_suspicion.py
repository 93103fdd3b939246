"""How findings and verdicts move a node between healthy and suspect. The one place where that is decided.

Invariant: a node is suspect while a finding about its machinery is active or its current verdict is FAIL, and for no
other reason. What people or policies decided (draining, quarantined, validating) is never touched here. What a rank
does says nothing about its node: code fails, waits and is unbalanced far more often than machines break. Only where the
detector itself names a broken machine as the cause does a slow or hung rank count against the node that it runs on.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from sqlalchemy import ColumnElement, func, or_, select

from mainstay.detectors.correlation.finding_relations import SILENCE
from mainstay.detectors.finding import ADVICE, Cause, FindingKind
from mainstay.probes.core_types import HOST_DEVICE, HealthState, RecommendedAction, Severity, Verdict
from mainstay.service.common.db import AnySession, WriteSession
from mainstay.service.fleet.lifecycle import NodeFacts, NodeTrigger
from mainstay.service.fleet.models import NodeRow
from mainstay.service.fleet.transitions import Measured, propose_all
from mainstay.service.incidents.models import FindingRow
from mainstay.service.validation.models import NodeVerdictRow

_NOT_THE_NODE: Final = frozenset(
    {
        FindingKind.PROCESS_EXIT,
        FindingKind.COLLECTIVE_MISMATCH,
        FindingKind.NAN,
        FindingKind.LOSS_SPIKE,
        FindingKind.JOB_SLOWDOWN,
        FindingKind.DATA_STALL,
        FindingKind.STALLED_COLLECTIVE,
        FindingKind.CONGESTION,  # of ways that many share, and it moves with the traffic: warn, never evict
        *ADVICE,
    }
)
"""Of a job, its program or its network, whoever is named: nothing of a node."""
_ONLY_WITH_CAUSE: Final = frozenset(
    {
        FindingKind.STRAGGLER,  # a slow card, or other work on it, or a program that gives this rank more to do
        FindingKind.COMM_HANG,
        FindingKind.NONCOMM_HANG,  # a data loader, a lock, a debugger, a card: the counters cannot tell
        FindingKind.CPU_CONTENTION,  # the processes on a host are no part of it
    }
)
_MACHINERY: Final = frozenset(
    {
        Cause.FAULTY_GPU,
        Cause.GPU_MEMORY,
        Cause.GPU_SRAM,
        Cause.GPU_SYSTEM_PROCESSOR,
        Cause.GPU_THERMAL,
        Cause.GPU_LINK,
        Cause.SILENT_CORRUPTION,
        Cause.NIC,
        Cause.HOST,
    }
)
"""Causes that leave with the node."""


def reconsider(session: WriteSession, nodes: Collection[str], *, now: float, heartbeat_timeout_seconds: float) -> None:
    """Bring each node's state in line with what is found about it; unknown names are left alone."""
    session.flush()
    held = suspicions(session, nodes)
    moves = []
    for row in session.scalars(select(NodeRow).where(NodeRow.name.in_(nodes)).order_by(NodeRow.name)):
        state, found = HealthState(row.state), held.get(row.name)
        if found is not None:
            known = NodeFacts(state=state, suspected=True)
            moves.append(Measured(row, NodeTrigger.FINDING_OPENED, found, known))
        elif state is HealthState.SUSPECT:
            silent = (
                row.stopped_at is not None
                or row.last_seen_at is None
                or now - row.last_seen_at > heartbeat_timeout_seconds
            )
            why = "what was found no longer holds" + (", but it is silent" if silent else "")
            moves.append(Measured(row, NodeTrigger.CLEARED, why, NodeFacts(state=state, silent=silent)))
    propose_all(session, moves, now=now)


def suspicions(session: AnySession, nodes: Collection[str]) -> dict[str, str]:
    """Node → what holds against it, in words; nodes against which nothing holds are absent."""
    summary = FindingRow.evidence["summary"].as_string()
    statement = select(FindingRow.node, summary).where(FindingRow.node.in_(nodes), FindingRow.active, *_of_machinery())
    newest_last = session.execute(statement.order_by(FindingRow.time, FindingRow.id))
    failed = select(NodeVerdictRow.node, NodeVerdictRow.suite).where(
        NodeVerdictRow.node.in_(nodes), NodeVerdictRow.verdict == Verdict.FAIL
    )
    verdicts = {
        node: f"validation {suite} failed; a check of equal or greater power has to pass"
        for node, suite in session.execute(failed)
    }
    return verdicts | {node: text for node, text in newest_last if node is not None}


def suspect_devices(session: AnySession, at: float | None = None) -> dict[tuple[str, str], tuple[str, str]]:
    """Devices against which a finding holds, now or at a past time in Unix seconds; the host is none.

    Returns:
        (node, device) → severity and kind of the most severe finding; of several, the newest. Those of a past time are
        as they were stated last.
    """
    said = select(FindingRow.node, FindingRow.device, FindingRow.severity, FindingRow.kind, FindingRow.time).where(
        FindingRow.device.is_not(None), FindingRow.device != HOST_DEVICE, *_of_machinery()
    )
    # The order makes SQLite take the index of the active ones.
    active = said.where(FindingRow.active).order_by(FindingRow.time, FindingRow.id)
    if at is None:
        rows = session.execute(active).all()
    else:
        began = func.coalesce(FindingRow.began_at, FindingRow.time) <= at
        ended = said.where(~FindingRow.active, FindingRow.cleared_at > at, began)
        rows = [*session.execute(active.where(began)), *session.execute(ended)]
    critical = Severity.CRITICAL.value
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for node, device, severity, kind, _ in sorted(rows, key=lambda row: (row[2] == critical, row[4])):
        if node is not None and device is not None:
            found[node, device] = severity, kind
    return found


def _of_machinery() -> tuple[ColumnElement[bool], ...]:
    """Conditions of a finding that counts against its node."""
    return (
        FindingRow.severity != Severity.INFO,
        FindingRow.recommended_action != RecommendedAction.RESTART_JOB,  # the job's own fault
        FindingRow.kind.not_in([kind.value for kind in _NOT_THE_NODE | SILENCE]),
        or_(
            FindingRow.kind.not_in([kind.value for kind in _ONLY_WITH_CAUSE]),
            FindingRow.cause.in_([cause.value for cause in _MACHINERY]),
        ),
    )
