"""gpud's component states as events of ours: only a change is an event.

gpud tells every state again each time it is asked; what it said last is kept by (node, component, state name). A state
that is ``Initializing`` says nothing and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from sqlalchemy import and_

from mainstay.probes.core_types import EventKind, RecommendedAction
from mainstay.service.common.db import WriteSession
from mainstay.service.common.rows import insert_into
from mainstay.service.events.schemas import EventIn
from mainstay.service.sources.ids import content_id
from mainstay.service.sources.models import ReportedHealthRow
from mainstay.service.sources.schemas import GpudComponent, GpudState, read_time

SOURCE: Final = "gpud"
_HEALTHY: Final = "Healthy"
_SILENT: Final = "Initializing"
_FATAL: Final = "Unhealthy"
_REMEDIES: Final = {
    "IGNORE_NO_ACTION_REQUIRED": RecommendedAction.NONE,
    "CHECK_USER_APP_AND_GPU": RecommendedAction.RESTART_JOB,
    "REBOOT_SYSTEM": RecommendedAction.REBOOT_NODE,
    "HARDWARE_INSPECTION": RecommendedAction.INSPECT_NODE,
}


def changes(session: WriteSession, node: str, told: Sequence[GpudComponent], *, now: float) -> list[EventIn]:
    """Events for the states that are not what they were; the first word about a healthy one is none."""
    found = []
    for check, state in _states(told):
        action = _action(state)
        health = state.health if state.health == _HEALTHY else f"{state.health} {action}".strip()[:64]
        time = now if state.time is None else read_time(state.time)
        before = _exchange(session, node, check, health, time)
        if before is None or (before == "" and state.health == _HEALTHY):
            continue
        found.append(_event(node, check, state, action, time))
    return found


def _states(told: Sequence[GpudComponent]) -> Iterator[tuple[str, GpudState]]:
    """(check, state), each check once: of several states of one name the worst counts."""
    order = (_HEALTHY, "Degraded", _FATAL)
    worst: dict[str, GpudState] = {}
    for part in told:
        for state in part.states:
            check = part.component if state.name in {"", part.component} else f"{part.component}/{state.name}"[:200]
            if state.health == _SILENT:
                continue
            held = worst.get(check)
            if held is None or order.index(state.health) > order.index(held.health):
                worst[check] = state
    yield from sorted(worst.items(), key=lambda item: item[0])


def _action(state: GpudState) -> str:
    """The first action that gpud names: it puts the one to try first there."""
    actions = state.suggested_actions.repair_actions if state.suggested_actions else None
    return actions[0] if actions and state.health != _HEALTHY else ""


def _exchange(session: WriteSession, node: str, check: str, health: str, time: float) -> str | None:
    """Store the new state; return the previous one ("" for none), or None when nothing changed."""
    row = session.get(ReportedHealthRow, (SOURCE, node, check), populate_existing=True)
    before = "" if row is None else row.health
    values = {"source": SOURCE, "node": node, "check": check, "health": health, "time": time}
    statement = insert_into(session, ReportedHealthRow).values(**values)
    # Compared in the database, so that of two that say the same at the same moment one is news.
    news = and_(ReportedHealthRow.health != health, ReportedHealthRow.time <= time)
    written = session.scalar(
        statement.on_conflict_do_update(
            index_elements=["source", "node", "check_name"], set_={"health": health, "time": time}, where=news
        ).returning(ReportedHealthRow.check)
    )
    return None if written is None else before


def _event(node: str, check: str, state: GpudState, action: str, time: float) -> EventIn:
    healthy = state.health == _HEALTHY
    data: dict[str, Any] = {
        "source": SOURCE,
        "check": check,
        "fatal": state.health == _FATAL,
        "healthy": healthy,
        "message": (state.reason or state.error or "")[:2000],
        "recommended_action": (
            RecommendedAction.NONE if healthy else _REMEDIES.get(action, RecommendedAction.MONITOR)
        ).value,
        "codes": [],
        "health": state.health,
        "action": action,
    }
    key = content_id(time, SOURCE, node, check, state.health, action, time)
    return EventIn(id=key, time=time, kind=EventKind.HEALTH_REPORT, node=node, device=None, data=data)
