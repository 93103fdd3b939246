"""``mainstay reshape JOB --dp D --pp P``, or ``--stages 3,2``: change (dp, pp) of a running job."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Final

import msgspec

from mainstay.detectors.cli_errors import BAD_INPUT, AsJson, one_line
from mainstay.probes.core_types import validate_name
from mainstay.probes.decoding import read_if_whole
from mainstay.probes.ids import uuid7
from mainstay.recovery.option_values import state_directory
from mainstay.recovery.reshape_request import ReshapeRequest, ReshapeResult, ReshapeStatus, answered, write_request

_LOOK_SECONDS: Final = 0.1
_OVER: Final = frozenset({"finished", "failed"})


class _Job(msgspec.Struct):
    """The part of a job report that the command reads."""

    state: str


@one_line("mainstay reshape", {ValueError: BAD_INPUT, OSError: BAD_INPUT})
def reshape(
    job: str,
    *,
    dp: int = 0,
    pp: int = 0,
    stages: str = "",
    state_dir: Path | None = None,
    timeout: float = 600.0,
    as_json: AsJson = False,
) -> int:
    """Change (dp, pp) of a running job and wait until it trains with the new shape.

    Use either --dp and --pp, or --stages.

    Args:
        job: Name the job.
        dp: Set the data-parallel replicas.
        pp: Set the pipeline stages.
        stages: Set the stages of each pipeline if they differ: 3,2.
        state_dir: Use the --state-dir of the launcher that coordinates, if it has one.
        timeout: Wait this many seconds for the answer.
        as_json: Print only JSON.

    Returns:
        Exit code: 0 done; 1 rejected, failed, or no answer; 2 invalid input.
    """
    request = _request(dp, pp, stages)
    directory = _directory(job, state_dir)
    given = _wait(write_request(directory, request), directory, timeout)
    if given is None:
        print(f"mainstay reshape: job {job} gave no answer within {timeout:g} s", file=sys.stderr)  # noqa: T201
        return 1
    if as_json:
        print(msgspec.json.encode(given).decode())  # noqa: T201 - a command prints
    else:
        took = "" if given.seconds is None else f" ({given.seconds:.1f} s after it was asked)"
        print(f"job {job}: {given.outcome.value}: {given.detail}{took}")  # noqa: T201 - a command prints
    return 0 if given.outcome is ReshapeStatus.DONE else 1


def _request(dp: int, pp: int, stages: str) -> ReshapeRequest:
    """Return the request.

    Raises:
        ValueError: the shape is invalid.
    """
    if stages and (dp, pp) != (0, 0):
        raise ValueError("give either --dp and --pp, or --stages")
    if not stages and min(dp, pp) < 1:
        raise ValueError("give both --dp and --pp, each at least 1, or --stages")
    try:
        numbers = tuple(int(text) for text in stages.split(",")) if stages else ()
    except ValueError as error:
        raise ValueError(f"--stages {stages!r} must look like 3,2") from error
    request = ReshapeRequest(id=uuid7(), dp=dp, pp=pp, stages=numbers, asked_at=time.time())
    request.shape(1)
    return request


def _directory(job: str, given: Path | None) -> Path:
    """Return the directory that takes the request.

    Raises:
        ValueError: there is no such job here, or it has ended.
    """
    directory = given or state_directory(validate_name(job, "job"))
    if not (directory / "job.json").is_file():
        raise ValueError(f"no job is coordinated from {directory}: give the --state-dir of its launcher of node rank 0")
    state = _state(directory)
    if state in _OVER:
        raise ValueError(f"job {job} has {state} already")
    return directory


def _state(directory: Path) -> str:
    job = read_if_whole(directory / "job.json", _Job)
    return "" if job is None else job.state  # being written, or gone: the answer decides


def _wait(path: Path, directory: Path, timeout: float) -> ReshapeResult | None:
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
