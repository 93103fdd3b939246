"""What a run of a sweep would do now: which nodes it would validate, and how long it would take. Nothing is written."""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush
from statistics import median
from typing import Final

from sqlalchemy import select

from mainstay.service.common.db import ReadSession
from mainstay.service.fleet.lifecycle_facts import is_silent
from mainstay.service.fleet.models import NodeRow
from mainstay.service.fleet.node_selection import select_nodes
from mainstay.service.services import Services
from mainstay.service.validation import limits, sweeps
from mainstay.service.validation.models import SweepRow, ValidationRow, ValidationState
from mainstay.service.validation.schemas import SkippedNodes, SweepCreate, SweepPreview
from mainstay.service.validation.suites import expected_seconds, is_exclusive, require_suite

_NODES: Final = 50
_RUNS: Final = 3
_HISTORY: Final = 20_000
"""Validations whose times are read: the newest."""


def preview(session: ReadSession, services: Services, body: SweepCreate, *, now: float) -> SweepPreview:
    """What a run of this sweep would do now; raises as ``sweeps.create`` does, but a name may be taken."""
    sweep = sweeps.new_row(session, body, now=now)
    matching = select_nodes(session.scalars(select(NodeRow).order_by(NodeRow.name)), sweep, names=sweep.nodes)
    jobs = services.occupancy.by_node(session) if is_exclusive(sweep.suite, sweep.benchmarks) else {}
    timeout, skipped, nodes = services.settings.fleet.heartbeat_timeout_seconds, Counter[str](), list[NodeRow]()
    for node in matching:
        if node.name in jobs:
            skipped["job"] += 1
        elif is_silent(node, now, timeout):
            skipped["silent"] += 1
        else:
            nodes.append(node)
    measured = _measured_seconds(session, sweep)
    stated = expected_seconds(require_suite(sweep.suite), sweep.benchmarks)
    work = [(limits.above(node.name, node.switches, node.rack), measured.get(node.name, stated)) for node in nodes]
    return SweepPreview(
        matched=len(matching),
        validated=len(nodes),
        nodes=[node.name for node in nodes[:_NODES]],
        skipped=[SkippedNodes.model_validate({"reason": why, "count": count}) for why, count in skipped.items()],
        seconds=run_seconds(work, sweep.max_concurrent or math.inf, sweep.max_per_switch or math.inf),
        node_hours=sum(seconds for _, seconds in work) / 3600.0,
        measured=sum(node.name in measured for node in nodes),
        next_runs=sweeps.next_runs(body.model_dump(), now, _RUNS) if body.enabled else [],
    )


def _measured_seconds(session: ReadSession, sweep: SweepRow) -> Mapping[str, float]:
    """Node → median seconds of its validations with the same part of the suite, as far as these were not cancelled."""
    row, found = ValidationRow, defaultdict[str, list[float]](list)
    statement = select(row.node, row.benchmarks, row.started_at, row.finished_at).where(
        row.suite == sweep.suite, row.state == ValidationState.DONE, row.cancelled_at.is_(None)
    )
    for node, part, start, end in session.execute(statement.order_by(row.created_at.desc()).limit(_HISTORY)):
        if part == sweep.benchmarks and start is not None and end is not None:
            found[node].append(end - start)
    return {node: median(seconds) for node, seconds in found.items()}


def run_seconds(work: Iterable[tuple[str, float]], most: float, each: float) -> float:
    """How long validations take that start in order as ``limits.release`` starts them.

    Args:
        work: of each, the place of ``limits.above`` and its seconds.
        most: that run at the same time.
        each: of these, in one place.
    """
    waiting = defaultdict[str, deque[tuple[int, float]]](deque)
    for number, (place, seconds) in enumerate(work):
        waiting[place].append((number, seconds))
    free = [(queue[0][0], place) for place, queue in waiting.items()]  # places with room, by their first in order
    heapify(free)
    running, busy, now = list[tuple[float, str]](), Counter[str](), 0.0
    while free or running:
        if free and len(running) < most:
            _, place = heappop(free)
            heappush(running, (now + waiting[place].popleft()[1], place))
            busy[place] += 1
            has_room = busy[place] < each
        else:
            now, place = heappop(running)
            has_room = busy[place] == each
            busy[place] -= 1
        if has_room and waiting[place]:
            heappush(free, (waiting[place][0][0], place))
    return now
