"""A request from outside a running job. The job's coordinator decides, carries it out, and reports the result.

An operator or the service makes it; nodes only call out, so the service's travels in the answer of the job report
(decision 21). Without a service it is a file in the launcher's ``--state-dir``: ``requests/ID.json``. The result stands
in the job report, which the coordinator also keeps as ``job.json`` in that directory.
"""

from __future__ import annotations

import logging
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import msgspec

from mainstay.probes.decoding import UNREADABLE, build_decoders, read_if_whole
from mainstay.probes.durable_files import write_json
from mainstay.recovery.mesh_shape import MeshShape

log = logging.getLogger("mainstay.coordinator")

DIRECTORY: Final = "requests"
"""Below the state directory of the launcher that coordinates."""
JOB_FILE: Final = "job.json"
"""The job report there."""
MAX_BYTES: Final = 64 * 1024
"""Of a file: a request has a few hundred."""


class RequestKind(StrEnum):
    """What a job can be asked for. ``mainstay.recovery.controller.workflows`` carries each kind out."""

    MIGRATE = "migrate"
    """Move ranks to warm standbys on other nodes; training pauses for a moment."""
    RESTORE = "restore"
    """End the processes of ranks and restore them from their snapshots; a node that was left is used again."""
    DEGRADE = "degrade"
    """Leave a node at once. Standbys replace its ranks; where there are too few, training continues without them."""
    RESHAPE = "reshape"
    """Continue with another number of replicas, pipeline stages, or tensor-parallel ranks."""
    SAVE = "save"
    """Write one of the next steps to the checkpoint directory; training continues."""
    CHECK = "check"
    """Compare the speed of ranks with that of their peers between two steps; training pauses for a second."""


class RequestState(StrEnum):
    """The state of a request. ``pending`` and ``accepted`` are open; the others are final."""

    PENDING = "pending"
    """There is no answer yet."""
    ACCEPTED = "accepted"
    """Under way."""
    COMPLETED = "completed"
    REJECTED = "rejected"
    """Not started: the reason says why."""
    FAILED = "failed"
    """Started and not finished: the job continues as before, or a recovery has taken over."""


OPEN: Final = frozenset({RequestState.PENDING, RequestState.ACCEPTED})


class JobRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request to one job.

    Raises:
        ValueError: the fields do not fit the kind; one line.
    """

    id: str
    kind: RequestKind
    node: str | None = None
    """Whose ranks it is about: migrate, restore, degrade, check."""
    rank: int | None = None
    """Instead of ``node``: migrate, restore, check."""
    target: str | None = None
    """Node that ranks move to; None: wherever standbys wait, away from their replicas."""
    dp: int = 0
    """Of the shape; 0: as it is."""
    pp: int = 0
    tp: int = 0
    stages: tuple[int, ...] = ()
    """Of each pipeline, instead of ``dp`` and ``pp``: reshape."""
    reason: str = ""
    finding: str | None = None
    """Id of the service's finding that it rests on; None where a person made it."""
    created_at: float = 0.0
    """Unix seconds."""

    def __post_init__(self) -> None:
        if not 0 < len(self.id) <= 128:
            raise ValueError(f"the id of a request has 1 to 128 characters, not {len(self.id)}")
        problem = self._misfit()
        if problem:
            raise ValueError(problem)
        if self.kind is RequestKind.RESHAPE:
            self.shape(MeshShape(dp=1, pp=1))

    def _misfit(self) -> str:
        """Which field does not fit the kind; empty: all do."""
        if self.target is not None and self.kind is not RequestKind.MIGRATE:
            return f"{self.kind} takes no target"
        if self.kind is not RequestKind.RESHAPE and (self.dp or self.pp or self.tp or self.stages):
            return f"{self.kind} takes no shape"
        match self.kind:
            case RequestKind.MIGRATE | RequestKind.RESTORE | RequestKind.CHECK if (self.node is None) == (
                self.rank is None
            ):
                return f"{self.kind} names either a node or a rank"
            case RequestKind.DEGRADE if self.node is None or self.rank is not None:
                return f"{self.kind} names a node"
            case RequestKind.RESHAPE | RequestKind.SAVE if self.node is not None or self.rank is not None:
                return f"{self.kind} names neither a node nor a rank"
        return ""

    @property
    def subject(self) -> str:
        """What it is about, for people."""
        if self.kind is RequestKind.RESHAPE:
            sizes = {"stages": ",".join(map(str, self.stages)), "dp": self.dp, "pp": self.pp, "tp": self.tp}
            return " ".join(f"{name}={size}" for name, size in sizes.items() if size)
        if self.node is not None:
            return f"node {self.node}"
        return "the job" if self.rank is None else f"rank {self.rank}"

    def shape(self, now: MeshShape) -> MeshShape:
        """The shape that it asks for; sizes that it does not name are those of ``now``.

        Raises:
            ValueError: no such shape exists; one line that says why.
        """
        sizes = (self.dp, self.pp, self.tp)
        if min(sizes) < 0 or not (any(sizes) or self.stages):
            raise ValueError("dp={} pp={} tp={}: at least one must be above 0, and none below".format(*sizes))
        tp = self.tp or now.tp
        if self.stages:
            return MeshShape.from_stages(self.stages, tp)
        return MeshShape(dp=self.dp or now.dp, pp=self.pp or now.pp, tp=tp)


class JobRequestResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a request, as the job report gives it."""

    id: str
    state: RequestState
    detail: str = ""
    """One line for people."""
    seconds: float | None = None
    """That training stood still."""
    steps_lost: int | None = None
    """Committed steps that are repeated."""
    step: int | None = None
    """Training continued after this one, or this one is on disk."""


build_decoders(JobRequest)


def read(answer: Any) -> list[JobRequest]:
    """The requests in the decoded answer of a job report. What this version does not know is left out and logged."""
    given = answer.get("requests") if isinstance(answer, dict) else None
    found = []
    for one in given if isinstance(given, list) else []:
        try:
            found.append(msgspec.convert(one, JobRequest))
        except msgspec.ValidationError as error:
            log.warning("a request of the service is not understood: %s", error)
    return found


def read_requests(state_dir: Path) -> list[JobRequest]:
    """Requests that lie in ``state_dir``, the oldest first; the files are gone then, good or bad."""
    found = []
    for path in sorted((state_dir / DIRECTORY).glob("*.json")):
        try:
            with path.open("rb") as file:
                body = file.read(MAX_BYTES)
            path.unlink()
            found.append(msgspec.json.decode(body, type=JobRequest))
        except (OSError, *UNREADABLE) as error:
            log.warning("%s is no request: %s", path, error)
    return sorted(found, key=lambda request: request.created_at)


def write_request(state_dir: Path, request: JobRequest) -> None:
    """Leave a request for the coordinator whose launcher has ``state_dir``; it sees it within a second or so.

    Raises:
        OSError: it cannot be written.
    """
    directory = state_dir / DIRECTORY
    directory.mkdir(exist_ok=True, mode=0o700)
    write_json(directory / f"{request.id}.json", request)


class _ReportedJob(msgspec.Struct):
    """The part of ``job.json`` with results."""

    requests: list[JobRequestResult] = []


def read_result(state_dir: Path, request_id: str) -> JobRequestResult | None:
    """What became of a request; None: the coordinator has not answered yet."""
    job = read_if_whole(state_dir / JOB_FILE, _ReportedJob)
    return None if job is None else next((one for one in job.requests if one.id == request_id), None)
