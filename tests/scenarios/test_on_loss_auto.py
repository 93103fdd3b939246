"""``--on-loss auto`` with real ranks: what is lost is waited for where that is quick, and left out where it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.lib_job import free_port
from tests.fork_server.processes import Warm
from tests.scenarios.pace import FEW, finish, paced
from tests.scenarios.same_bits import assert_same_bits

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("training")]

STEPS = 60
ARGUMENTS = [
    "--steps", str(STEPS), "--seed", "11", "--width", "32", "--layers", "2", "--batch", "1", *FEW, "--canonical",
]  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Final parameters of the plain script."""
    return warm.undisturbed(tmp_path_factory.mktemp("plain"), ARGUMENTS)


def test_a_standby_is_waited_for_and_a_lost_node_is_not(warm: Warm, tmp_path: Path, undisturbed: Path) -> None:
    """Two nodes, each a replica of two stages and one standby: a rank, and later a whole node, are killed."""
    saved = tmp_path / "saved"
    job = warm.job(
        directory=tmp_path / "job",
        arguments=[*ARGUMENTS, *paced(tmp_path / "job", 120), "--save", str(saved)],
        options=["--standbys", "1", "--on-loss", "auto", "--parity-interval", "5"],
        port=free_port(),
    )
    with job:
        job.wait_step(6)
        job.until(lambda: job.state()["topology"]["standbys"] == {"node-0": 1, "node-1": 1}, 60.0, "warm standbys")
        job.kill(3)
        job.until(lambda: job.events("recovery_completed"), 60.0, "the standby in its place")
        job.wait_step(16)
        lost = job.launchers.pop()
        lost.kill()
        lost.wait()
        job.until(lambda: len(job.events("recovery_completed")) >= 2, 60.0, "continuing without the node")
        for arena in job.shm.rglob("*/job/node-1/*.arena"):
            arena.unlink()
        job.launchers.append(job._start(1, job.port))
        job.until(lambda: len(job.events("recovery_completed")) >= 3, 90.0, "the node taken back")
        assert finish(job) == [0, 0], job.tail()
    assert_same_bits(saved, undisturbed, 4)
    decided = [event["data"]["decision"] for event in job.events("recovery_planned") if "decision" in event["data"]]
    assert [told["fault"] for told in decided] == ["process", "node"]
    assert decided[0]["chosen"][0] in {"local_slot", "peer_copy", "standby_swap"}
    # One standby is left for two lost ranks. Which of these is cheaper depends on the step times just measured.
    (degraded,) = decided[1]["chosen"]
    assert degraded in {"drop_and_heal", "reroute_coupled"}
    outcomes = [event["data"].get("outcome") for event in job.events("recovery_completed")]
    ways = [None if told is None else told["strategy"] for told in outcomes]
    assert ways[1:] == [degraded, None], "nothing is lost when a replica comes back"
    for told in outcomes[:2]:
        assert told["predicted_s"] > 0.0
        assert told["measured_s"] > 0.0
        assert told["excess_cost_s"] >= 0.0
