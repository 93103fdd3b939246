"""Stacks of real processes: one that was stopped, one that sleeps; and why there are none where there are none."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainstay.recovery.node.stacks import StackDumper, find_py_spy, process_state, why_refused
from mainstay.recovery.protocol.messages import Stacks
from mainstay.recovery.protocol.wire import encode
from mainstay.recovery.protocol.worker_messages import MAX_MESSAGE_BYTES

SLEEPER = """
import threading, time
def wait_for_ever(*words):
    print(*words, end="", flush=True)
    time.sleep(1000)
threading.Thread(target=wait_for_ever, name="helper", daemon=True).start()
wait_for_ever("here\\n")
"""

needs_py_spy = pytest.mark.skipif(not find_py_spy(), reason="py-spy is not installed")


@pytest.fixture
def sleeper() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        yield process.pid
        process.kill()


def dump(pid: int, program: str | None = None) -> Stacks:
    async def work() -> Stacks:
        return await StackDumper(program).dump(3, 1, pid)

    return asyncio.run(work())


def until_state(pid: int, state: str) -> None:
    deadline = time.monotonic() + 60.0
    while process_state(pid) != state:
        assert time.monotonic() < deadline
        time.sleep(0.005)


@needs_py_spy
def test_a_stopped_process_shows_where_it_is(sleeper: int) -> None:
    os.kill(sleeper, signal.SIGSTOP)
    until_state(sleeper, "stopped")
    found = dump(sleeper)
    if "ptrace" in found.problem:
        pytest.skip(found.problem)
    assert found.problem == ""
    assert (found.request, found.rank, found.pid, found.tool, found.state) == (3, 1, sleeper, "py-spy", "stopped")
    main, helper = found.stacks
    assert main.thread == "main"
    assert main.frames[0].startswith("wait_for_ever (<string>:")
    assert main.frames[1].startswith("<module> (<string>:")
    assert helper.frames[0].startswith("wait_for_ever")
    assert process_state(sleeper) == "stopped"


@needs_py_spy
def test_a_process_that_runs_is_not_paused(sleeper: int) -> None:
    found = dump(sleeper)
    if "ptrace" in found.problem:
        pytest.skip(found.problem)
    assert found.stacks
    assert found.state == "sleeping"


def test_a_process_that_is_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    found = dump(process.pid)
    assert found.stacks == ()
    assert found.problem
    assert found.state == ""


def test_no_py_spy(sleeper: int) -> None:
    found = dump(sleeper, "")
    assert (found.tool, found.stacks) == ("", ())
    assert "not installed" in found.problem
    assert found.state in {"sleeping", "running"}  # on a busy machine it may still be on its way to sleep


def script(directory: Path, text: str) -> str:
    path = directory / "py-spy"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return str(path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("echo nonsense", "cannot be read"),
        ("echo '[{\"frames\": 3}]'", "cannot be read"),
        ("echo 'Error: Permission denied (os error 13)' >&2; exit 1", "Permission denied (os error 13): allow ptrace"),
        ("exit 3", "exit code 3"),
        ("kill -9 $$", "SIGKILL"),
    ],
)
def test_a_tool_that_fails(tmp_path: Path, text: str, problem: str) -> None:
    assert problem in dump(os.getpid(), script(tmp_path, text)).problem


def test_a_tool_that_is_not_a_program(tmp_path: Path) -> None:
    assert "cannot be started" in dump(os.getpid(), str(tmp_path)).problem


def test_a_tool_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainstay.recovery.node.stacks.DUMP_SECONDS", 0.1)
    program = script(tmp_path, f"echo $$ > {tmp_path}/pid; exec {shutil.which('sleep')} 1000")
    assert "did not answer" in dump(os.getpid(), program).problem
    for _ in range(2):
        written = (tmp_path / "pid").read_text() if (tmp_path / "pid").exists() else ""
        assert not written or not Path(f"/proc/{int(written)}").exists()


def test_an_answer_is_bounded(tmp_path: Path) -> None:
    frame = '{"name": "' + "f" * 3000 + '", "short_filename": "x.py", "line": 1}'
    thread = '{"thread_name": "t", "os_thread_id": 1, "frames": [' + ",".join([frame] * 300) + "]}"
    (tmp_path / "many.json").write_text("[" + ",".join([thread] * 4) + "]")
    found = dump(os.getpid(), script(tmp_path, f"cat {tmp_path}/many.json"))
    assert len(found.stacks) == 4
    assert len(encode(found)) < MAX_MESSAGE_BYTES // 4


def test_a_refusal_without_words() -> None:
    assert why_refused("") == ""
