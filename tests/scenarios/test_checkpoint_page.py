"""A job with ``--checkpoint-dir`` and ``--service``: its checkpoints are in the answer of the service."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mainstay.recovery.checkpoint.catalog import find
from mainstay.service.demo.stack import JOB
from tests.fork_server.processes import Warm, warm_stack

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("control")]


def test_the_service_shows_the_steps_on_disk(
    warm: Warm, warm_service: Warm, free_port: Callable[[], int], tmp_path: Path
) -> None:
    checkpoints = tmp_path / "checkpoints"
    stack = warm_stack(warm_service, warm, tmp_path / "stack", free_port())
    told: dict[str, Any] = {}

    def complete() -> list[dict[str, Any]]:
        told.update(stack.api.get(f"/jobs/{JOB}/checkpoints")["checkpoints"] or {})
        return [step for step in told.get("steps", ()) if step["state"] == "complete"]

    try:
        stack.start_service("serve")
        pace = ";".join(f"sleep:rank={rank},step=0,ms=100" for rank in range(4))
        options = {"--checkpoint-dir": checkpoints, "--checkpoint-interval": 10}
        words = ("--batch", "1", "--micro-batches", "2", "--faults", pace)
        stack.start_job(steps=100, seed=5, save=tmp_path / "saved", options=options, words=words)
        stack.until(lambda: bool(stack.api.get("/jobs")["items"]), 60.0, "the job")
        stack.until(lambda: len(complete()) == 2, 120.0, "two complete steps")
        newest, older = complete()
        assert newest["previous"] == older["step"] == newest["step"] - 10
        assert newest["seconds_lost"] > 0.0
        assert newest["full_bytes"] <= newest["disk_bytes"]
        stack.until(lambda: "share the directory" in complete()[0]["survives"], 60.0, "the durability")
        stack.wait_for_job(120.0)
        stack.until(lambda: complete()[0]["step"] == 100, 30.0, "the last step")
        assert (told["run"], told["directory"]) == (find(checkpoints).manifest.run, str(checkpoints))
        assert complete()[0]["nodes"] == ["demo-a", "demo-b"]
    finally:
        stack.close()
