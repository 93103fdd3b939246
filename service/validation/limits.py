"""How many validations of a sweep's run go at the same time, and where.

Validations under one switch share an uplink: those that ran at the same time would measure each other.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from sqlalchemy import select

from mainstay.service.common.db import AnySession, WriteSession
from mainstay.service.fleet.models import NodeRow
from mainstay.service.settings import Settings
from mainstay.service.validation import service
from mainstay.service.validation.models import SweepRow, SweepRunRow, ValidationRow, ValidationState


def limited_runs(session: AnySession) -> list[str]:
    """Runs that hold validations back."""
    statement = (
        select(ValidationRow.run_id)
        .distinct()
        .where(ValidationRow.state == ValidationState.QUEUED, ValidationRow.held, ValidationRow.run_id.is_not(None))
    )
    return [run for run in session.scalars(statement) if run is not None]


def release(session: WriteSession, run_id: str, *, now: float, settings: Settings) -> int:
    """Let as many of a run's held validations go as its sweep's limits allow; how many.

    A node shares with those under the same nearest switch, or in the same rack if it names no switch; one that
    names neither shares with none. A sweep that was deleted meanwhile limits nothing.
    """
    run = session.get(SweepRunRow, run_id, with_for_update=True)  # two ticks at once would each fill the limit
    sweep = None if run is None else session.get(SweepRow, run.sweep_id)
    statement = (
        select(ValidationRow, NodeRow.switches, NodeRow.rack)
        .outerjoin(NodeRow, NodeRow.name == ValidationRow.node)
        .where(ValidationRow.run_id == run_id, service.IS_PENDING)
        .order_by(ValidationRow.created_at, ValidationRow.node)
    )
    pending = [(row, above(row.node, switches, rack)) for row, switches, rack in session.execute(statement)]
    most = math.inf if sweep is None or sweep.max_concurrent is None else sweep.max_concurrent
    each = math.inf if sweep is None or sweep.max_per_switch is None else sweep.max_per_switch
    busy = Counter(place for row, place in pending if not row.held)
    released = 0
    for row, place in pending:
        if row.held and busy.total() < most and busy[place] < each:
            row.held, row.reason = False, "waiting for the node to fetch the task"
            service.set_deadline(row, settings, now=now)
            busy[place] += 1
            released += 1
            service.publish(session, row)
    return released


def above(node: str, switches: Sequence[str] | None, rack: str | None) -> str:
    """What the node shares its uplink by."""
    if switches:
        return f"switch {switches[0]}"
    return f"rack {rack}" if rack else f"node {node}"
