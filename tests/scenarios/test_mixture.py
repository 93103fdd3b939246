"""A mixture of experts on four processes: a rank is killed, and the job resumes at other numbers of expert ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from bench.lib_job import Job
from mainstay.recovery.checkpoint.catalog import find
from mainstay.recovery.mesh_shape import MeshShape
from tests.fork_server.processes import ROOT, Warm
from tests.recovery.checkpoint.experts import BATCH, Model, Tensors, Topology, data, fill, piece, state_tensors
from tests.scenarios.pace import finish, pausing

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("training")]

SCRIPT, STEPS = Path(__file__).with_name("mixture.py"), 12
ROUNDING = 1e-12
"""Absolute, of parameters and moments near 1 in float64: updates that add in another order differ by 1e-15 each."""


def alone(kind: str, steps: int) -> Tensors:
    """The whole model after ``steps`` steps on one rank, which this process makes itself."""
    topology = Topology(MeshShape(dp=1, pp=1), 1, kind == "named")
    model = Model(topology, 0).double()
    fill(model, topology, 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    for step in range(steps):
        optimizer.zero_grad()
        ((model(data(step)) - data(step).roll(1, 1)).square().sum() / BATCH).backward()
        optimizer.step()
    return {name: tensor.clone() for name, tensor in state_tensors(model, optimizer).items()}


def read_ranks(directory: Path, topology: Topology, name: str) -> list[Tensors]:
    """What each rank wrote."""
    paths = [directory / f"{name}-rank{rank}.npz" for rank in range(topology.shape.world_size)]
    return [{key: torch.from_numpy(array) for key, array in np.load(path).items()} for path in paths]


def whole(ranks: list[Tensors], topology: Topology) -> Tensors:
    """Put together by hand; replicas must agree to the bit."""
    found: Tensors = {}
    for rank, tensors in enumerate(ranks):
        for name, tensor in tensors.items():
            stacked = ".experts." in name and tensor.dim() == 3
            made = torch.cat([peer[name] for peer in ranks[: topology.ep]]) if stacked else tensor
            assert torch.equal(found.setdefault(name, made), made), name
            assert torch.equal(piece(topology, rank, name, found), tensor), name
    return found


def apart(a: Tensors, b: Tensors) -> float:
    assert a.keys() == b.keys()
    return max((a[name] - b[name]).abs().max().item() for name in a)


def job(warm: Warm, home: Path, topology: Topology, *words: str) -> Job:
    """Words: kind of experts, steps, and options."""
    dp, (kind, steps, *options) = topology.shape.dp, words
    directory = home / f"dp{dp}-ep{topology.ep}"
    (directory / "said").mkdir(parents=True)
    run = ["--dp", str(dp), "--pp", "1", "--checkpoint-dir", str(home / "checkpoints"), *options]
    return warm.job(
        directory=directory, script=SCRIPT, arguments=[steps, str(directory / "said"), str(topology.ep), kind],
        nodes=1, per_node=dp, options=run, environment={"PYTHONPATH": str(ROOT), **pausing(directory)},
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["stacked", "named", "dtensor"])
def test_experts_come_back_after_a_kill_and_at_other_sizes(warm: Warm, tmp_path: Path, kind: str) -> None:
    """Where ranks hold other experts than one another, they do not divide the writing though it is asked for."""
    topology, steps = Topology(MeshShape(dp=4, pp=1), 2, kind == "named"), STEPS
    with job(warm, tmp_path, topology, kind, str(steps), "--checkpoint-replicas", "1") as running:
        running.wait_step(2)
        running.kill(1)
        recovered = running.wait_recoveries(1)
        assert recovered["data"]["steps_lost"] <= 1
        assert finish(running) == [0], running.tail()
        assert "--checkpoint-replicas has no effect" in running.tail(100_000)
    manifest = find(tmp_path / "checkpoints").manifest
    assert (manifest.epoch, len(manifest.parts), manifest.needs_all) == (STEPS, 4, True)
    before = whole(read_ranks(tmp_path / "dp4-ep2" / "said", topology, "end"), topology)
    assert apart(before, alone(kind, steps)) <= ROUNDING
    for dp, ep in ((4, 4), (1, 1)):
        topology = Topology(MeshShape(dp=dp, pp=1), ep, kind == "named")
        with job(warm, tmp_path, topology, kind, str(steps + 3), "--resume", "latest") as running:
            assert finish(running) == [0], running.tail()
        said = tmp_path / f"dp{dp}-ep{ep}" / "said"
        begun = whole(read_ranks(said, topology, f"start-{steps}"), topology)
        assert begun.keys() == before.keys()
        assert all(torch.equal(begun[name], before[name]) for name in before)
        steps, before = steps + 3, whole(read_ranks(said, topology, "end"), topology)
        assert apart(before, alone(kind, steps)) <= ROUNDING
