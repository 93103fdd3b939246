"""How fast small jobs train here."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.lib_job import Job

FEW = ["--micro-batches", "2"]
"""Of each pipeline in each step, in stories that are not about them: they are most of what a small job computes."""
PACE = ["--faults", "sleep:rank=0,step=0,ms=32"]
"""A step lasts a while (two micro-batches) and computes little: kills come in the midst of a run, on any machine."""
UNHURRIED = {"MAINSTAY_EXAMPLE_FAULTS": "sleep:rank=0,step=0,ms=150"}
"""The environment of a demo's job that trains until it is stopped, beside other tests."""
ANY_SHAPE = Path(__file__).with_name("paced_any_shape.py")
_FILE = "paced"


def paced(directory: Path, ms: int, *ranks: int) -> list[str]:
    """Words for the script of the job in ``directory``: each micro-batch of these ranks, or of rank 0, takes ``ms``.

    That ends with ``finish``: what a story does comes long before the end of the steps, on any machine, and the test
    does not wait for the others.
    """
    file = hold(directory)
    return ["--faults", ";".join(f"sleep:rank={rank},ms={ms},file={file}" for rank in ranks or (0,))]


def pausing(directory: Path) -> dict[str, str]:
    """The environment of a job with ``ANY_SHAPE``: its ``--pause`` holds until ``finish``."""
    return {"PACED_WHILE_FILE": str(hold(directory))}


def hold(directory: Path) -> Path:
    """The file that is there until ``finish``."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / _FILE).touch()
    return directory / _FILE


def finish(job: Job, seconds: float = 180.0) -> list[int]:
    """The story is over: the steps that are left are as fast as they can be. Exit codes of all launchers."""
    (job.directory / _FILE).unlink()
    return job.wait(seconds)


@contextmanager
def throttled(pid: int | None) -> Iterator[None]:
    """Stop the process for two thirds of its time, as a power brake stops a GPU's clock."""
    assert pid is not None
    over = threading.Event()

    def brake() -> None:
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.008)
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.004)

    thread = threading.Thread(target=brake)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
