"""Remediations, and the circuit breaker, as answered."""

from __future__ import annotations

from mainstay.service.common.db import ReadSession
from mainstay.service.remediation import rules
from mainstay.service.remediation.fleet_view import FleetView
from mainstay.service.remediation.schemas import (
    BreakerRead,
    RemediationStatus,
)
from mainstay.service.settings import RemediationSettings


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
