"""Remediations, and the circuit breaker, as answered."""

from __future__ import annotations

from mainstay.probes.core_types import RecommendedAction
from mainstay.service.common.db import ReadSession
from mainstay.service.remediation import rules
from mainstay.service.remediation.fleet_view import FleetView
from mainstay.service.remediation.models import RemediationRow
from mainstay.service.remediation.schemas import (
    BreakerRead,
    RemediationRead,
    RemediationState,
    RemediationStatus,
    RuleRead,
)
from mainstay.service.settings import RemediationSettings


def read(row: RemediationRow) -> RemediationRead:
    return RemediationRead(
        id=row.id,
        incident=row.incident_id,
        node=row.node,
        device=row.device,
        recommended_action=RecommendedAction(row.recommended_action),
        state=RemediationState(row.state),
        dry_run=row.dry_run,
        reason=row.reason,
        rules=[RuleRead.model_validate(rule) for rule in row.rules],
        created_at=row.created_at,
        decided_at=row.decided_at,
        decided_by=row.decided_by,
    )


def serialize_status(session: ReadSession, limits: RemediationSettings, now: float) -> RemediationStatus:
    """The mode, and how far the breaker is from opening."""
    survey = FleetView(session, limits, now)
    facts = rules.RemediationFacts(limits=limits, fleet=survey.fleet(), touched=len(survey.drained()))
    why = rules.breaker(facts)
    left = rules.limit(limits, facts.fleet) - facts.touched
    breaker = BreakerRead(
        open=why is not None,
        max_drained_ratio=limits.max_drained_ratio,
        window_seconds=limits.window_seconds,
        touched=facts.touched,
        fleet=facts.fleet,
        max_drained_per_rack=limits.max_drained_per_rack,
        reason=why or f"{left} more of {facts.fleet} nodes may be drained within {limits.window_seconds / 60:g} min",
    )
    return RemediationStatus(mode=limits.mode, breaker=breaker)
