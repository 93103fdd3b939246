"""Bad input of ``mainstay demo``, and its end by a signal; ``test_wheel`` runs it whole, from the installed wheel."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.lib_job import descendants

ROOT = Path(__file__).resolve().parents[2]
DEMO = [sys.executable, "-m", "mainstay", "demo"]
DEADLINE = 120.0


def test_bad_input_is_one_line() -> None:
    done = subprocess.run(
        [*DEMO, "--kill-rank", "4"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr.strip().splitlines() == ["mainstay demo: --kill-rank 4: the demo has ranks 0 to 3"]


def until(happened: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not happened():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.05)


def memory_of(pid: int) -> str:
    """The directory of the snapshots of a process that the demo has started."""
    words = (Path("/proc") / str(pid) / "environ").read_text().split("\0")
    return next(word for word in words if word.startswith("MAINSTAY_SHM_DIR=")).partition("=")[2]


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(400)
@pytest.mark.xdist_group("training")
@pytest.mark.parametrize(
    ("number", "moment"), [(signal.SIGHUP, " up "), (signal.SIGTERM, "train.py"), (signal.SIGINT, "train.py")]
)
def test_a_signal_ends_every_process_that_it_has_started(tmp_path: Path, number: int, moment: str) -> None:
    """At the start of the service, and while ranks train."""
    home = tmp_path / "tmp"
    home.mkdir()
    with (tmp_path / "log").open("wb") as log:
        demo = subprocess.Popen(
            [*DEMO, "--port", "0", "--exit", "--steps", "5000"], cwd=ROOT, env={**os.environ, "TMPDIR": str(home)},
            stdout=log, stderr=log,
        )  # fmt: skip
    known, memory = dict[int, str](), ""
    try:
        until(lambda: any(moment in words for words in descendants(demo.pid).values()), f"{moment} in a command line")
        known = descendants(demo.pid)
        memory = memory_of(next(pid for pid, words in known.items() if " up " in words))
        demo.send_signal(number)
        assert demo.wait(DEADLINE) == 128 + number, (tmp_path / "log").read_text()
        until(lambda: not any((Path("/proc") / str(pid)).exists() for pid in known), "the end of all processes")
        known = {}
        assert not Path(memory).exists()
        assert not list(home.glob("mainstay-demo-*"))
    finally:
        demo.kill()
        demo.wait()
        for pid in known:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if memory:
            shutil.rmtree(memory, ignore_errors=True)
