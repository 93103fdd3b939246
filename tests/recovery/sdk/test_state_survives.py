"""Everything that a step moves on survives: buffers, schedules, and random numbers that no step seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fork_server.processes import Warm

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.xdist_group("training")]

SCRIPT = """
import random, sys, time
import numpy as np, torch, torch.distributed as dist
import mainstay

mesh = mainstay.init(dp=2)
torch.manual_seed(1); model = torch.nn.Sequential(
    torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.Dropout(0.3), torch.nn.ReLU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.1)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40)
counts = {"samples": 0}
torch.manual_seed(2); np.random.seed(3); random.seed(4)  # never of the rank: a peer may stand in
run = mainstay.attach(model, optimizer, extra={"schedule": schedule, "counts": counts})
for step in run.steps(40):
    with run.step():
        x = torch.from_numpy(np.random.rand(8, 16).astype("float32")) + random.random()
        if sys.argv[2] == "own":  # each replica its own data, so its own running statistics
            x = x + torch.rand(8, 16, generator=torch.Generator().manual_seed(1000 * step + mesh.rank))
        optimizer.zero_grad()
        loss = (model(x) - torch.randn(8, 1)).square().mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=mesh.dp)
        optimizer.step()
        schedule.step()
        counts["samples"] += len(x)
        time.sleep(0.02)
        seen = torch.tensor([float(loss.detach())]); dist.all_reduce(seen)
state = {f"model.{k}": v.numpy() for k, v in model.state_dict().items()}
state |= {"lr": schedule.get_last_lr()[0], "samples": counts["samples"], "steps": schedule.last_epoch,
          "torch": torch.rand(4).numpy(), "numpy": np.random.rand(4), "python": random.random()}
np.savez(f"{sys.argv[1]}/rank-{mesh.rank}.npz", **state)
"""


def train(warm: Warm, directory: Path, data: str, kills: tuple[tuple[int, int], ...]) -> Path:
    saved = directory / "saved"
    saved.mkdir(parents=True)
    script = directory / "script.py"
    script.write_text(SCRIPT)
    with warm.job(directory=directory / "job", script=script, arguments=[str(saved), data], nodes=1, per_node=2) as job:
        for number, (step, rank) in enumerate(kills):
            job.wait_step(step)
            job.kill(rank)
            job.wait_recoveries(number + 1)
        assert job.wait(100.0) == [0], job.tail()
    assert "DEGRADED" not in job.tail(100)
    return saved


@pytest.mark.parametrize("data", ["same", "own"])
def test_two_kills_change_nothing(warm: Warm, data: str, tmp_path: Path) -> None:
    expected = train(warm, tmp_path / "undisturbed", data, ())
    found = train(warm, tmp_path / "killed", data, ((4, 1), (14, 0)))
    for rank in range(2):
        name = f"rank-{rank}.npz"
        assert (found / name).read_bytes() == (expected / name).read_bytes()
