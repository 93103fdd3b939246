"""What is known of a node, gathered from the features that know it, for the rules of its life cycle."""

from __future__ import annotations

from sqlalchemy import select

from detectors.finding import FindingKind
from probes.words import HealthState, Remedy, Verdict
from service.fleet.life_cycle import Facts
from service.fleet.models import NodeRow
from service.incidents.health import suspicion
from service.incidents.models import FindingRow
from service.jobs.repository import by_node
from service.kit.db import AnySession
from service.validation.latch import power_of
from service.validation.models import NodeVerdictRow

EVICTING = tuple(remedy.value for remedy in Remedy if remedy.evicts)


def look(session: AnySession, row: NodeRow, *, now: float, silent_after: float, suite: str | None = None) -> Facts:
    """Everything that the rules may ask about a node; ``suite`` is the one that is ordered, or that ended."""
    standing = session.get(NodeVerdictRow, row.name)
    return Facts(
        state=HealthState(row.state),
        suspected=suspicion(session, row.name) is not None,
        silent=is_silent(row, now, silent_after),
        jobs=tuple(by_node(session).get(row.name, ())),
        evicting=len(evicting(session, row.name)),
        verdict=None if standing is None else Verdict(standing.verdict),
        needed=0 if standing is None else standing.power,
        power=0 if suite is None else power_of(suite),
    )


def is_silent(row: NodeRow, now: float, silent_after: float) -> bool:
    """Whether nothing was heard of it for too long, or it said goodbye."""
    return row.stopped_at is not None or row.last_seen_at is None or now - row.last_seen_at > silent_after


def evicting(session: AnySession, node: str) -> list[FindingRow]:
    """Findings about a node that hold and whose remedy wants work off it; its mere silence is none of them."""
    statement = select(FindingRow).where(
        FindingRow.node == node,
        FindingRow.active,
        FindingRow.remedy.in_(EVICTING),
        FindingRow.kind != FindingKind.NODE_LOST.value,
    )
    return list(session.scalars(statement))
