"""Signals that come where the main thread holds the lock of what they set."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, signal, threading
from mainstay.probes.stop_signal import stop_at_signal

stopped = threading.Event()
stop_at_signal(stopped.set)
with stopped._cond:  # as in the middle of set() and wait()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)
assert stopped.wait(60)
print("stopped")
"""


def test_signals_in_the_midst_of_the_event_that_they_set_end_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("stopped\n", "", 0)
