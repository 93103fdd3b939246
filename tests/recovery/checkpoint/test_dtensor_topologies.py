"""Steps of FSDP2, HSDP, DTensor tensor parallelism, and whole models, each resumed as each other; uneven cuts too."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from mainstay.recovery.checkpoint import save
from mainstay.recovery.checkpoint.catalog import RunDirectory
from mainstay.recovery.checkpoint.manifest import DiskConfig
from mainstay.recovery.checkpoint.reshape import gather, needed, sources
from mainstay.recovery.memory.state import TrainerState
from mainstay.recovery.mesh_shape import MeshShape
from mainstay.recovery.protocol.worker_messages import RestoreOrder
from mainstay.recovery.recovery_plan import RestoreSource
from mainstay.recovery.sdk.snapshot_session import SnapshotSession
from tests.recovery.checkpoint.state_part import write_state
from tests.recovery.sdk.ranks import run_ranks

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300)]

WORLD, WIDTH, EPOCH = 4, 6, 2
Tensors = dict[str, torch.Tensor]


class Model(torch.nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.up = torch.nn.Linear(WIDTH, hidden)
        self.down = torch.nn.Linear(hidden, WIDTH)
        self.norm = torch.nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm(self.down(torch.tanh(self.up(x))))
        return y


def flat(model: Model, mesh: DeviceMesh) -> None:
    fully_shard(model, mesh=mesh)


def tensor_parallel(model: Model, mesh: DeviceMesh) -> None:
    """One dimension of ``up.weight`` is cut by both, which FSDP2 says with ``_StridedShard``."""
    parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})


def both(model: Model, mesh: DeviceMesh) -> None:
    tensor_parallel(model, mesh)
    fully_shard(model, mesh=mesh["dp"])


Cut = Callable[[Model, DeviceMesh], None]
TOPOLOGIES: dict[str, tuple[MeshShape, list[Any], Cut]] = {
    "fsdp4": (MeshShape(dp=4, pp=1), [0, 1, 2, 3], flat),
    "fsdp2": (MeshShape(dp=2, pp=1), [0, 1], flat),
    "hsdp2x2": (MeshShape(dp=4, pp=1), [[0, 1], [2, 3]], flat),
    "hsdp2x2-apart": (MeshShape(dp=4, pp=1), [[0, 2], [1, 3]], flat),
    "fsdp2xtp2": (MeshShape(dp=2, pp=1, tp=2), [[0, 1], [2, 3]], both),
    "tp2": (MeshShape(dp=2, pp=1, tp=2), [[0, 1], [2, 3]], tensor_parallel),
    "whole": (MeshShape(dp=4, pp=1), [0, 1, 2, 3], lambda *_: None),
}
"""Name -> shape of the job, ranks of its mesh, and how the model is cut."""


class Job:
    """This rank of a job of one topology, after two steps."""

    def __init__(self, name: str, mesh: DeviceMesh, hidden: int, seed: int) -> None:
        self.name, self.shape, self.rank = name, TOPOLOGIES[name][0], dist.get_rank()
        torch.manual_seed(seed)
        self.model = Model(hidden)
        TOPOLOGIES[name][2](self.model, mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1, foreach=False)
        self.state = TrainerState(self.model, self.optimizer)
        for step in range(EPOCH):
            self.optimizer.zero_grad()
            x = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(seed + step))
            self.model(x).square().mean().backward()
            self.optimizer.step()

    def whole_tensors(self) -> Tensors:
        """Copies by their names in a checkpoint, put together by torch."""
        found: Tensors = {}
        for name, parameter in self.model.named_parameters():
            found[f"model.{name}"] = parameter.detach()
            state = self.optimizer.state[parameter]
            found |= {f"optimizer.state.{name}.{key}": value for key, value in state.items()}
        return {name: _whole(tensor).clone() for name, tensor in found.items()}

    def save(self, home: Path) -> save.WriteTarget:
        run = f"01997c4e-8f00-7000-8000-{[*TOPOLOGIES].index(self.name):012}"
        config = DiskConfig(run=run, generation=1, every=1, dp=self.shape.dp, pp=1, tp=self.shape.tp)
        target = save.WriteTarget(home / "checkpoints", "job", config)
        write_state(target, self.state, EPOCH, self.rank, home / f"{self.name}-{self.rank}")
        return target

    def load(self, run: RunDirectory) -> None:
        """As the coordinator orders it, and the rank carries it out."""
        manifest = run.manifest(EPOCH)
        parts = sources(manifest, self.shape, self.rank)
        order = RestoreOrder(
            epoch=EPOCH, source=RestoreSource.DISK, from_rank=parts[0][0], directory=str(run.path.parent),
            run=run.id, part=parts[0][1], parts=parts if needed(manifest, self.shape, self.rank) else (),
        )  # fmt: skip
        session = cast(Any, SimpleNamespace(_rank=self.rank, sharded=None, _whole=self.state))
        found = SnapshotSession._parts(session, order)
        found = found or parts[:1]  # this rank's own slot, which the agent reads as it is
        self.state.load(gather(run, EPOCH, found, self.state.layout, self.state.slices, stages=1))


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _differ(found: Tensors, wanted: Tensors, what: str) -> list[str]:
    assert found.keys() == wanted.keys()
    return [f"{what}: {name}" for name in wanted if not torch.equal(found[name], wanted[name])]


def exchange(rank: int, home: Path, hidden: int) -> tuple[int, list[str]]:
    """Pairs of topologies that were tried, and the tensors that differ; none is good."""
    meshes = {
        name: DeviceMesh("cpu", ranks, mesh_dim_names=("dp", "tp") if isinstance(ranks[0], list) else ("dp",))
        for name, (_, ranks, _) in TOPOLOGIES.items()
    }
    mine = [name for name, (shape, *_) in TOPOLOGIES.items() if rank < shape.world_size]
    jobs = {name: Job(name, meshes[name], hidden, [*TOPOLOGIES].index(name)) for name in mine}
    said = [{name: job.whole_tensors() for name, job in jobs.items()}]
    dist.broadcast_object_list(said)
    targets = {name: job.save(home) for name, job in jobs.items()}
    dist.barrier()
    made = [{name: target.run.path for name, target in targets.items()}]
    if rank == 0:
        assert all(save.commit(target, EPOCH) for target in targets.values())
    dist.broadcast_object_list(made)
    wrong, tried = [], 0
    for before, after in itertools.permutations(TOPOLOGIES, 2):
        tried += 1
        if after in jobs:
            jobs[after].load(RunDirectory(made[0][before]))
            wrong += _differ(jobs[after].whole_tensors(), said[0][before], f"{before} -> {after} on rank {rank}")
    if rank == 0:
        wrong += _read_plainly(made[0], said[0])
    return tried, wrong


def _read_plainly(runs: dict[str, Path], said: dict[str, Tensors]) -> list[str]:
    wrong = []
    for name, path in runs.items():
        plain = {key: torch.zeros_like(tensor) for key, tensor in said[name].items()}
        reader = dcp.FileSystemReader(RunDirectory(path).step(EPOCH))
        dcp.load(plain, storage_reader=reader, no_dist=True)
        wrong += _differ(plain, said[name], f"{name} -> dcp.load")
    return wrong


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("hidden", [8, 10], ids=["even", "uneven"])
def test_each_topology_resumes_as_each_other(hidden: int, tmp_path: Path) -> None:
    for tried, wrong in run_ranks(exchange, WORLD, tmp_path, hidden, seconds=240.0):
        assert tried == len(TOPOLOGIES) * (len(TOPOLOGIES) - 1) == 42
        assert not wrong
