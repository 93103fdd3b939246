"""The paces of earlier runs of a job, with which a new run is compared.

Invariant: a run is compared once, before its own pace is stored. Runs are alike if they have the same name, mesh, and
hardware, and equally much training state; what is not known does not count as different. Only the process that
evaluates a job (``detection_shards.py``) reads and writes the paces of its runs.
"""

from __future__ import annotations

import logging
import math
from typing import Final

from sqlalchemy import select

from mainstay.detectors.job.earlier_runs import EarlierRuns, RunPace
from mainstay.detectors.job.expected_pace import SIGNALS
from mainstay.probes.ids import uuid7
from mainstay.service.common.db import AnySession, WriteSession
from mainstay.service.fleet.models import DeviceRow, NodeRow
from mainstay.service.incidents.models import RunPaceRow
from mainstay.service.jobs import repository as jobs
from mainstay.service.jobs.models import JobRow
from mainstay.service.validation.cohorts import hardware, with_software

_log: Final = logging.getLogger(__name__)
COMPARED: Final = 8
"""Earlier runs, the newest: of more, the oldest had other code."""
_READ: Final = 64
_SAME_STATE: Final = 0.01


def read(session: AnySession, job: str, started_at: float) -> EarlierRuns | None:
    """Return earlier runs that are like the present run of a job; None if the pace of this one is stored already."""
    mine = None if _is_stored(session, job, started_at) else _describe(session, job)
    if mine is None:
        return None
    statement = select(RunPaceRow).where(RunPaceRow.name == mine.name, RunPaceRow.shape == mine.shape)
    rows = session.scalars(statement.order_by(RunPaceRow.measured_at.desc()).limit(_READ))
    paces = [pace for row in rows if _alike(mine, row) and (pace := _pace(row)) is not None]
    return EarlierRuns(paces=tuple(paces[:COMPARED]), software=_software(mine.cohort))


def store(session: WriteSession, job: str, started_at: float, pace: RunPace, now: float) -> None:
    """Keep the pace of a run, unless the job has started again since or it is stored already."""
    row = None if _is_stored(session, job, started_at) else _describe(session, job)
    if row is None or row.started_at != started_at:
        return
    row.seconds, row.measured_at, row.nodes = pace.seconds, now, sorted(pace.nodes)
    row.work = [value if math.isfinite(value) else None for value in pace.work]
    session.add(row)


def _is_stored(session: AnySession, job: str, started_at: float) -> bool:
    of_run = select(RunPaceRow.id).where(RunPaceRow.job == job, RunPaceRow.started_at == started_at)
    return session.scalar(of_run) is not None


def _describe(session: AnySession, job: str) -> RunPaceRow | None:
    """Return a row for the present run of a job, without its pace; None if no coordinator reported the job."""
    row = session.get(JobRow, job)
    if row is None:
        return None
    topology, nodes = row.topology, jobs.named_nodes(row.topology)
    cohorts = session.scalars(select(NodeRow.cohort).where(NodeRow.name.in_(nodes)).distinct())
    # The first GPU of each node stands for the others.
    first = DeviceRow.node.in_(nodes) & (DeviceRow.kind == "gpu") & (DeviceRow.index == 0)
    facts = session.scalars(select(DeviceRow.facts).where(first))
    shape = " ".join(f"{axis}{topology[axis]}" for axis in ("dp", "pp", "tp"))
    return RunPaceRow(
        id=uuid7(), job=job, started_at=row.started_at, name=row.name,
        shape=f"{shape} {topology.get('pipeline_depths') or ''}"[:200],
        cohort=with_software("+".join(sorted({*cohorts} - {""})), facts),
        state_bytes=sum(row.protection["state_bytes"]),
    )  # fmt: skip


def _alike(mine: RunPaceRow, other: RunPaceRow) -> bool:
    devices, sizes = {hardware(mine.cohort), hardware(other.cohort)} - {""}, (mine.state_bytes, other.state_bytes)
    return len(devices) < 2 and (0 in sizes or max(sizes) <= (1 + _SAME_STATE) * min(sizes))


def _pace(row: RunPaceRow) -> RunPace | None:
    """Return the stored pace; None for a row that is damaged or of another release."""
    work = [math.nan if value is None else value for value in row.work]
    numbers = [row.seconds, *work]
    if len(work) != len(SIGNALS) or not all(isinstance(value, float | int) for value in numbers) or row.seconds <= 0:
        _log.warning("the pace of run %s of job %s cannot be read and is set aside", row.id, row.job)
        return None
    return RunPace(seconds=row.seconds, work=tuple(work), nodes=frozenset(row.nodes), software=_software(row.cohort))


def _software(cohort: str) -> str:
    return cohort.removeprefix(hardware(cohort)).removeprefix("; ")
