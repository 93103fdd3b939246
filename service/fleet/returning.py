"""The way back into service: a validation that was ordered for it ends, and the node is let in or kept out.

A pass also ends what events said of the node before it: nobody else would ever take that back. What measurements say
is left alone, since they go on saying it; while such a finding still wants work off the node, no pass lets it in.
"""

from __future__ import annotations

from dataclasses import replace

from detectors.registry import ARRAY_DETECTORS
from probes.words import HealthState, Severity, Verdict
from service.fleet import situation
from service.fleet.life_cycle import Facts, Trigger
from service.fleet.models import NodeRow
from service.fleet.moves import Mover, demand, propose
from service.incidents.insisting import insist, of_node, over
from service.incidents.models import FindingRow
from service.kit.db import WriteSession
from service.settings import Settings
from service.validation.latch import power_of
from service.validation.models import NodeVerdictRow, ValidationRow
from service.validation.suites import suites


def suite_for(node_verdict: NodeVerdictRow | None, settings: Settings) -> str:
    """The suite that lets a node back: the site's usual one, or the weakest that its standing verdict asks for."""
    usual = settings.remediation.suite
    if node_verdict is None or node_verdict.verdict == Verdict.PASS or power_of(usual) >= node_verdict.power:
        return usual
    enough = [name for name in suites() if power_of(name) >= node_verdict.power]
    return min(enough, key=power_of, default=usual)


def begin(
    session: WriteSession,
    row: NodeRow,
    validation: ValidationRow,
    *,
    mover: Mover,
    reason: str,
    now: float,
    settings: Settings,
    expected_version: int | None = None,
) -> None:
    """Move a quarantined node to validating, where it waits for ``validation`` to end.

    Raises:
        NodeMovedError, IllegalMoveError: as ``moves.demand``.
    """
    known = situation.look(session, row, now=now, silent_after=settings.fleet.silent_after, suite=validation.suite)
    demand(
        session, row, Trigger.VALIDATE, expected_version=expected_version, reason=reason, now=now, known=known,
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
        silent_after = settings.fleet.silent_after
        known = situation.look(session, row, now=now, silent_after=silent_after, suite=validation.suite)
        # It answered just now, whatever its frames do.
        passed = propose(session, row, Trigger.PASSED, reason=words, now=now, known=replace(known, silent=False))
        if passed.accepted:
            return
        why = passed.reason
    known = Facts(state=HealthState(row.state))
    propose(session, row, Trigger.FAILED, reason=f"{words}; {why}", now=now, known=known)


def _take_back(session: WriteSession, validation: ValidationRow, *, now: float, settings: Settings) -> None:
    """End what events said of the node before the check was ordered, if the pass is its standing verdict."""
    standing = session.get(NodeVerdictRow, validation.node)
    if standing is None or standing.verdict != Verdict.PASS:
        return
    said = of_node(validation.node).where(
        FindingRow.severity != Severity.INFO,
        FindingRow.detector.not_in(list(ARRAY_DETECTORS)),
        FindingRow.job.is_(None),
        FindingRow.time <= validation.created_at,
    )
    why = f"Over: validation {validation.suite} passed after it."
    insist(session, lambda: over(session, said, why, now=now), now=now, settings=settings)
