"""A rank leaves a living node while the job trains: at most a step is repeated, and the result has the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainstay.recovery.migration_request import MigrationKind, MigrationRequest, write_request
from tests.fork_server.processes import Warm
from tests.scenarios.same_bits import assert_same_bits

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("training")]

STEPS = 60
ARGUMENTS = [
    "--steps", str(STEPS), "--seed", "5", "--width", "32", "--batch", "1", "--dp", "1", "--pp", "2", "--layers", "2",
]  # fmt: skip


def test_a_rank_moves_and_the_bits_are_the_same(warm: Warm, tmp_path: Path) -> None:
    warm.run_plain(tmp_path, [*ARGUMENTS, "--save", str(tmp_path / "plain")], ranks=2)
    job = warm.job(
        directory=tmp_path / "job",
        arguments=[*ARGUMENTS, "--save", str(tmp_path / "saved"), "--faults", "sleep:rank=0,step=0,ms=25"],
        nodes=2, per_node=1, options=["--standbys", "1"],
    )  # fmt: skip
    with job:
        job.wait_step(5)
        before = job.pids()
        advice = MigrationRequest(id="hot", kind=MigrationKind.MIGRATE, node="node-1", reason="its fan is broken")
        write_request(job.directory / "node-0", advice)
        (finished,) = job.until(lambda: job.events("migration_finished"), 60.0, "the end of the migration")
        assert list(job.shm.glob("*/job/node-1/*.arena")), "the source keeps its slots"
        moved = job.pids()
        assert job.wait() == [0, 0], job.tail()
    told = finished["data"]
    assert told["ok"], told
    assert told["steps_lost"] <= 1
    assert told["moves"] == [{"rank": 1, "from": "node-1", "to": "node-0"}]
    assert moved[0] == before[0], "no other rank was stopped"
    assert moved[1] != before[1]
    assert {rank["node"] for rank in job.state()["topology"]["ranks"]} == {"node-0"}
    assert not job.events("process_exit", "recovery_completed", "recovery_planned")
    assert_same_bits(tmp_path / "saved", tmp_path / "plain", 2)
