"""Errors inside a step that cost no process: raised by the script, before and behind its update, and a cut network."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.lib_job import Job
from bench.lib_journal import account
from tests.fork_server.processes import Warm
from tests.scenarios.pace import FEW, PACE
from tests.scenarios.same_bits import assert_same_bits

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("training")]

STEPS = 26
ARGUMENTS = ["--steps", str(STEPS), "--seed", "11", "--width", "32", "--layers", "2", "--batch", "1", *FEW]


@pytest.fixture(scope="module")
def undisturbed(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Final parameters of the plain script: no launcher, no snapshots, no fault."""
    return warm.undisturbed(tmp_path_factory.mktemp("plain"), ARGUMENTS)


def faulty(warm: Warm, tmp_path: Path, faults: str) -> Job:
    """Two launchers as two nodes, 2 x 2 ranks, with ``faults``; not started yet."""
    words = [
        *ARGUMENTS,
        "--faults",
        f"{faults};{PACE[1]}",
        "--journal",
        str(tmp_path / "journal"),
        "--save",
        str(tmp_path / "saved"),
    ]
    return warm.job(directory=tmp_path / "job", arguments=words, options=["--parity-interval", "5", "--standbys", "1"])


def assert_whole(job: Job, tmp_path: Path, undisturbed: Path) -> None:
    """The end is that of a run without faults, to the bit, and every sample was counted once."""
    assert job.wait() == [0, 0], job.tail()
    assert len(list((tmp_path / "saved").iterdir())) == 4
    assert_same_bits(tmp_path / "saved", undisturbed, 4)
    told = account([tmp_path / "journal"], steps=STEPS, layers=2)
    assert (told.lost, told.doubled) == (0, 0)


def test_the_same_processes_make_the_step_again(warm: Warm, tmp_path: Path, undisturbed: Path) -> None:
    """Rank 2 raises, rank 1 raises when others have committed the step, and rank 3 loses all its connections."""
    faults = "raise:rank=2,step=6;raise_late:rank=1,step=12;reset:rank=3,step=18"
    with faulty(warm, tmp_path, faults) as job:
        job.wait_step(2)
        before = job.pids()
        job.wait_recoveries(3, 120.0)
        assert job.pids() == before
        assert_whole(job, tmp_path, undisturbed)
    assert not job.events("process_exit", "recovery_failed")
    assert job.state()["generation"] == 4
    assert all(event["data"]["steps_lost"] <= 1 for event in job.events("recovery_completed"))
    assert {event["data"]["digest_match"] for event in job.events("recovery_verified")} == {True}
    log = "".join(job.log(number).read_text() for number in range(2))
    assert "rank 2 raised RetryStep: as --faults wanted in step 6; all make the step again" in log
    assert "rank 2 makes step 6 again" in log, "with the traceback, on the rank's own output"


def test_a_rank_that_raises_again_soon_gets_a_new_process(warm: Warm, tmp_path: Path, undisturbed: Path) -> None:
    """The new process raises in step 9 too, for the first time, and keeps its place: steps were committed between."""
    with faulty(warm, tmp_path, "raise:rank=2,step=6;raise:rank=2,step=9") as job:
        job.wait_step(2)
        before = job.pids()
        job.wait_recoveries(2, 120.0)
        after = job.pids()
        assert {rank for rank in before if before[rank] != after[rank]} == {2}
        assert_whole(job, tmp_path, undisturbed)
    log = "".join(job.log(number).read_text() for number in range(2))
    assert log.count("in step 9; it gets a new process") == 1
    assert log.count("in step 9; all make the step again") == 1
    assert not [event for event in job.events("process_exit") if not event["data"]["expected"]]


def test_an_error_that_nobody_called_transient_costs_the_process(warm: Warm, tmp_path: Path) -> None:
    """As ever: a new process makes the step; this script fails in each, and the job ends."""
    script = tmp_path / "fails.py"
    script.write_text(
        "import torch\nimport mainstay\n"
        "mesh = mainstay.init()\n"
        "model = torch.nn.Linear(2, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "run = mainstay.attach(model, optimizer, retry=(KeyError,))\n"
        "for step in run.steps(5):\n"
        "    with run.step():\n"
        "        if step == 2:\n"
        "            raise KeyError('named') if mesh.generation == 1 else ValueError('not named')\n"
        "        optimizer.step()\n"
    )
    with warm.job(directory=tmp_path / "job", script=script, nodes=1, per_node=1) as job:
        assert job.wait() == [1], job.tail()
    log = job.log(0).read_text()
    assert "rank 0 raised KeyError: 'named'; all make the step again" in log
    exits = [event["data"] for event in job.events("process_exit") if not event["data"]["expected"]]
    assert [data["error"] for data in exits] == ["ValueError: not named"] * 2
