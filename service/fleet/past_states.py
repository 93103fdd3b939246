"""States that nodes had: of each node at one time, and how many nodes were in each state over a time.

The state of a node at a time is the one that its earliest later transition left, and its present state where none is
later. So an answer needs no transition before its time, and those may be deleted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, CompoundSelect, Integer, case, cast, func, literal, null, select, union_all
from sqlalchemy.orm import InstrumentedAttribute

from mainstay.probes.core_types import HealthState
from mainstay.service.common.db import AnySession
from mainstay.service.common.rows import unix_seconds
from mainstay.service.fleet.directory import Fleet
from mainstay.service.fleet.models import NodeRow, TransitionRow
from mainstay.service.incidents.models import IncidentRow

_DAY: Final = 86_400.0
_STATES: Final = {state.value: place for place, state in enumerate(HealthState)}


def known_since(fleet: Fleet, retention_days: float, now: float) -> float:
    """Unix seconds from which states are known: when the first node came, or what retention keeps."""
    first = min((node.first_seen_at for node in fleet.nodes.values()), default=now)
    return max(first, now - retention_days * _DAY)


def states_at(session: AnySession, at: float) -> dict[str, str]:
    """Node → its state at a time in Unix seconds from ``known_since`` to now; without nodes that came later."""
    # One look into an index for each node: a window over all transitions takes SQLite four times as long. Transitions
    # of one time are in the order of their versions; that of their ids may be another.
    later = select(TransitionRow.from_state).where(TransitionRow.node == NodeRow.name, TransitionRow.time > at)
    first = later.order_by(TransitionRow.time, TransitionRow.version).limit(1).scalar_subquery()
    statement = select(NodeRow.name, func.coalesce(first, NodeRow.state)).where(NodeRow.first_seen_at <= at)
    rows = session.connection().execute(statement)
    return {name: state for name, state in rows}  # noqa: C416 - rows are no tuples to mypy


@dataclass(frozen=True, slots=True)
class Timespan:
    """Unix seconds in buckets of one width. A bucket holds its end and not its start."""

    since: float
    until: float
    buckets: int

    @property
    def ends(self) -> NDArray[np.float64]:
        """[bucket] its end; the last one is ``until``."""
        return np.linspace(self.since, self.until, self.buckets + 1)[1:]

    def index(self, session: AnySession, time: InstrumentedAttribute[Any]) -> ColumnElement[int]:
        """The bucket of a time after ``since``; ``buckets`` if it is after ``until``. Rounding may make 0 to -1."""
        # Counted from the end: SQLite, which may lack floor(), rounds towards zero.
        before = (self.until - unix_seconds(session, time)) * (self.buckets / (self.until - self.since))
        if session.get_bind().dialect.name == "postgresql":  # it rounds to the nearest
            before = func.floor(before)
        return case((time > self.until, self.buckets), else_=self.buckets - 1 - cast(before, Integer))


def count_states(session: AnySession, span: Timespan) -> NDArray[np.intp]:
    """[bucket, state] how many nodes were in a state at the end of a bucket; states as in ``HealthState``."""
    moves, first = span.index(session, TransitionRow.time), span.index(session, NodeRow.first_seen_at)
    node, none = literal(HealthState.UNKNOWN.value), null()
    # One statement sees one state of the database. A node comes as unknown, see ``NodeRow.state``.
    statement: CompoundSelect[Any] = union_all(
        select(literal(span.buckets + 1), none, NodeRow.state, func.count()).group_by(NodeRow.state),
        select(first, none, node, func.count()).where(NodeRow.first_seen_at > span.since).group_by(first),
        select(moves, TransitionRow.from_state, TransitionRow.to_state, func.count())
        .where(TransitionRow.time > span.since)
        .group_by(moves, TransitionRow.from_state, TransitionRow.to_state),
    )
    changes = np.zeros((span.buckets + 2, len(_STATES)), np.intp)
    for bucket, left, entered, count in session.connection().execute(statement):
        changes[max(0, bucket), _STATES[entered]] += count
        if left is not None:
            changes[max(0, bucket), _STATES[left]] -= count
    # From the present, at the end, back: what changed after a bucket is taken away.
    changes[:-1] *= -1
    later: NDArray[np.intp] = np.cumsum(changes[::-1], axis=0)[::-1]
    return later[1:-1]


def count_incidents(session: AnySession, span: Timespan) -> NDArray[np.intp]:
    """[bucket] how many incidents opened in it."""
    opened, index = IncidentRow.opened_at, span.index(session, IncidentRow.opened_at)
    statement = select(index, func.count()).where(opened > span.since, opened <= span.until).group_by(index)
    counts = np.zeros(span.buckets, np.intp)
    for bucket, count in session.connection().execute(statement):
        counts[max(0, bucket)] += count
    return counts
