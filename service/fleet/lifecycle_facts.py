"""What is known of a node, gathered from the features that know it, for the rules of its life cycle."""

from __future__ import annotations

from sqlalchemy import select

from mainstay.detectors.finding import FindingKind
from mainstay.probes.core_types import HealthState, RecommendedAction, Verdict
from mainstay.service.common.db import AnySession
from mainstay.service.fleet.lifecycle import NodeFacts
from mainstay.service.fleet.models import NodeRow
from mainstay.service.incidents.models import FindingRow
from mainstay.service.incidents.node_suspicion import suspicions
from mainstay.service.jobs.repository import by_node
from mainstay.service.settings import Settings
from mainstay.service.validation.latch import power_of
from mainstay.service.validation.models import NodeVerdictRow

EVICTING = tuple(recommended_action.value for recommended_action in RecommendedAction if recommended_action.evicts)


def gather_facts(
    session: AnySession, row: NodeRow, *, now: float, settings: Settings, suite: str | None = None
) -> NodeFacts:
    """Everything that the rules may ask about a node; ``suite`` is the one that is ordered, or that ended."""
    current_verdict = session.get(NodeVerdictRow, row.name)
    return NodeFacts(
        state=HealthState(row.state),
        suspected=bool(suspicions(session, [row.name])),
        silent=is_silent(row, now, settings.fleet.heartbeat_timeout_seconds),
        jobs=tuple(by_node(session).get(row.name, ())),
        evicting=len(evicting(session, row.name)),
        verdict=None if current_verdict is None else Verdict(current_verdict.verdict),
        needed=0 if current_verdict is None else current_verdict.power,
        power=0 if suite is None else power_of(suite),
    )


def is_silent(row: NodeRow, now: float, heartbeat_timeout_seconds: float) -> bool:
    """Whether the node sent no report for too long, or sent a shutdown notice."""
    return row.stopped_at is not None or row.last_seen_at is None or now - row.last_seen_at > heartbeat_timeout_seconds


def evicting(session: AnySession, node: str) -> list[FindingRow]:
    """Active findings about a node whose recommended action evicts; a silent node alone has none."""
    statement = select(FindingRow).where(
        FindingRow.node == node,
        FindingRow.active,
        FindingRow.recommended_action.in_(EVICTING),
        FindingRow.kind != FindingKind.NODE_LOST.value,
    )
    return list(session.scalars(statement))
