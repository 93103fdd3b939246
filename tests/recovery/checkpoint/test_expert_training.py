"""Mixtures of experts that train over gloo at ep 1, 2, and 4, each resumed as each other, and trained on.

Experts are ``DTensor`` on a mesh of (replicas, ep), pieces that the script cuts itself, or modules with their names.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from mainstay.recovery.checkpoint import save
from mainstay.recovery.checkpoint.catalog import RunDirectory
from mainstay.recovery.checkpoint.manifest import DiskConfig
from mainstay.recovery.memory.global_slices import DeclaredSlices
from mainstay.recovery.memory.state import TrainerState
from mainstay.recovery.mesh_shape import MeshShape
from tests.recovery.checkpoint.experts import (
    BATCH,
    Model,
    Tensors,
    Topology,
    data,
    distribute,
    fill,
    load,
    piece,
    sharding,
    state_tensors,
)
from tests.recovery.checkpoint.state_part import write_state
from tests.recovery.sdk.ranks import run_ranks

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300)]

WORLD, EPOCH, MORE = 4, 3, 20
ROUNDING = 1e-12
"""Absolute, of parameters and moments near 1 in float64: 20 updates that add in another order differ by 1e-15 each."""

JOBS: dict[str, tuple[int, list[list[int]], str]] = {
    "stacked-dp1": (1, [[0]], "declared"),
    "stacked-dp4": (4, [[0], [1], [2], [3]], "declared"),
    "declared-dp2-ep2": (2, [[0, 1]], "declared"),
    "declared-dp4-ep2": (4, [[0, 1], [2, 3]], "declared"),
    "dtensor-dp4-ep2": (4, [[0, 1], [2, 3]], "dtensor"),
    "dtensor-dp4-ep4": (4, [[0, 1, 2, 3]], "dtensor"),
    "named-dp1": (1, [[0]], "named"),
    "named-dp2-ep2": (2, [[0, 1]], "named"),
    "named-dp4-ep2": (4, [[0, 1], [2, 3]], "named"),
    "named-dp4-ep4": (4, [[0, 1, 2, 3]], "named"),
}
"""Name -> data-parallel ranks, those of each expert-parallel group, and how experts are held."""
PAIRS = [(a, b) for a, b in itertools.permutations(JOBS, 2) if a.startswith("named") == b.startswith("named")]
TRAINED_ON = {"stacked-dp1", "dtensor-dp4-ep4", "named-dp1", "named-dp4-ep4"}
"""Steps after which each other job trains on."""


class Job:
    """This rank of one job. Every process makes it, because groups are formed by all."""

    def __init__(self, name: str, seed: int) -> None:
        dp, rows, self.kind = JOBS[name]
        self.name, self.rank, ep = name, dist.get_rank(), len(rows[0])
        self.topology = Topology(MeshShape(dp=dp, pp=1), ep, self.kind == "named")
        self.here = self.rank < dp
        mesh = DeviceMesh("cpu", rows, mesh_dim_names=("replicas", "ep"))
        self.dp = dist.new_group(range(dp))
        if not self.here:
            return
        self.copies = mesh["replicas"].get_group()
        self.model = Model(self.topology, self.rank).double()
        self.model.group = mesh["ep"].get_group() if ep > 1 else None
        fill(self.model, self.topology, self.rank, seed)
        if self.kind == "dtensor":
            distribute(self.model, mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, foreach=False)
        cut = None if self.kind == "dtensor" else sharding(self.topology, self.rank, self.model)
        declared = DeclaredSlices(cut or {}, 0, 1)
        self.state = TrainerState(self.model, self.optimizer, {}, {}, declared)

    def train(self, first: int, last: int) -> None:
        """Steps ``first`` to ``last - 1``."""
        for step in range(first, last) if self.here else ():
            self.optimizer.zero_grad()
            x = data(step).chunk(self.topology.shape.dp)[self.rank]
            ((self.model(x) - x.roll(1, 1)).square().sum() / BATCH).backward()
            for name, parameter in self.model.named_parameters():
                gradient = parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad
                dist.all_reduce(gradient, group=self.copies if ".experts." in name else self.dp)
            self.optimizer.step()

    def whole(self) -> Tensors:
        """What all ranks hold together, put together by hand; called by all."""
        mine = {n: t.clone() for n, t in state_tensors(self.model, self.optimizer).items()} if self.here else {}
        told: list[Any] = [None] * WORLD
        dist.all_gather_object(told, mine)
        found: Tensors = {}
        for rank in range(self.topology.shape.dp):
            for name, tensor in told[rank].items():
                rows = [told[peer][name] for peer in range(self.topology.ep)] if _is_stacked(name, tensor) else [tensor]
                made = torch.cat(rows) if len(rows) > 1 else rows[0]
                assert torch.equal(found.setdefault(name, made), made), f"replicas differ in {name}"
                assert torch.equal(piece(self.topology, rank, name, found), tensor), f"copies differ in {name}"
        return found

    def save(self, home: Path, number: int) -> Path:
        run = f"01997c4e-8f00-7000-8000-{number:012}"
        config = DiskConfig(run=run, generation=1, every=1, dp=self.topology.shape.dp, pp=1, tp=1)
        target = save.WriteTarget(home / "checkpoints", "job", config)
        if self.here:
            write_state(target, self.state, EPOCH, self.rank, home / f"{self.name}-{self.rank}")
        dist.barrier()
        if self.rank == 0:
            assert save.commit(target, EPOCH)
        dist.barrier()
        return target.run.path


def _is_stacked(name: str, tensor: torch.Tensor) -> bool:
    return ".experts." in name and tensor.dim() == 3


def exchange(_: int, home: Path) -> tuple[list[str], float]:
    """Tensors that differ right after a change, and by how much they differ at most 20 steps later."""
    jobs = {name: Job(name, seed) for seed, name in enumerate(JOBS)}
    saved: dict[str, tuple[Path, Tensors, Tensors]] = {}
    for number, (name, job) in enumerate(jobs.items()):
        job.train(0, EPOCH)
        before, path = job.whole(), job.save(home, number)
        job.train(EPOCH, EPOCH + MORE)
        saved[name] = path, before, job.whole()
    wrong, apart = [], 0.0
    for source, name in PAIRS:
        (path, before, later), job = saved[source], jobs[name]
        if job.here:
            run = RunDirectory(path)
            load(run, run.manifest(EPOCH), job.state, job.topology.shape, job.rank)
        found = job.whole()
        assert found.keys() == before.keys()
        wrong += [f"{source} -> {name}: {key}" for key in before if not torch.equal(found[key], before[key])]
        if source not in TRAINED_ON:
            continue
        job.train(EPOCH, EPOCH + MORE)
        apart = max(apart, *((found[key] - later[key]).abs().max().item() for key, found[key] in job.whole().items()))
    return wrong, apart


def test_each_way_to_hold_experts_resumes_from_each_other(tmp_path: Path) -> None:
    assert len(PAIRS) == 6 * 5 + 4 * 3
    for wrong, apart in run_ranks(exchange, WORLD, tmp_path, seconds=240.0):
        assert not wrong
        assert 0.0 < apart < ROUNDING, "another order of additions, and no other numbers"
