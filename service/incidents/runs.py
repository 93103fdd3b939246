"""The running jobs, as their feeds need them: the entities of the ranks, and which ranks are peers.

A job of 16,384 ranks has a topology of two megabytes, and its coordinator repeats it every few seconds. So rows are
read again only when a report came, and what stayed the same stays the same object: detectors look at identity first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from mainstay.detectors.finding import Entity
from mainstay.detectors.job.earlier_runs import EarlierRuns
from mainstay.detectors.job.mesh import JobMesh, mesh_of
from mainstay.service.common.db import AnySession
from mainstay.service.incidents import earlier_runs
from mainstay.service.jobs.models import JobRow
from mainstay.service.jobs.repository import LIVE

MAX_RUNS = 256
"""Limit of evaluated jobs, the newest first; the stores keep as many."""
Switches = Mapping[str, tuple[str, ...]]
"""Node -> the switches above it, nearest first; absent where not reported."""


@dataclass(frozen=True, eq=False)
class RunningJob:
    """One running job. The object stays the same while nothing in it changes."""

    job: str
    started_at: float
    mesh: JobMesh
    entities: tuple[Entity, ...]
    """One per rank, in the order of the mesh."""
    groups: tuple[str, ...]
    """The role of each rank: its pipeline stage, because only ranks of one stage do the same work."""
    earlier: EarlierRuns | None = None
    """With which the pace of this run is to be compared; None if it was."""


def run_of(
    job: str,
    started_at: float,
    topology: Mapping[str, Any],
    switches: Switches | None = None,
    earlier: EarlierRuns | None = None,
) -> RunningJob:
    mesh = mesh_of(job, topology, switches)
    places = zip(mesh.ranks.tolist(), mesh.nodes, strict=True)
    return RunningJob(
        job=job,
        started_at=started_at,
        mesh=mesh,
        entities=tuple(Entity(job=job, rank=rank, node=node) for rank, node in places),
        groups=tuple(f"pp{stage}" for stage in mesh.on("pp").tolist()),
        earlier=earlier,
    )


@dataclass(frozen=True, slots=True)
class _Known:
    reported_at: float
    places: tuple[tuple[Any, ...], ...]
    switches: Switches
    run: RunningJob


class Runs:
    """Reads running jobs, and again only what changed."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def read(
        self, session: AnySession, switches: Switches, wanted: Callable[[str], bool] | None = None
    ) -> tuple[RunningJob, ...]:
        """Running and recovering jobs, by id. Pass the same ``switches`` again while they do not change.

        Args:
            session: reads.
            switches: above each node.
            wanted: whether a job is read; None for all.
        """
        statement = select(JobRow.id, JobRow.last_seen_at).where(LIVE)
        rows = session.execute(statement.order_by(JobRow.started_at.desc(), JobRow.id.desc()).limit(MAX_RUNS)).all()
        fresh = {}
        for job, reported_at in rows:
            if wanted is not None and not wanted(job):
                continue
            known = self._known.get(job)
            if known is None or known.reported_at != reported_at or known.switches is not switches:
                known = self._look(session, job, switches)
            if known is not None:
                fresh[job] = known
        self._known = fresh
        return tuple(fresh[job].run for job in sorted(fresh))

    def _look(self, session: AnySession, job: str, switches: Switches) -> _Known | None:
        statement = select(JobRow.started_at, JobRow.last_seen_at, JobRow.topology).where(JobRow.id == job)
        row = session.execute(statement).one_or_none()
        if row is None:
            return None
        started_at, reported_at, topology = row
        places = tuple((r["rank"], r["dp"], r["pp"], r["tp"], r["node"], r["device"]) for r in topology["ranks"])
        nodes = {place[4] for place in places}
        mine = {node: switches[node] for node in nodes if node in switches}
        known = self._known.get(job)
        if known is not None and (known.run.started_at, known.places) == (started_at, places):
            before = {node: known.switches[node] for node in nodes if node in known.switches}
            if before == mine:
                return _Known(reported_at, places, switches, known.run)
        earlier = earlier_runs.read(session, job, started_at)  # again: a job has its shape later than launchers
        return _Known(reported_at, places, switches, run_of(job, started_at, topology, mine, earlier))
