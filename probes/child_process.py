"""How the daemon ends the processes that it started for measurements, and what they said last."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress


def kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads a session of its own, and all processes that it started."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # stuck in the kernel: abandoned
            process.wait(1.0)


def last_line(complaints: bytes) -> str:
    """Return the last line of what a process wrote to standard error, in words."""
    lines = complaints.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
