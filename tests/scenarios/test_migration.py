"""A rank leaves a living node while the job trains: at most a step is repeated, and the result has the same bits.

And none goes back to a node that is not trusted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.lib_job import Job
from bench.lib_node_warnings import Warner
from mainstay.recovery.job_request import JobRequest, RequestKind, write_request
from tests.fork_server.processes import Warm
from tests.scenarios.pace import FEW, finish, paced
from tests.scenarios.same_bits import assert_same_bits

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("training")]

STEPS = 40
ARGUMENTS = [
    "--steps", str(STEPS), "--seed", "5", "--width", "32", "--batch", "1", "--dp", "1", "--pp", "2", "--layers", "2",
    *FEW,
]  # fmt: skip


def test_a_rank_moves_and_the_bits_are_the_same(warm: Warm, tmp_path: Path) -> None:
    warm.run_plain(tmp_path, [*ARGUMENTS, "--save", str(tmp_path / "plain")], ranks=2)
    job = warm.job(
        directory=tmp_path / "job",
        arguments=[*ARGUMENTS, *paced(tmp_path / "job", 120), "--save", str(tmp_path / "saved")],
        nodes=2, per_node=1, options=["--standbys", "1"],
    )  # fmt: skip
    with job:
        job.wait_step(3)
        before = job.pids()
        request = JobRequest(id="hot", kind=RequestKind.MIGRATE, node="node-1", reason="its fan is broken")
        write_request(job.directory / "node-0", request)
        (finished,) = job.until(lambda: job.events("migration_finished"), 60.0, "the end of the migration")
        assert list(job.shm.glob("*/job/node-1/*.arena")), "the source keeps its slots"
        moved = job.pids()
        assert finish(job) == [0, 0], job.tail()
    told = finished["data"]
    assert told["ok"], told
    assert told["steps_lost"] <= 1
    assert told["moves"] == [{"rank": 1, "from": "node-1", "to": "node-0"}]
    assert moved[0] == before[0], "no other rank was stopped"
    assert moved[1] != before[1]
    assert {rank["node"] for rank in job.state()["topology"]["ranks"]} == {"node-0"}
    assert not job.events("process_exit", "recovery_completed", "recovery_planned")
    assert_same_bits(tmp_path / "saved", tmp_path / "plain", 2)


LONG = 60
THREE = [
    "--steps", str(LONG), "--seed", "5", "--width", "32", "--batch", "1", "--dp", "1", "--pp", "3", "--layers", "3",
    *FEW,
]  # fmt: skip
BRAKE = {"reason": "power brake on gpu-0", "factor": 10.0, "since": 1.0, "corrupt": False, "cordoned": False}


def homes(job: Job) -> list[str]:
    return [rank["node"] for rank in job.state()["topology"]["ranks"]]


def move(job: Job, number: int, **what: Any) -> dict[str, Any]:
    """Ask for migration ``number``, and wait for its end."""
    request = JobRequest(id=f"{number}", kind=RequestKind.MIGRATE, reason="power brake", **what)
    write_request(job.directory / "node-0", request)
    finished = job.until(
        lambda: len(events := job.events("migration_finished")) >= number and events, 120.0, f"migration {number}"
    )
    told: dict[str, Any] = finished[number - 1]["data"]
    assert told["ok"], told
    return told


@pytest.mark.timeout(900)
def test_ranks_never_go_back_to_a_node_whose_brake_holds(warm: Warm, tmp_path: Path) -> None:
    """A node is out, then the one that its rank moved to: all meet on the third, until the first is trusted again."""
    warm.run_plain(tmp_path, [*THREE, "--save", str(tmp_path / "plain")], ranks=3)
    token = tmp_path / "token"
    token.write_text("of-no-one")
    with Warner() as warner:
        job = warm.job(
            directory=tmp_path / "job",
            arguments=[*THREE, *paced(tmp_path / "job", 200), "--save", str(tmp_path / "saved")],
            nodes=3, per_node=1,
            options=["--standbys", "2", "--service", warner.url, "--service-token-file", str(token)],
        )  # fmt: skip

        def standbys(node: str) -> int:
            return int(job.state()["topology"]["standbys"][node])

        with job:
            job.wait_step(3)
            warner.hazards = {"node-1": BRAKE}
            job.until(lambda: standbys("node-1") == 0, 60.0, "the first node out")
            move(job, 1, node="node-1")
            there = homes(job)[1]
            (third,) = {"node-0", "node-2"} - {there}
            warner.hazards = {"node-1": BRAKE, there: BRAKE}
            job.until(lambda: standbys(there) == 0, 60.0, "the second node out")
            move(job, 2, node=there)
            assert homes(job) == [third] * 3, "two standbys waited on node-1, whose brake still holds"

            warner.hazards = {"node-1": BRAKE, there: BRAKE, third: BRAKE}
            job.until(lambda: f"HAZARD node {third}" in job.tail(10_000), 60.0, "the third node out")
            job.kill(1)
            recovered = job.wait_recoveries(1)
            assert homes(job) == [third] * 3, "a false alarm does not end the job"
            assert any("not trusted (power brake on gpu-0)" in line for line in job.tail(10_000).splitlines())

            warner.hazards = {there: BRAKE, third: BRAKE}
            job.until(lambda: standbys("node-1") == 2, 120.0, "the first node trusted again, with its standbys")
            move(job, 3, rank=1)
            assert homes(job) == [third, "node-1", third]
            assert finish(job) == [0, 0, 0], job.tail()
    assert recovered["data"]["steps_lost"] <= 1
    assert_same_bits(tmp_path / "saved", tmp_path / "plain", 3)
