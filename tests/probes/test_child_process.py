"""How processes of measurements end, and what they said last."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, cast

import pytest

from mainstay.probes.child_process import kill_session, last_line


@pytest.mark.processes
def test_a_process_and_what_it_started_end() -> None:
    script = "import subprocess, sys, time; subprocess.Popen(['sleep', '60']); print('up', flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    kill_session(process)
    assert process.returncode == -9
    assert process.stdout.read() == b"", "its child holds the pipe no more"
    process.stdout.close()
    kill_session(process)


def test_a_process_that_is_stuck_in_the_kernel_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck:
        pid = 1

        def poll(self) -> None:
            return None

        def wait(self, seconds: float) -> int:
            raise subprocess.TimeoutExpired("validate", seconds)

    killed: list[Any] = []
    monkeypatch.setattr("os.killpg", lambda *order: killed.append(order))
    kill_session(cast(Any, Stuck()))
    assert killed == [(1, 9)]


def test_the_last_line_of_what_was_said() -> None:
    assert last_line(b"Traceback\nValueError: no disk\n\n") == "ValueError: no disk"
    assert last_line(b"\xff") == "\ufffd"
    assert last_line(b" \n") == "it said nothing"
