"""A request from outside a job to migrate its ranks. The job's coordinator decides, and reports the result.

An operator or the service gives it; nodes only call out, so the service's travels in the answer of the job report
(decision 21). Without a service it is a file in the launcher's ``--state-dir``: ``advice/ID.json``.
"""

from __future__ import annotations

import logging
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import msgspec

from mainstay.probes.decoding import UNREADABLE
from mainstay.probes.durable_files import replace_file

log = logging.getLogger("mainstay.coordinator")

DIRECTORY: Final = "advice"
"""Below the state directory of the launcher that coordinates."""
MAX_BYTES: Final = 64 * 1024
"""Of a file: an advice has a few hundred."""


class MigrationKind(StrEnum):
    MIGRATE = "migrate"


class MigrationState(StrEnum):
    """The state of a migration request. ``pending`` and ``accepted`` are open; the others are final."""

    PENDING = "pending"
    """There is no answer yet."""
    ACCEPTED = "accepted"
    """Under way."""
    COMPLETED = "completed"
    REJECTED = "rejected"
    """Not begun: the reason says why."""
    FAILED = "failed"
    """Begun and not finished: the ranks are where they were, or where a recovery has put them."""


OPEN: Final = frozenset({MigrationState.PENDING, MigrationState.ACCEPTED})


class MigrationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Move one rank, or all ranks of a node, to other nodes. Exactly one of ``node`` and ``rank`` is set."""

    id: str
    kind: MigrationKind
    node: str | None = None
    rank: int | None = None
    reason: str = ""
    target: str | None = None
    """Node that they go to; None: wherever standbys wait, away from their replicas."""
    finding: str | None = None
    """Id of the service's finding that it rests on; None where a person gave it."""

    def __post_init__(self) -> None:
        if (self.node is None) == (self.rank is None):
            raise ValueError("an advice names either a node or a rank")
        if not 0 < len(self.id) <= 128:
            raise ValueError(f"the id of an advice has 1 to 128 characters, not {len(self.id)}")

    @property
    def subject(self) -> str:
        return f"node {self.node}" if self.node is not None else f"rank {self.rank}"


class MigrationResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an advice, as a job report tells it."""

    id: str
    state: MigrationState
    detail: str = ""
    """One line for people."""
    seconds: float | None = None
    """That training stood still."""
    steps_lost: int | None = None


def read(answer: Any) -> list[MigrationRequest]:
    """The advice in the decoded answer of a job report. What this version does not understand is left out, and said."""
    given = answer.get("migration_requests") if isinstance(answer, dict) else None
    found = []
    for one in given if isinstance(given, list) else []:
        try:
            found.append(msgspec.convert(one, MigrationRequest))
        except msgspec.ValidationError as error:
            log.warning("advice of the service is not understood: %s", error)
    return found


def read_requests(state_dir: Path) -> list[MigrationRequest]:
    """Advice that lies in ``state_dir``, oldest name first; the files are gone then, good or bad."""
    found = []
    for path in sorted((state_dir / DIRECTORY).glob("*.json")):
        try:
            with path.open("rb") as file:
                body = file.read(MAX_BYTES + 1)
            path.unlink()
            found.append(msgspec.json.decode(body[:MAX_BYTES], type=MigrationRequest))
        except (OSError, *UNREADABLE) as error:
            log.warning("%s is no advice: %s", path, error)
    return found


def write_request(state_dir: Path, advice: MigrationRequest) -> Path:
    """Give advice to the coordinator whose launcher has ``state_dir``; seen within a second or so.

    Raises:
        OSError: it cannot be written.
    """
    directory = state_dir / DIRECTORY
    directory.mkdir(exist_ok=True)
    path = directory / f"{advice.id}.json"
    replace_file(path, msgspec.json.encode(advice))
    return path
