"""A live run is recorded through the API and replayed from files: the same rank is blamed, at the same moment."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from mainstay.detectors.finding import Finding
from mainstay.detectors.recording.reader import RecordingDirectory
from mainstay.probes.signals import SignalSource
from mainstay.service.demo.stack import JOB, NODES, Stack, free_port
from tests.fork_server.processes import Warm, warm_stack
from tests.scenarios.pace import UNHURRIED
from tests.scenarios.test_readme import RECORD, REPLAY, run

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(240), pytest.mark.xdist_group("control")]


@pytest.fixture
def stack(tmp_path: Path, warm: Warm, warm_service: Warm):
    made = warm_stack(warm_service, warm, tmp_path, free_port(), UNHURRIED)
    try:
        made.start_service("serve")
        made.start_node(NODES[0])
        made.start_job(steps=4000, seed=5, save=tmp_path / "saved")
        yield made
    finally:
        made.close()


@pytest.fixture
def command(stack: Stack, warm_service: Warm) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        line, env = [str(warm_service.python), "-m", "mainstay", *words], {**os.environ, **stack.env}
        return subprocess.run(line, capture_output=True, text=True, check=False, timeout=120, env=env)

    return run


def pids(stack: Stack) -> dict[int, int]:
    jobs = stack.api.get("/jobs")["items"]
    return {r["rank"]: r["pid"] for r in jobs[0]["topology"]["ranks"]} if jobs else {}


def exits(stack: Stack) -> list[dict]:
    found = stack.api.get("/findings", job=JOB, limit=50)["items"]
    return [one for one in found if one["kind"] == "process_exit"]


def test_what_was_live_is_said_again(
    stack: Stack, warm_service: Warm, command: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """By the README's command lines, as they are written there, and with options."""
    stack.until(lambda: (stack.api.get("/jobs")["items"] or [{}])[0].get("last_step", 0) > 10, 90.0, "ten steps")
    os.kill(pids(stack)[2], signal.SIGKILL)
    stack.until(lambda: bool(exits(stack)), 30.0, "the finding")
    [live] = exits(stack)
    stack.until(lambda: stack.api.get(f"/jobs/{JOB}")["state"] == "running", 60.0, "the recovery")
    token = str(stack.data_dir / "admin-token")
    place = tmp_path / "rec"

    written = run(warm_service.python, RECORD, tmp_path, MAINSTAY_SERVICE=stack.api.url, MAINSTAY_TOKEN_FILE=token)

    assert written.returncode == 0, written.stderr
    assert "rows of steps" in written.stdout
    replayed = run(warm_service.python, REPLAY, tmp_path)
    assert replayed.returncode == 0, replayed.stderr
    assert "findings" in replayed.stdout.lower()
    out = tmp_path / "findings.jsonl"
    replayed = command("replay", str(place), "--output", str(out))
    assert replayed.returncode == 0, replayed.stderr
    found = [msgspec.json.decode(line, type=Finding) for line in out.read_bytes().splitlines()]
    [said] = [one for one in found if one.kind == "process_exit" and one.active]
    assert (said.entity.rank, said.time, said.evidence.summary) == (
        2,
        live["time"],
        live["evidence"]["summary"],
    )
    recording = RecordingDirectory(place)
    steps = next(recording.steps(JOB))
    assert len(steps.entities) == 4
    assert sum(len(chunk.t) for chunk in recording.devices(SignalSource.HOST)) > 5
    service = ("--service", stack.api.url, "--token-file", token)
    again = command("record", str(place), *service)
    assert again.returncode == 2
    assert "holds a recording already" in again.stderr
    absent = command("record", str(tmp_path / "none"), "--job", "absent", *service)
    assert absent.returncode == 2
    assert "no job 'absent'" in absent.stderr
