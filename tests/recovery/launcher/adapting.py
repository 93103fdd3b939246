"""What ranks say, and agents write, where a job can be started in another shape."""

from __future__ import annotations

from typing import Any

from mainstay.recovery.checkpoint.manifest import (
    MANIFEST,
    Manifest,
    PartEntry,
    RunInfo,
    run_name,
    step_name,
    write_checked,
)
from mainstay.recovery.mesh_shape import MeshShape
from mainstay.recovery.protocol.worker_messages import Attached


async def adapt(world: Any, *, cuts: bool = False) -> None:
    """The script of every rank can be started in another shape; ``cuts``: with another tp too."""
    for node in world.nodes:
        for rank in node.pids:
            node.send_report(rank, Attached(state_bytes=100, slots=2, protected=True, adapts=True, cuts=cuts))
    ranks = world.coordinator.job.members.ranks
    await world.until(lambda: all(rank.attached and rank.attached.adapts for rank in ranks))


def whole_step(world: Any, epoch: int, shape: MeshShape, *, lost: int | None = None, model_names: bool = True) -> None:
    """What the agents are about to write, as far as a coordinator looks at it; without the part of ``lost``."""
    run = world.coordinator.job.options.checkpoint_dir / world.coordinator.job.state.run
    (run / step_name(epoch)).mkdir(parents=True)
    cuts: dict[str, Any] = {"dp": shape.dp, "pp": shape.pp, "tp": 1}
    cuts |= {"depths": shape.depths} if shape.depths else {}
    write_checked(run / run_name(1), RunInfo(run=run.name, job="job", generation=1, **cuts))
    there = [rank for rank in range(shape.world_size) if rank != lost]
    parts = tuple(PartEntry(rank=rank, generation=1, nbytes=100, check="") for rank in there)
    cuts |= {"model_names": True} if model_names else {}
    made = Manifest(run=run.name, job="job", epoch=epoch, replicated=True, time=1.0, parts=parts, **cuts)
    write_checked(run / step_name(epoch) / MANIFEST, made)
