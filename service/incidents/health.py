"""How findings and verdicts move a node between healthy and suspect. The one place where that is decided.

Invariant: a node is suspect as long as a finding about its machinery holds or its standing verdict is FAIL, and for no
other reason. What people or policies decided (draining, quarantined, validating) is never touched here. What a rank
does says nothing about its node: code fails, waits and is unbalanced far more often than machines break. Only where the
detector itself names a broken machine as the cause does a slow or hung rank count against the node that it runs on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sqlalchemy import or_, select

from detectors.finding import ADVICE, Cause, FindingKind
from probes.words import HealthState, Remedy, Severity, Verdict
from service.fleet.life_cycle import Facts, Trigger
from service.fleet.models import NodeRow
from service.fleet.moves import propose
from service.incidents.models import FindingRow
from service.kit.db import AnySession, WriteSession
from service.validation.models import NodeVerdictRow

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
        FindingKind.COMPUTE_SLOW,  # a slow card, or other work on it, or a program that gives this rank more to do
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
_SILENCE: Final = frozenset({FindingKind.NODE_LOST, FindingKind.PROBE_SILENT})


def reconsider(session: WriteSession, nodes: Iterable[str], *, now: float, silent_after: float) -> None:
    """Bring each node's state in line with what is found about it; unknown names are left alone."""
    session.flush()
    for name in sorted(set(nodes)):
        row = session.get(NodeRow, name)
        if row is None:
            continue
        state, found = HealthState(row.state), suspicion(session, name)
        if found is not None:
            known = Facts(state=state, suspected=True)
            propose(session, row, Trigger.FOUND, reason=found, now=now, known=known)
        elif state is HealthState.SUSPECT:
            silent = row.stopped_at is not None or row.last_seen_at is None or now - row.last_seen_at > silent_after
            why = "what was found no longer holds" + (", but it is silent" if silent else "")
            propose(session, row, Trigger.CLEARED, reason=why, now=now, known=Facts(state=state, silent=silent))


def suspicion(session: AnySession, name: str) -> str | None:
    """What holds against a node, in words; None when nothing does."""
    statement = select(FindingRow).where(
        FindingRow.node == name,
        FindingRow.active,
        FindingRow.severity != Severity.INFO,
        FindingRow.remedy != Remedy.RESTART_APP,  # the job's own fault
        FindingRow.kind.not_in([kind.value for kind in _NOT_THE_NODE | _SILENCE]),
        or_(
            FindingRow.kind.not_in([kind.value for kind in _ONLY_WITH_CAUSE]),
            FindingRow.cause.in_([cause.value for cause in _MACHINERY]),
        ),
    )
    finding = session.scalars(statement.order_by(FindingRow.time.desc(), FindingRow.id.desc()).limit(1)).one_or_none()
    if finding is not None:
        return str(finding.evidence["summary"])
    verdict = session.get(NodeVerdictRow, name)
    if verdict is not None and verdict.verdict == Verdict.FAIL:
        return f"validation {verdict.suite} failed; a check of equal or greater power has to pass"
    return None
