"""Children watched by pidfd: their end is known at once, their groups end with them, and they end with their parent."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mainstay.recovery.node.process_control import ChildProcess, ExitStatus, reap_orphans

pytestmark = pytest.mark.processes


def start(code: str, **how) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", code], process_group=0, **how)
    process.returncode = 0  # the Child reaps it
    return process


@pytest.mark.parametrize(
    ("code", "expected"),
    [("import sys; sys.exit(3)", (3, None)), ("import os; os.kill(os.getpid(), 9)", (None, 9)), ("pass", (0, None))],
)
def test_how_it_ended(code: str, expected: tuple[int | None, int | None]) -> None:
    async def work() -> ExitStatus:
        return await asyncio.wait_for(ChildProcess(start(code).pid).exit, 60.0)

    status = asyncio.run(work())
    assert (status.code, status.signal) == expected
    assert abs(status.time - time.time()) < 20.0
    assert status.peak_bytes is not None
    assert 2**20 < status.peak_bytes < 2**32


def test_a_kill_is_seen_within_milliseconds() -> None:
    async def work() -> float:
        child = ChildProcess(start("import time; time.sleep(60)").pid)
        await asyncio.sleep(0)
        begun = time.perf_counter()
        assert await child.kill()
        assert not child.alive
        return time.perf_counter() - begun

    assert asyncio.run(work()) < 2.0  # milliseconds on a quiet machine


def test_one_that_does_not_listen_to_sigterm_is_killed(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    code = (
        "import signal, time, pathlib; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        f"pathlib.Path({str(ready)!r}).touch(); time.sleep(60)"
    )

    async def work() -> ExitStatus:
        child = ChildProcess(start(code).pid)
        await asyncio.to_thread(wait_for_file, ready)
        await child.stop(0.1)
        return child.exit.result()

    assert asyncio.run(work()).signal == signal.SIGKILL


def test_what_it_started_ends_with_it() -> None:
    code = (
        "import subprocess, sys, time;"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
        "print(p.pid, flush=True); time.sleep(60)"
    )

    async def work() -> int:
        process = start(code, stdout=subprocess.PIPE)
        child = ChildProcess(process.pid)
        assert process.stdout is not None
        grandchild = int(await asyncio.to_thread(process.stdout.readline))
        await child.kill()
        process.stdout.close()
        return grandchild

    wait_for_end(asyncio.run(work()))


def test_it_dies_with_its_parent() -> None:
    inner = "from mainstay.recovery.node.process_control import die_with_parent; import os, time;"
    inner += "die_with_parent(os.getppid()); print(os.getpid(), flush=True); time.sleep(60)"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    with subprocess.Popen([sys.executable, "-c", outer], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.kill()
        process.wait()
    wait_for_end(child)


def wait_for_file(path: Path) -> None:
    deadline = time.monotonic() + 60.0
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_for_end(pid: int) -> None:
    deadline = time.monotonic() + 60.0
    while True:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return
        if state == "Z":
            return
        assert time.monotonic() < deadline, f"process {pid} lives on"
        time.sleep(0.01)


def test_signals_to_one_that_is_gone_reach_nobody() -> None:
    async def work() -> None:
        child = ChildProcess(start("pass").pid)
        await child.wait(20.0)
        child.signal(signal.SIGKILL)

    asyncio.run(work())
    assert os.getpid()


def test_orphans_are_reaped_and_watched_children_left_to_their_watcher() -> None:
    async def work() -> ExitStatus:
        orphan, child = start("pass").pid, ChildProcess(start("import sys; sys.exit(3)").pid)
        for pid in (orphan, child.pid):
            wait_for_end(pid)
        reap_orphans()
        status = await child.exit
        reap_orphans()  # the watched one may have come first
        with pytest.raises(ProcessLookupError):
            os.kill(orphan, 0)
        return status

    assert asyncio.run(work()).code == 3
