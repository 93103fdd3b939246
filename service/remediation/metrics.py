"""What ``/metrics`` says of remediation: read from the database when asked, nothing is pushed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from sqlalchemy import func, select

from mainstay.probes.core_types import HealthState
from mainstay.service.common.db import AnySession
from mainstay.service.exposition.families import gauge
from mainstay.service.fleet.lifecycle import Owner
from mainstay.service.fleet.models import TransitionRow
from mainstay.service.remediation import repository
from mainstay.service.remediation import serializers as remediation_serializers
from mainstay.service.remediation.schemas import RemediationState
from mainstay.service.services import Services

RECENT_SECONDS: Final = 3600.0


def collect_remediation(services: Services) -> Iterator[Metric]:
    """Proposals, the circuit breaker, and how nodes were moved lately."""
    now, limits = services.clock.now(), services.settings.remediation
    with services.database.reading() as session:
        yield _remediations(session)
        yield _moves(session, now)
        status = remediation_serializers.serialize_status(session, limits, now)
    automatic = status.mode == "automatic"
    yield gauge("remediation_automatic", "Whether Mainstay drains automatically", automatic)
    yield gauge("remediation_breaker_open", "Whether the circuit breaker blocks drains", status.breaker.open)
    yield gauge(
        "remediation_drained",
        "Nodes that Mainstay drained within the window of the circuit breaker",
        status.breaker.touched,
    )


def _remediations(session: AnySession) -> Metric:
    family = GaugeMetricFamily("mainstay_remediations", "Stored remediations, by state", labels=["state"])
    counts = repository.count_by_state(session)
    for state in RemediationState:
        family.add_metric([state.value], counts.get(state.value, 0))
    return family


def _moves(session: AnySession, now: float) -> Metric:
    about = "Moves of nodes within the last hour, by new state and who decided"
    family = GaugeMetricFamily("mainstay_node_transitions_last_hour", about, labels=["state", "owner"])
    statement = (
        select(TransitionRow.to_state, TransitionRow.owner, func.count())
        .where(TransitionRow.time >= now - RECENT_SECONDS)
        .group_by(TransitionRow.to_state, TransitionRow.owner)
    )
    counts = {(state, owner): count for state, owner, count in session.execute(statement)}
    for state in HealthState:
        for owner in Owner:
            family.add_metric([state.value, owner.value], counts.get((state.value, owner.value), 0))
    return family
