"""Two nodes die at once with all their memory: no rank has a data-parallel peer, only the scheme brings them back."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from bench.lib_job import Job
from tests.fork_server.processes import Warm
from tests.scenarios.pace import FEW, finish, paced
from tests.scenarios.same_bits import assert_same_bits

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("training")]

STEPS = 30
NODES = 4
SHAPE = ["--dp", "1", "--pp", str(NODES), "--layers", str(NODES)]
ARGUMENTS = ["--steps", str(STEPS), "--seed", "11", "--width", "32", "--batch", "1", *FEW, *SHAPE]


@pytest.fixture(scope="module")
def undisturbed(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Final parameters of the plain script: no launcher, no snapshots, no fault."""
    return warm.undisturbed(tmp_path_factory.mktemp("plain"), ARGUMENTS, NODES)


def lose(job: Job, *numbers: int) -> None:
    """SIGKILL launchers, and with them all processes of their nodes; their memory goes as with the power."""
    doomed = {pid for number in numbers for pid in job.children(number)}
    for number in numbers:
        job.launchers[number].kill()
    for number in numbers:
        job.launchers[number].wait()
        for directory in job.shm.glob(f"*/job/node-{number}"):
            shutil.rmtree(directory, ignore_errors=True)
    job.launchers = [launcher for number, launcher in enumerate(job.launchers) if number not in numbers]
    deadline = time.monotonic() + 30.0
    while any(Path(f"/proc/{pid}").exists() for pid in doomed):  # the job itself may end meanwhile, and rightly so
        assert time.monotonic() < deadline, "the nodes' processes did not end"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("protect", "lost", "source"),
    [
        (["--protection", "rs:2"], (2, 3), "parity"),
        # Groups of two, each on the two racks: a whole rack goes.
        (
            [
                "--protection",
                "copies:2",
                "--failure-domain",
                "node-2=b",
                "--failure-domain",
                "node-3=b",
                "--failure-domain",
                "a",
            ],
            (2, 3),
            "peer_copy",
        ),
    ],
    ids=["rs", "copies"],
)
def test_two_nodes_with_their_memory_at_once(
    warm: Warm, tmp_path: Path, undisturbed: Path, *, protect: list[str], lost: tuple[int, ...], source: str
) -> None:
    job = warm.job(
        directory=tmp_path / "job",
        arguments=[*ARGUMENTS, *paced(tmp_path / "job", 50), "--save", str(tmp_path / "saved")],
        nodes=NODES,
        per_node=1,
        options=["--parity-interval", "4", "--standbys", "2", *protect],
    )
    with job:
        job.wait_step(14)
        lose(job, *lost)
        job.wait_recoveries(1, 120.0)
        assert finish(job) == [0, 0], job.tail()
    assert_same_bits(tmp_path / "saved", undisturbed, NODES)
    assert job.state()["state"] == "finished"
    assert {rank["node"] for rank in job.state()["topology"]["ranks"]} == {"node-0", "node-1"}
    plan = job.events("recovery_planned")[-1]["data"]["plan"]
    restores = {r["rank"]: r["source"] for r in plan["alternatives"][0]["restores"]}
    # A copy that lies where its rank goes is that node's own slot at once.
    assert {restores[rank] for rank in lost} <= ({source} if source == "parity" else {source, "local_slot"})
    assert all(event["data"]["steps_lost"] <= 8 for event in job.events("recovery_completed"))


def test_a_third_node_is_beyond_the_promise_and_said_so(warm: Warm, tmp_path: Path) -> None:
    """XOR covers one of the two that go: nothing is made up, the job ends with the reason."""
    job = warm.job(
        directory=tmp_path / "job", arguments=[*ARGUMENTS, *paced(tmp_path / "job", 50)], nodes=NODES, per_node=1,
        options=["--parity-interval", "4", "--standbys", "2", "--protection", "xor"],
    )  # fmt: skip
    with job:
        job.wait_step(10)
        lose(job, 2, 3)
        assert job.wait() == [1, 1], job.tail()
    assert job.state()["state"] == "failed"
    assert "it covers one loss" in job.tail()
