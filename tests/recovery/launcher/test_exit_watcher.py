"""What /proc shows of a process that is being ended, before and after its memory is taken apart."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from mainstay.recovery.node.exit_watcher import ending_signal

pytestmark = pytest.mark.processes


def _ended(code: str, number: int | None = None) -> subprocess.Popen[bytes]:
    """A child that has ended, or was killed by ``number``, and is not reaped."""
    child = subprocess.Popen([sys.executable, "-c", f"print('here', flush=True); {code}"], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    if number is not None:
        child.send_signal(number)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    return child


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGBUS])
def test_the_signal_that_ends_it_is_known(number: int) -> None:
    child = _ended("import time; time.sleep(60)", number)
    assert ending_signal(child.pid) == number
    child.communicate()
    assert ending_signal(child.pid) is None, "reaped: there is no process of that number"


@pytest.mark.parametrize("code", ["pass", "raise SystemExit(9)", "import os; os._exit(137)"])
def test_one_that_ends_by_itself_is_not_being_killed(code: str) -> None:
    child = _ended(code)
    assert ending_signal(child.pid) is None
    child.communicate()


def test_one_that_lives_is_not_ending_though_its_threads_end() -> None:
    threading.Thread(target=time.sleep, args=(0.0,)).start()
    assert ending_signal(os.getpid()) is None


def test_a_name_with_brackets_and_spaces_is_no_trouble() -> None:
    child = _ended("open('/proc/self/comm', 'w').write('a) R 1 (b'); import os; os.kill(os.getpid(), 9)")
    assert ending_signal(child.pid) == signal.SIGKILL
    child.communicate()
