"""A request for another (dp, pp) of a running job, and what became of it, as files in the launcher's state directory.

``STATE/reshape/ID.json`` is the request; the coordinator takes it, and leaves ``STATE/reshape/ID.answer``. Whoever may
write there may ask: it is the user that runs the job.
"""

from __future__ import annotations

import logging
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from mainstay.probes.decoding import UNREADABLE
from mainstay.probes.durable_files import replace_file
from mainstay.recovery.mesh_shape import MeshShape

log = logging.getLogger("mainstay.coordinator")

DIRECTORY: Final = "reshape"
MAX_BYTES: Final = 16 * 1024
"""Of a request: it has some eighty."""


class ReshapeStatus(StrEnum):
    DONE = "done"
    """Training continues in the shape that was asked for."""
    REFUSED = "refused"
    """No rank was stopped: the reason says why."""
    FAILED = "failed"
    """Begun and not finished: the job continues as it was, or a recovery has taken over."""


class ReshapeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Train on with ``dp`` replicas of ``pp`` stages, or with one pipeline for each number of ``stages``."""

    id: str
    dp: int = 0
    pp: int = 0
    asked_at: float
    """Unix seconds."""
    stages: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"stages={','.join(map(str, self.stages))}" if self.stages else f"dp={self.dp} pp={self.pp}"

    def shape(self, tp: int) -> MeshShape:
        """What is wished for, with ``tp`` slices of each stage.

        Raises:
            ValueError: that is no shape; one line that says why.
        """
        if self.stages:
            return MeshShape.from_stages(self.stages, tp)
        if min(self.dp, self.pp) < 1:
            raise ValueError(f"dp={self.dp} pp={self.pp}: each must be at least 1")
        return MeshShape(dp=self.dp, pp=self.pp, tp=tp)


class ReshapeResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a request."""

    id: str
    outcome: ReshapeStatus
    detail: str
    """One line for people."""
    seconds: float | None = None
    """From the request to the first step that was committed in the new shape."""
    readiness_s: float | None = None
    """That training stood still: from the fence to that step."""
    steps_repeated: int | None = None
    """Committed steps that were made again: the fence may cut the copy of the last one."""
    step: int | None = None
    """Training continued after this one."""


def write_request(state_dir: Path, request: ReshapeRequest) -> Path:
    """Leave ``request`` for the coordinator whose launcher has ``state_dir``; the path at which its answer will be.

    Raises:
        OSError: it cannot be written.
    """
    directory = state_dir / DIRECTORY
    directory.mkdir(exist_ok=True, mode=0o700)
    path = directory / f"{request.id}.json"
    replace_file(path, msgspec.json.encode(request))
    return path.with_suffix(".answer")


def read_requests(state_dir: Path) -> list[ReshapeRequest]:
    """Requests that lie in ``state_dir``, the oldest first; the files are gone then, good or bad."""
    found = []
    for path in sorted((state_dir / DIRECTORY).glob("*.json")):
        try:
            with path.open("rb") as file:
                body = file.read(MAX_BYTES)
            path.unlink()
            found.append(msgspec.json.decode(body, type=ReshapeRequest))
        except (OSError, *UNREADABLE) as error:
            log.warning("%s asks for no shape: %s", path, error)
    return sorted(found, key=lambda request: request.asked_at)


def answer(state_dir: Path, given: ReshapeResult) -> None:
    """Leave ``given`` for whoever asked."""
    path = state_dir / DIRECTORY / f"{Path(given.id).name}.answer"
    try:
        replace_file(path, msgspec.json.encode(given))
    except OSError as error:
        log.warning("%s cannot be written: %s", path, error)


def answered(path: Path) -> ReshapeResult | None:
    """The answer at ``path``; None: not yet."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ReshapeResult)
    except FileNotFoundError:
        return None
