"""Return to service: when the validation that was ordered for it ends, the node returns or stays out.

A pass also ends the findings from earlier events about the node: no other step would end them. Findings from
measurements stay, since they renew themselves; while such a finding requires eviction, no pass returns the node.
"""

from __future__ import annotations

from dataclasses import replace

from mainstay.detectors.registry import ARRAY_DETECTORS
from mainstay.probes.core_types import HealthState, Severity, Verdict
from mainstay.service.common.db import WriteSession
from mainstay.service.fleet import lifecycle_facts
from mainstay.service.fleet.lifecycle import NodeFacts, NodeTrigger
from mainstay.service.fleet.models import NodeRow
from mainstay.service.fleet.transitions import TransitionActor, propose, require_transition
from mainstay.service.incidents.finding_retry import of_node, over, store_with_retry
from mainstay.service.incidents.models import FindingRow
from mainstay.service.settings import Settings
from mainstay.service.validation.latch import power_of
from mainstay.service.validation.models import NodeVerdictRow, ValidationRow
from mainstay.service.validation.suites import suites


def suite_for(node_verdict: NodeVerdictRow | None, settings: Settings) -> str:
    """The suite that returns a node: the usual one of the site, or the weakest that its current verdict requires."""
    usual = settings.remediation.suite
    if node_verdict is None or node_verdict.verdict == Verdict.PASS or power_of(usual) >= node_verdict.power:
        return usual
    enough = [name for name in suites() if power_of(name) >= node_verdict.power]
    return min(enough, key=power_of, default=usual)


def start_validation(
    session: WriteSession,
    row: NodeRow,
    validation: ValidationRow,
    *,
    mover: TransitionActor,
    reason: str,
    now: float,
    settings: Settings,
    expected_version: int | None = None,
    known: NodeFacts | None = None,
) -> None:
    """Move a quarantined node to validating, where it waits for ``validation`` to end.

    ``known`` are the facts of the node with this suite; they are gathered here if not given.

    Raises:
        NodeStateChangedError, IllegalMoveError: as ``require_transition``.
    """
    if known is None:
        known = lifecycle_facts.gather_facts(session, row, now=now, settings=settings, suite=validation.suite)
    require_transition(
        session, row, NodeTrigger.VALIDATE, expected_version=expected_version, reason=reason, now=now, known=known,
        mover=mover, validation_id=validation.id,
    )  # fmt: skip


def ended(session: WriteSession, validation: ValidationRow, *, now: float, settings: Settings) -> None:
    """What the end of a validation means for a node that waited for it. Others are not touched."""
    row = session.get(NodeRow, validation.node)
    if row is None or row.state != HealthState.VALIDATING or row.validation_id != validation.id:
        return
    words = f"validation {validation.suite}: {validation.verdict}"
    why = validation.reason
    if validation.verdict == Verdict.PASS:
        _take_back(session, validation, now=now, settings=settings)
        known = lifecycle_facts.gather_facts(session, row, now=now, settings=settings, suite=validation.suite)
        # It answered just now, even if its frames are missing.
        passed = propose(session, row, NodeTrigger.PASSED, reason=words, now=now, known=replace(known, silent=False))
        if passed.accepted:
            return
        why = passed.reason
    known = NodeFacts(state=HealthState(row.state))
    propose(session, row, NodeTrigger.FAILED, reason=f"{words}; {why}", now=now, known=known)


def _take_back(session: WriteSession, validation: ValidationRow, *, now: float, settings: Settings) -> None:
    """End findings from events before the check was ordered, if the pass is the current verdict of the node."""
    current_verdict = session.get(NodeVerdictRow, validation.node)
    if current_verdict is None or current_verdict.verdict != Verdict.PASS:
        return
    said = of_node(validation.node).where(
        FindingRow.severity != Severity.INFO,
        FindingRow.detector.not_in(list(ARRAY_DETECTORS)),
        FindingRow.job.is_(None),
        FindingRow.time <= validation.created_at,
    )
    why = f"Over: validation {validation.suite} passed after it."
    store_with_retry(session, lambda: over(session, said, why, now=now), now=now, settings=settings)
