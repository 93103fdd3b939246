"""What is known of a node, gathered from the features that know it, for the rules of its life cycle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from typing import Final

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
_EVICTS: Final = (
    FindingRow.active,
    FindingRow.recommended_action.in_(EVICTING),
    FindingRow.kind != FindingKind.NODE_LOST.value,
)


def gather_facts(
    session: AnySession, row: NodeRow, *, now: float, settings: Settings, suite: str | None = None
) -> NodeFacts:
    """Everything that the rules may ask about a node; ``suite`` is the one that is ordered, or that ended."""
    return gather_facts_of_nodes(session, [row], now=now, settings=settings, suite_for=lambda _: suite)[row.name]


def gather_facts_of_nodes(
    session: AnySession,
    rows: Collection[NodeRow],
    *,
    now: float,
    settings: Settings,
    suite_for: Callable[[NodeVerdictRow | None], str | None] = lambda _: None,
) -> dict[str, NodeFacts]:
    """The same for many nodes, by name: as many queries as for one; ``suite_for`` names a node's suite."""
    names, timeout = [row.name for row in rows], settings.fleet.heartbeat_timeout_seconds
    jobs, suspected = by_node(session), suspicions(session, names)
    evicted = Counter(session.scalars(select(FindingRow.node).where(FindingRow.node.in_(names), *_EVICTS)))
    verdicts = session.scalars(select(NodeVerdictRow).where(NodeVerdictRow.node.in_(names)))
    current = {verdict.node: verdict for verdict in verdicts}

    def facts_of(row: NodeRow) -> NodeFacts:
        verdict = current.get(row.name)
        suite = suite_for(verdict)
        return NodeFacts(
            state=HealthState(row.state),
            suspected=row.name in suspected,
            silent=is_silent(row, now, timeout),
            jobs=tuple(jobs.get(row.name, ())),
            evicting=evicted[row.name],
            verdict=None if verdict is None else Verdict(verdict.verdict),
            needed=0 if verdict is None else verdict.power,
            power=0 if suite is None else power_of(suite),
        )

    return {row.name: facts_of(row) for row in rows}


def is_silent(row: NodeRow, now: float, heartbeat_timeout_seconds: float) -> bool:
    """Whether the node sent no report for too long, or sent a shutdown notice."""
    return row.stopped_at is not None or row.last_seen_at is None or now - row.last_seen_at > heartbeat_timeout_seconds


def evicting(session: AnySession, node: str) -> list[FindingRow]:
    """Active findings about a node whose recommended action evicts; a silent node alone has none."""
    return list(session.scalars(select(FindingRow).where(FindingRow.node == node, *_EVICTS)))
