"""The job as ``PUT /v1/jobs/{id}`` wants it, and an exit as the detectors want it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import msgspec

from mainstay.detectors.finding import Entity
from mainstay.detectors.job.mesh import JobMesh, mesh_of
from mainstay.recovery.controller.job import Job
from mainstay.recovery.controller.job_requests import JobRequests
from mainstay.recovery.controller.state.job_state import JobPhase
from mainstay.recovery.membership.grouping import arrange
from mainstay.recovery.membership.members import RankMember
from mainstay.recovery.mesh_shape import MeshShape
from mainstay.recovery.protocol.messages import Exited
from mainstay.recovery.protocol.worker_messages import ScriptFailed

_MOST_WARNINGS: Final = 64
"""Sentences about domains that the scheme does not cover: after so many the scheme is the wrong one."""


FormedRanks = tuple[int, JobMesh, tuple[Entity, ...], tuple[str, ...]]
"""A generation, the mesh of its ranks, and for each of them the entity and its pipeline stage, as detectors want it."""


def form(job: Job, ranks: Collection[RankMember]) -> FormedRanks:
    """Say who ``ranks`` are in the present generation."""
    told, numbers = topology(job), {rank.number for rank in ranks}
    mesh = mesh_of(job.options.job, {**told, "ranks": [place for place in told["ranks"] if place["rank"] in numbers]})
    entities = tuple(Entity(job=job.options.job, rank=rank.number, node=rank.node) for rank in ranks)
    return job.state.generation, mesh, entities, tuple(f"stage-{stage}" for stage in mesh.on("pp").tolist())


def topology(job: Job) -> dict[str, Any]:
    """Where each rank is, as the job report tells it."""
    ranks = job.members.ranks
    shape = job.members.shape or MeshShape(dp=len(ranks), pp=1)
    return {
        "dp": shape.dp,
        "pp": shape.pp,
        "tp": shape.tp,
        **({"pipeline_depths": list(shape.depths)} if shape.depths else {}),
        "world_size": shape.world_size,
        "ranks": [_rank(shape, rank) for rank in ranks],
        "standbys": job.members.standbys(),
    }


def job_report(job: Job, durability: dict[str, Any] | None, requests: JobRequests) -> dict[str, Any]:
    """JobReport of the contract. A job that is still forming is running: nothing is wrong with it."""
    # One literal on purpose: it mirrors the contract field by field, and each condition is the default of one field.
    options, ranks = job.options, job.members.ranks
    group = max((len(group) for group in job.state.groups), default=0)
    return {
        "name": options.job,
        "state": (JobPhase.RUNNING if job.state.phase is JobPhase.FORMING else job.state.phase).value,
        "generation": job.state.generation,
        "command": [options.script, *options.argv],
        "topology": topology(job),
        "protection": {
            "slots": min((r.attached.slots if r.attached else 0 for r in ranks), default=0),
            "parity_every": job.state.parity_every or None if group else None,
            "parity_group": group or None,
            "disk_every": job.state.disk_every or None,
            "state_bytes": [r.attached.state_bytes if r.attached else 0 for r in ranks],
            "run": job.state.run if options.checkpoint_dir is not None else None,
            "warnings": list(arrange(job.members, options)[1])[:_MOST_WARNINGS],
            "durability": durability,
        },
        "steps_total": job.state.steps_total,
        "last_step": min((r.epoch for r in job.members.present), default=0),
        "started_at": job.state.started_at,
        "finished_at": job.state.finished_at,
        "requests": msgspec.to_builtins(requests.results()),
        "request_obstacles": requests.obstacles(),
    }


def exit_data(error: ScriptFailed | None, message: Exited) -> dict[str, Any]:
    """Data of a ``process_exit`` event: how it ended, and the last that was seen of it.

    ``tail`` holds its last lines, ``stderr`` the last of those on stderr; ``out_of_memory`` is there when the kernel
    says that it killed for memory just then, ``peak_bytes`` is the most memory that it had; ``error`` and ``traceback``
    are the exception that the script raised. One that ended with an error code while we were about to end it failed by
    itself: it may be the first failure, of which we heard second.
    """
    expected = message.expected and not message.exit_code
    data: dict[str, Any] = {"pid": message.pid, "expected": expected, "tail": list(message.tail)}
    data |= {"exit_code": message.exit_code} if message.signal is None else {"signal": message.signal}
    if message.stderr:
        data["stderr"] = list(message.stderr)
    if message.peak_bytes is not None:
        data["peak_bytes"] = message.peak_bytes
    if message.out_of_memory:
        data["out_of_memory"] = True
    if error is not None:
        data |= {"error": error.error, "traceback": error.traceback}
    return data


def _rank(shape: MeshShape, rank: RankMember) -> dict[str, Any]:
    dp, pp, tp = shape.place(rank.number)
    return {
        "rank": rank.number,
        "dp": dp,
        "pp": pp,
        "tp": tp,
        "node": rank.node,
        "device": None,
        "pid": rank.pid,
        "state": rank.state,
    }
