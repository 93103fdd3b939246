"""How findings and verdicts move a node between healthy and suspect. The one place where that is decided.

Invariant: a node is suspect as long as a finding about its machinery holds or its standing verdict is FAIL, and for no
other reason. What people or policies decided (draining, quarantined, validating) is never touched here. A rank's exit
says nothing about the node: code fails far more often than machines do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sqlalchemy import select

from detectors.finding import ADVICE, FindingKind
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
        *ADVICE,
    }
)
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
    )
    finding = session.scalars(statement.order_by(FindingRow.time.desc(), FindingRow.id.desc()).limit(1)).one_or_none()
    if finding is not None:
        return str(finding.evidence["summary"])
    verdict = session.get(NodeVerdictRow, name)
    if verdict is not None and verdict.verdict == Verdict.FAIL:
        return f"validation {verdict.suite} failed; a check of equal or greater power has to pass"
    return None
