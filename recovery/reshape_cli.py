"""``mainstay reshape JOB --dp D --pp P``: ask a running job for another shape, wait, and say what became of it."""

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


def run_reshape(job: str, shape: tuple[int, int], state_dir: Path | None, timeout: float, *, as_json: bool) -> int:
    """Carry the command out; exit code 0: done, 1: refused, failed or no answer, 2: bad input."""
    try:
        directory = _directory(job, shape, state_dir)
        wish = Wish(id=uuid7(), dp=shape[0], pp=shape[1], asked_at=time.time())
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


def _directory(job: str, shape: tuple[int, int], given: Path | None) -> Path:
    """Where the wish goes.

    Raises:
        ValueError: there is no such job here, it has ended, or the shape cannot be.
    """
    if min(shape) < 1:
        raise ValueError(f"dp={shape[0]} pp={shape[1]}: each must be at least 1")
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
