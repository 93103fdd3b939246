"""Which held validations go: how many of a sweep's run at the same time, and only on nodes without jobs.

Validations under one switch share an uplink: those that ran at the same time would measure each other.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from sqlalchemy import select

from mainstay.service.common.db import AnySession, WriteSession
from mainstay.service.fleet.models import NodeRow
from mainstay.service.jobs import occupancy
from mainstay.service.settings import Settings
from mainstay.service.validation import service
from mainstay.service.validation.models import SweepRow, SweepRunRow, ValidationRow, ValidationState
from mainstay.service.validation.suites import is_exclusive


def occupied_reason(row: ValidationRow, jobs: Mapping[str, Sequence[str]]) -> str | None:
    """Why the validation may not run now: it would disturb these jobs of ``Occupancy.by_node``. None: it may."""
    allowed = row.allow_occupied or not is_exclusive(row.suite, row.benchmarks)
    return None if allowed else occupancy.occupied_reason(jobs, row.node)


def wait_for_job(session: WriteSession, row: ValidationRow, why: str, *, now: float, settings: Settings) -> None:
    """Hold a queued validation back, or skip it if it has waited until its deadline."""
    if not row.held:
        row.held = True
        service.set_deadline(session, row, settings, now=now)
    elif row.deadline_at <= now:
        skipped = ValidationState.EXPIRED, f"skipped: {why}"
        service.end_unmeasured(session, row, *skipped, now=now, settings=settings)
        return
    if row.reason != why:
        row.reason = why
        service.publish(session, row)


def holding_runs(session: AnySession) -> list[str | None]:
    """Runs that hold validations back; None stands for all validations of no run."""
    statement = select(ValidationRow.run_id).where(service.IS_PENDING, ValidationRow.held)
    return list(dict.fromkeys(session.scalars(statement)))  # SQL's DISTINCT would read the index of all runs


def release(
    session: WriteSession, run_id: str | None, jobs: Mapping[str, Sequence[str]], *, now: float, settings: Settings
) -> int:
    """Let as many of a run's held validations go as its sweep's limits and ``jobs`` (node -> jobs) allow; how many.

    A node shares with those under the same nearest switch, or in the same rack if it names no switch; one that
    names neither shares with none. A sweep that was deleted meanwhile limits nothing.
    """
    # Two ticks at once would each fill the limit.
    run = None if run_id is None else session.get(SweepRunRow, run_id, with_for_update=True)
    sweep = None if run is None else session.get(SweepRow, run.sweep_id)
    columns = (ValidationRow.id, ValidationRow.node, ValidationRow.reason, ValidationRow.deadline_at)
    of_run = session.execute(select(*columns).where(ValidationRow.run_id == run_id, service.IS_PENDING))
    # Thousands may wait for a job for hours: those are not loaded.
    looked_at = [
        key for key, node, why, until in of_run if until <= now or why != occupancy.occupied_reason(jobs, node)
    ]
    statement = (
        select(ValidationRow, NodeRow.switches, NodeRow.rack)
        .outerjoin(NodeRow, NodeRow.name == ValidationRow.node)
        .where(ValidationRow.id.in_(looked_at))
        .order_by(ValidationRow.created_at, ValidationRow.node)
    )
    pending = [(row, above(row.node, switches, rack)) for row, switches, rack in session.execute(statement)]
    most = math.inf if sweep is None or sweep.max_concurrent is None else sweep.max_concurrent
    each = math.inf if sweep is None or sweep.max_per_switch is None else sweep.max_per_switch
    busy = Counter(place for row, place in pending if not row.held)
    running, released = busy.total(), 0
    for row, place in pending:
        if not row.held:
            continue
        if why := occupied_reason(row, jobs):
            wait_for_job(session, row, why, now=now, settings=settings)
        elif running + released < most and busy[place] < each:
            row.held, row.reason = False, "waiting for the node to fetch the task"
            service.set_deadline(session, row, settings, now=now)
            busy[place] += 1
            released += 1
            service.publish(session, row)
    return released


def above(node: str, switches: Sequence[str] | None, rack: str | None) -> str:
    """What the node shares its uplink by."""
    if switches:
        return f"switch {switches[0]}"
    return f"rack {rack}" if rack else f"node {node}"
