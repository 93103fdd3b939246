"""A script of plain DDP under ``mainstay run``: nothing protects it, and it is measured all the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fork_server.processes import Warm

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.xdist_group("training")]

SCRIPT = """
import json, sys
import torch, torch.distributed as dist
import mainstay
from mainstay.recovery.protocol.worker_messages import ProgressReport
from mainstay.recovery.sdk.launcher_client import LauncherClient

told = []
send = LauncherClient.send_if_free
LauncherClient.send_if_free = lambda self, message: (told.append(message), send(self, message))[1]
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = mainstay.watch(model, optimizer)
for step in run.steps(12):
    with run.step() as report:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 8)).sum()
        loss.backward()
        optimizer.step()
        report(loss)
progress = run._progress.now()
with open(f"{sys.argv[1]}/rank-{dist.get_rank()}.json", "w") as file:
    json.dump({"epochs": [m.epoch for m in told if not isinstance(m, ProgressReport)], "step": progress.step,
               "begun": progress.enqueued, "ended": progress.completed, "generation": progress.generation}, file)
"""


def test_ddp_without_protection_is_measured(warm: Warm, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with warm.job(directory=tmp_path / "job", script=script, arguments=[str(tmp_path)], nodes=1, per_node=2) as job:
        assert job.wait(100.0) == [0], job.tail()
        assert job.state()["last_step"] == 12
        assert job.state()["steps_total"] == 12
    found = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    assert found[0] == found[1]  # the same numbers on both ranks, DDP's own collectives among them
    assert found[0]["epochs"] == list(range(1, 13))
    assert found[0]["begun"] == found[0]["ended"]
    assert found[0]["begun"]["dp"] >= 12
    assert (found[0]["step"], found[0]["generation"]) == (12, 1)
