"""``mainstay reshape JOB --dp D --pp P``, or ``--stages 3,2``: ask a running job for another shape."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Final

import msgspec

from probes.ids import uuid7
from probes.words import check_name
from recovery.launcher.options import state_directory
from recovery.reshape import Answer, Outcome, Wish, answered, ask

BAD_INPUT: Final = 2
_LOOK_SECONDS: Final = 0.1
_OVER: Final = frozenset({"finished", "failed"})


class _Job(msgspec.Struct):
    """What is read of a job report."""

    state: str


def run_reshape(
    job: str, shape: tuple[int, int], stages: str, state_dir: Path | None, timeout: float, *, as_json: bool
) -> int:
    """Carry the command out; exit code 0: done, 1: refused, failed or no answer, 2: bad input."""
    try:
        wish = _wish(shape, stages)
        directory = _directory(job, state_dir)
        given = _wait(ask(directory, wish), directory, timeout)
    except (ValueError, OSError) as error:
        print(f"mainstay reshape: {error}", file=sys.stderr)  # noqa: T201 - a command prints
        return BAD_INPUT
    if given is None:
        print(f"mainstay reshape: job {job} gave no answer within {timeout:g} s", file=sys.stderr)  # noqa: T201
        return 1
    if as_json:
        print(msgspec.json.encode(given).decode())  # noqa: T201 - a command prints
    else:
        took = "" if given.seconds is None else f" ({given.seconds:.1f} s after it was asked)"
        print(f"job {job}: {given.outcome.value}: {given.detail}{took}")  # noqa: T201 - a command prints
    return 0 if given.outcome is Outcome.DONE else 1


def _wish(shape: tuple[int, int], stages: str) -> Wish:
    """What is asked for.

    Raises:
        ValueError: the shape cannot be.
    """
    if stages and shape != (0, 0):
        raise ValueError("give either --dp and --pp, or --stages")
    try:
        numbers = tuple(int(text) for text in stages.split(",")) if stages else ()
    except ValueError as error:
        raise ValueError(f"--stages {stages!r} must look like 3,2") from error
    wish = Wish(id=uuid7(), dp=shape[0], pp=shape[1], stages=numbers, asked_at=time.time())
    wish.shape(1)
    return wish


def _directory(job: str, given: Path | None) -> Path:
    """Where the wish goes.

    Raises:
        ValueError: there is no such job here, or it has ended.
    """
    directory = given or state_directory(check_name(job, "job"))
    if not (directory / "job.json").is_file():
        raise ValueError(f"no job is coordinated from {directory}: give the --state-dir of its launcher of node rank 0")
    state = _state(directory)
    if state in _OVER:
        raise ValueError(f"job {job} has {state} already")
    return directory


def _state(directory: Path) -> str:
    try:
        return msgspec.json.decode((directory / "job.json").read_bytes(), type=_Job).state
    except (OSError, msgspec.MsgspecError):  # being written, or gone: the answer decides
        return ""


def _wait(path: Path, directory: Path, timeout: float) -> Answer | None:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        given = answered(path)
        if given is not None:
            return given
        if _state(directory) in _OVER:
            time.sleep(_LOOK_SECONDS)
            return answered(path)
        time.sleep(_LOOK_SECONDS)
    return None
