"""--shard-snapshots: a killed rank and a lost node come back bit-equal although no slot holds the whole state."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.lib_job import Job
from mainstay.recovery.checkpoint.catalog import runs
from tests.fork_server.processes import Warm
from tests.recovery.sdk.ranks import run_ranks

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("training")]

STEPS = 60
SCRIPT = f"""
import sys, time
import numpy as np, torch, torch.distributed as dist
import mainstay

mesh = mainstay.init(dp=2)
torch.manual_seed(1)
layers = torch.nn.Linear(64, 300), torch.nn.BatchNorm1d(300), torch.nn.ReLU(), torch.nn.Linear(300, 1)
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
counts = {{"samples": 0}}
torch.manual_seed(2 + mesh.rank)  # random numbers and running statistics are each rank's own
run = mainstay.attach(model, optimizer, extra={{"counts": counts}})
for step in run.steps({STEPS}):
    with run.step():
        x = torch.rand(8, 64)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=mesh.dp)
        optimizer.step()
        counts["samples"] += len(x)
        time.sleep(0.04)
state = {{f"model.{{k}}": v.numpy() for k, v in model.state_dict().items()}}
state |= {{f"moment.{{i}}": s["exp_avg_sq"].numpy() for i, s in enumerate(optimizer.state.values())}}
np.savez(f"{{sys.argv[1]}}/rank-{{mesh.rank}}.npz", samples=counts["samples"], torch=torch.rand(4).numpy(), **state)
"""


def job(warm: Warm, directory: Path, *options: str) -> Job:
    saved = directory / "saved"
    saved.mkdir(parents=True)
    script = directory / "script.py"
    script.write_text(SCRIPT)
    return warm.job(
        directory=directory / "job", script=script, arguments=[str(saved)], nodes=2, per_node=1, options=options
    )


def arena_bytes(running: Job) -> int:
    return sum(path.stat().st_size for path in running.shm.rglob("rank-*.arena"))


@pytest.fixture(scope="module")
def undisturbed(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """The final state without a fault and without sharding, and the bytes of all arenas."""
    directory = tmp_path_factory.mktemp("undisturbed")
    with job(warm, directory, "--parity-interval", "0") as running:
        running.wait_step(1)
        nbytes = arena_bytes(running)
        assert running.wait() == [0, 0], running.tail()
    return directory / "saved", nbytes


def assert_bit_equal(found: Path, undisturbed: Path) -> None:
    for rank in range(2):
        name = f"rank-{rank}.npz"
        assert (found / name).read_bytes() == (undisturbed / name).read_bytes()


def sources(running: Job) -> list[list[str]]:
    plans = [event["data"]["plan"] for event in running.events("recovery_planned")]
    return [[restore["source"] for restore in plan["alternatives"][0]["restores"]] for plan in plans]


def test_a_killed_process_gathers_its_replicas_part(warm: Warm, tmp_path: Path, undisturbed: tuple[Path, int]) -> None:
    with job(warm, tmp_path, "--shard-snapshots", "--parity-interval", "0") as running:
        running.wait_step(1)
        assert arena_bytes(running) < 0.75 * undisturbed[1], "each replica keeps a half of what both hold"
        for number, (step, rank) in enumerate(((6, 1), (24, 0))):
            running.wait_step(step)
            running.kill(rank)
            recovered = running.wait_recoveries(number + 1)
            assert recovered["data"]["steps_lost"] <= 1
        assert running.wait() == [0, 0], running.tail()
    assert all(plan[victim] == "local_slot" for plan, victim in zip(sources(running), (1, 0), strict=True))
    assert_bit_equal(tmp_path / "saved", undisturbed[0])


def test_a_lost_node_is_rebuilt_from_parity_and_its_replicas_part(
    warm: Warm, tmp_path: Path, undisturbed: tuple[Path, int]
) -> None:
    with job(warm, tmp_path, "--shard-snapshots", "--parity-interval", "1", "--standbys", "1") as running:
        running.wait_step(8)
        running.launchers[1].kill()
        running.launchers[1].wait()
        running.launchers = running.launchers[:1]
        running.wait_recoveries(1)
        assert running.wait() == [0], running.tail()
    assert sources(running)[-1][1] == "parity"
    assert_bit_equal(tmp_path / "saved", undisturbed[0])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["--shard-snapshots"], ["--shard-snapshots"]),
        (["--shard-snapshots"], []),
        (["--checkpoint-replicas", "1"], ["--shard-snapshots"]),
    ],
)
def test_checkpoints_of_shares_outlive_everything(
    warm: Warm, tmp_path: Path, undisturbed: tuple[Path, int], before: list[str], after: list[str]
) -> None:
    """All memory is lost; the next start resumes, cut as the first one or otherwise."""
    checkpoints = tmp_path / "checkpoints"
    disk = ["--checkpoint-interval", "4", "--checkpoint-dir", str(checkpoints), "--parity-interval", "0"]

    def whole() -> bool:
        found = [m for run in runs(checkpoints) for m in run.complete()] if checkpoints.is_dir() else []
        return any(m.epoch >= 8 and (m.shares is True or m.sliced is True) for m in found)

    with job(warm, tmp_path / "first", *before, *disk) as running:
        running.until(whole, 120.0, "a step in shares")
        for launcher in running.launchers:
            launcher.kill()
            launcher.wait()
    with job(warm, tmp_path / "second", *after, *disk, "--resume", "latest") as running:
        assert running.wait() == [0, 0], running.tail()
    assert_bit_equal(tmp_path / "second" / "saved", undisturbed[0])


def _unlike(rank: int) -> list[str]:
    """The errors of equal ranks, of experts that were made alike, of optimizers, and of parameters that differ."""
    import torch
    import torch.distributed as dist

    from mainstay.recovery.memory.global_slices import DeclaredSlices
    from mainstay.recovery.memory.state import TrainerState
    from mainstay.recovery.sdk.replica_check import optimizer_digest, require_equal

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    state = TrainerState(model, optimizer)
    experts = TrainerState(model, optimizer, sharding=DeclaredSlices({"weight": (0, rank, 2)}, 0, 1))
    found = []

    def check(of: TrainerState) -> None:
        try:
            words = optimizer_digest(of, optimizer), model.parameters(), dist.group.WORLD, torch.device("cpu")
            found.append(str(require_equal(*words)))
        except ValueError as error:
            found.append(str(error))

    check(state)
    check(experts)
    model.weight.grad = torch.full_like(model.weight, float(rank))
    optimizer.param_groups[0]["lr"] = 0.0  # as at the first step of a warm-up
    optimizer.step()
    check(state)
    optimizer.state.clear()
    with torch.no_grad():
        model.weight[0, 0] += rank
    check(state)
    return found


def test_ranks_that_are_no_replicas_are_refused() -> None:
    for words in run_ranks(_unlike, 2):
        assert words[0] == "None"
        assert ["leave the option out" in word for word in words] == [False, True, True, True]
