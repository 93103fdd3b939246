"""A job asks the service before its first ranks start: a quarantined node gets none, and an outage stops no job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.lib_job import Job, free_port
from mainstay.service.demo.stack import Stack
from tests.fork_server.processes import Warm
from tests.scenarios.pace import PACE
from tests.scenarios.pair import REPORT

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("control")]

ARGUMENTS = [
    "--steps", "1000000", "--seed", "5", "--width", "64", "--batch", "2", "--dp", "1", "--pp", "2", "--layers", "2",
    *PACE,
]  # fmt: skip


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """A service that knows two nodes; an operator has quarantined node-1."""
    stack = Stack(tmp_path / "stack", free_port())
    try:
        stack.start_service("serve")
        for name in ("node-0", "node-1"):
            stack.api.put(f"/nodes/{name}", REPORT)
        stack.api.post("/nodes/node-1:quarantine", {"reason": "a fan is loose"})
        yield stack
    finally:
        stack.close()


def job(warm: Warm, stack: Stack, directory: Path, *options: str) -> Job:
    """A job of one rank on each node, with a token that is valid for it alone."""
    directory.mkdir()
    token = directory / "token"
    token.write_text(stack.api.post("/auth/tokens", {"name": "job", "kind": "job", "job": "job"})["token"])
    known = ["--service", stack.api.url, "--service-token-file", str(token), *options]
    return warm.job(directory=directory, arguments=ARGUMENTS, nodes=2, per_node=1, options=known)


def nodes(job: Job) -> list[Any]:
    return [rank["node"] for rank in job.state()["topology"]["ranks"]]


def test_no_rank_starts_on_a_quarantined_node(warm: Warm, stack: Stack, tmp_path: Path) -> None:
    with job(warm, stack, tmp_path / "refused", "--standbys", "0") as refused:
        assert refused.wait(120.0) == [1, 1]
        lines = [line for line in refused.log(0).read_text().splitlines() if "job job failed" in line]
    assert len(lines) == 1, lines
    assert "the service refuses node-1 (its state is quarantined); the other nodes have 1 of 2 places" in lines[0]
    assert not refused.events("job_started")

    with job(warm, stack, tmp_path / "moved", "--standbys", "1") as moved:
        moved.wait_step(3)
        assert nodes(moved) == ["node-0", "node-0"]

    with job(warm, stack, tmp_path / "warned", "--standbys", "0", "--admission", "warn") as warned:
        warned.wait_step(3)
        assert nodes(warned) == ["node-0", "node-1"]
        assert "(--admission warn): its state is quarantined" in warned.log(0).read_text()


def test_a_service_that_is_down_stops_no_job(warm: Warm, stack: Stack, tmp_path: Path) -> None:
    made = job(warm, stack, tmp_path / "job", "--standbys", "0")
    stack.children.stop_all()
    with made:
        made.wait_step(3)
        assert nodes(made) == ["node-0", "node-1"]
        assert made.log(0).read_text().count("admission of job job is unknown, the job continues: cannot reach") == 1
