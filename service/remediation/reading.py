"""Remediations, and the circuit breaker, as answered."""

from __future__ import annotations

from probes.words import Remedy
from service.kit.db import ReadSession
from service.remediation import rules
from service.remediation.models import RemediationRow
from service.remediation.schemas import BreakerRead, RemediationRead, RemediationState, RemediationStatus, RuleRead
from service.remediation.survey import Survey
from service.settings import RemediationSettings


def read(row: RemediationRow) -> RemediationRead:
    return RemediationRead(
        id=row.id,
        incident=row.incident_id,
        node=row.node,
        device=row.device,
        remedy=Remedy(row.remedy),
        state=RemediationState(row.state),
        dry_run=row.dry_run,
        reason=row.reason,
        rules=[RuleRead.model_validate(rule) for rule in row.rules],
        created_at=row.created_at,
        decided_at=row.decided_at,
        decided_by=row.decided_by,
    )


def read_status(session: ReadSession, limits: RemediationSettings, now: float) -> RemediationStatus:
    """The mode, and how far the breaker is from opening."""
    survey = Survey(session, limits, now)
    facts = rules.Facts(limits=limits, fleet=survey.fleet(), touched=len(survey.drained()))
    why = rules.breaker(facts)
    left = rules.limit(limits, facts.fleet) - facts.touched
    breaker = BreakerRead(
        open=why is not None,
        share_limit=limits.share_limit,
        window_seconds=limits.window_seconds,
        touched=facts.touched,
        fleet=facts.fleet,
        rack_limit=limits.rack_limit,
        why=why or f"{left} more of {facts.fleet} nodes may be drained within {limits.window_seconds / 60:g} min",
    )
    return RemediationStatus(mode=limits.mode, breaker=breaker)
