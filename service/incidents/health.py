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
from probes.words import HealthState, Severity, Verdict
from service.fleet.models import NodeRow
from service.fleet.service import set_state
from service.incidents.models import FindingRow
from service.kit.db import WriteSession
from service.validation.models import NodeVerdictRow

_NOT_THE_NODE: Final = frozenset(
    {
        FindingKind.PROCESS_EXIT,
        FindingKind.COLLECTIVE_MISMATCH,
        FindingKind.NAN,
        FindingKind.LOSS_SPIKE,
        FindingKind.JOB_SLOWDOWN,
        FindingKind.DATA_STALL,
        *ADVICE,
    }
)
_SILENCE: Final = frozenset({FindingKind.NODE_LOST, FindingKind.PROBE_SILENT})
_OURS: Final = frozenset({HealthState.UNKNOWN, HealthState.HEALTHY, HealthState.SUSPECT})


def reconsider(session: WriteSession, nodes: Iterable[str], *, now: float, silent_after: float) -> None:
    """Bring each node's state in line with what is found about it; unknown names are left alone."""
    session.flush()
    for name in sorted(set(nodes)):
        row = session.get(NodeRow, name)
        if row is None or HealthState(row.state) not in _OURS:
            continue
        suspicion = _suspicion(session, name)
        if suspicion is not None:
            set_state(session, name, HealthState.SUSPECT, suspicion)
        elif row.state == HealthState.SUSPECT:
            silent = row.last_seen_at is None or now - row.last_seen_at > silent_after
            state = HealthState.UNKNOWN if silent else HealthState.HEALTHY
            set_state(session, name, state, "what was found no longer holds" + (", but it is silent" if silent else ""))


def _suspicion(session: WriteSession, name: str) -> str | None:
    statement = select(FindingRow).where(
        FindingRow.node == name,
        FindingRow.active,
        FindingRow.severity != Severity.INFO,
        FindingRow.kind.not_in([kind.value for kind in _NOT_THE_NODE | _SILENCE]),
    )
    finding = session.scalars(statement.order_by(FindingRow.time.desc(), FindingRow.id.desc()).limit(1)).one_or_none()
    if finding is not None:
        return str(finding.evidence["summary"])
    verdict = session.get(NodeVerdictRow, name)
    if verdict is not None and verdict.verdict == Verdict.FAIL:
        return f"validation {verdict.suite} failed; a check of equal or greater power has to pass"
    return None
