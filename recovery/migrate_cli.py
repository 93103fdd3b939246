"""``mainstay migrate``: move ranks of a running job to standbys on other nodes, and wait until the job is done.

The command checks the request before it sends it: through the service, or without one through the state directory of
the coordinator. Exit codes: 0 moved, 1 the job did not move them, 2 invalid input, 4 no answer in time, 5 the service
rejected the request or did not answer.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from cyclopts import Parameter

from mainstay.detectors.cli_errors import BAD_INPUT, NO_SERVICE, InputError, one_line, open_transport
from mainstay.probes.decoding import read_if_whole
from mainstay.probes.ids import uuid7
from mainstay.probes.transport import RetryableError, Transport, TransportError
from mainstay.recovery.migration_request import (
    MigrationKind,
    MigrationRequest,
    MigrationResult,
    MigrationState,
    write_request,
)

NOT_MOVED: Final = 1
NO_ANSWER: Final = 4
POLL_SECONDS: Final = 0.25
SILENT_SECONDS: Final = 10.0
"""A coordinator reports each second; one that is silent for so long may be gone."""
_GONE = "The coordinator of the job has not reported for {age:.0f} s: it may be gone and never answer."
_AFTER: Final = {
    MigrationState.REJECTED: "Every rank stays where it was.",
    MigrationState.FAILED: "The ranks are where they were, or where a recovery moved them.",
}


class _NoAnswerError(Exception):
    """The job has not answered the request in time."""


_one_line = one_line("mainstay migrate", {InputError: BAD_INPUT, TransportError: NO_SERVICE, _NoAnswerError: NO_ANSWER})


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class JobAddress:
    """How to reach the job: through the service, or where its coordinator runs."""

    service: Annotated[str | None, Parameter(env_var="MAINSTAY_SERVICE")] = None
    """Connect to the service at this URL."""
    token: Annotated[str | None, Parameter(env_var="MAINSTAY_TOKEN")] = None
    """Use this token with scope act; prefer a file."""
    token_file: Annotated[Path | None, Parameter(env_var="MAINSTAY_TOKEN_FILE")] = None
    """Read the token from this file."""
    state_dir: Path | None = None
    """Use, without a service, the --state-dir of the coordinator on its node."""


@_one_line
def migrate(
    job: Annotated[str, Parameter(help="Name the job.")],
    /,
    where: JobAddress = JobAddress(),
    *,
    rank: Annotated[int | None, Parameter(help="Move this rank.")] = None,
    node: Annotated[str | None, Parameter(help="Move all ranks of the job on this node.")] = None,
    target: Annotated[str | None, Parameter(help="Move them to this node; the default is any with standbys.")] = None,
    reason: Annotated[str, Parameter(help="Record this reason in the events of the job.")] = "requested by an operator",
    timeout: Annotated[float, Parameter(help="Stop waiting after this many seconds.")] = 1800.0,
) -> int:
    """Move ranks to other nodes: one rank, or all ranks of a node, to warm standbys.

    Training continues and pauses only while Mainstay fetches the newest step; other ranks keep running.
    """
    if (rank is None) == (node is None):
        raise InputError("give either --rank R, or --node NAME for all ranks that the job has there")
    if not reason.strip() or not timeout > 0:
        raise InputError("--reason must not be empty, and --timeout must be above 0")
    channel = _open_channel(job, where)
    told = channel.job()
    _check(job, told, rank, node, target)
    request = MigrationRequest(
        id=uuid7(), kind=MigrationKind.MIGRATE, node=node, rank=rank, target=target, reason=reason.strip()
    )
    _say(f"Asking job {job} to move {_what(request)}.")
    if told["state"] == "recovering":
        _say("It recovers from a failure just now; it accepts requests when it trains again.")
    age = time.time() - told.get("last_seen_at", time.time())
    if age > SILENT_SECONDS:
        _say(_GONE.format(age=age))
    return _follow(channel, channel.send_request(request), timeout)


def _what(request: MigrationRequest) -> str:
    ranks = f"rank {request.rank}" if request.node is None else f"its ranks on {request.node}"
    return ranks + (f" to {request.target}" if request.target else " to standbys on other nodes")


def _say(line: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')}  {line}\n")
    sys.stdout.flush()


# checks before the request


def _check(job: str, told: dict[str, Any], rank: int | None, node: str | None, to: str | None) -> None:
    """Check the request before the command sends it.

    Raises:
        InputError: one line that names the problem and the alternatives.
    """
    if told["state"] in {"finished", "failed"}:
        raise InputError(f"job {job} is {told['state']}: no rank can move")
    locations = {place["rank"]: place["node"] for place in told["topology"]["ranks"]}
    _check_ranks(job, locations, rank, node)
    source = node if rank is None else locations[rank]
    if to == source:
        raise InputError(f"{'rank ' + str(rank) if node is None else 'what is to move'} is on {to} already")
    standbys: dict[str, int] | None = told["topology"].get("standbys")
    if standbys is not None:  # an older coordinator reports no standbys and checks the request itself
        moving = 1 if rank is not None else sum(location == node for location in locations.values())
        _check_standbys(job, standbys, moving, source, to)


def _check_ranks(job: str, locations: dict[int, str], rank: int | None, node: str | None) -> None:
    nodes = ", ".join(sorted(set(locations.values())))
    if rank is not None and rank not in locations:
        raise InputError(f"job {job} has no rank {rank}: its ranks are 0 to {len(locations) - 1}")
    if node is not None and node not in locations.values():
        raise InputError(f"job {job} has no rank on node {node}: its ranks are on {nodes}")


def _check_standbys(job: str, standbys: dict[str, int], moving: int, source: str | None, to: str | None) -> None:
    if to is not None and to not in standbys:
        raise InputError(f"job {job} has no node {to}: it runs on {', '.join(sorted(standbys))}")
    ready = sum(count for name, count in standbys.items() if name != source and to in {None, name})
    if ready < moving:
        waiting = ", ".join(f"{count} on {name}" for name, count in sorted(standbys.items()) if count) or "none at all"
        place = to or "other nodes"
        raise InputError(
            f"{moving} warm standby(s) on {place} are needed and {ready} are ready (standbys now: {waiting}); "
            "start the job with --standbys, or wait until a standby is back or a node with a warning is trusted again"
        )


# requesting and waiting


def _follow(
    channel: _Service | _Files, request_id: str, timeout: float, sleep: Callable[[float], None] = time.sleep
) -> int:
    until, state = time.monotonic() + timeout, MigrationState.PENDING
    while time.monotonic() < until:
        answer = channel.answer(request_id)
        if answer is not None and answer.state is not state:
            state = answer.state
            if state is MigrationState.ACCEPTED:
                _say(f"Under way: {answer.detail}. Training continues while agents fetch the snapshots.")
            elif state is not MigrationState.PENDING:
                return _end(answer)
        sleep(POLL_SECONDS)
    begun = "it has begun and not ended" if state is MigrationState.ACCEPTED else "the job has not answered"
    raise _NoAnswerError(
        f"after {timeout:g} s {begun}; request {request_id} is still open and the job may still accept it"
    )


def _end(answer: MigrationResult) -> int:
    if answer.state is MigrationState.COMPLETED:
        steps = "" if answer.steps_lost is None else f"; {answer.steps_lost} step(s) are repeated"
        _say(f"Done: {answer.detail}{steps}.")
        return 0
    _say(f"{answer.state.capitalize()}: {answer.detail}. {_AFTER[answer.state]}")
    return NOT_MOVED


def _open_channel(job: str, where: JobAddress) -> _Service | _Files:
    if where.state_dir is not None:
        return _Files(job, where.state_dir)
    if where.service is None:
        raise InputError("give --service URL with a token, or --state-dir DIR of the launcher that coordinates")
    return _Service(job, open_transport(where.service, where.token, where.token_file))


class _Service:
    """The way to the coordinator of a job through the control plane."""

    def __init__(self, job: str, transport: Transport) -> None:
        self._job = job
        self._transport = transport

    def job(self) -> dict[str, Any]:
        """The job as last reported.

        Raises:
            InputError: no such job exists.
            TransportError: the service does not answer.
        """
        try:
            told: dict[str, Any] = self._transport.json("GET", f"/jobs/{self._job}")
        except TransportError as error:
            if error.slug != "unknown-job":
                raise
            running = self._transport.json("GET", "/jobs?state=running")["items"]
            names = ", ".join(sorted(one["id"] for one in running)[:20]) or "none"
            raise InputError(f"there is no job {self._job}; running now: {names}") from error
        return told

    def send_request(self, request: MigrationRequest) -> str:
        """Send the request and return its ID."""
        body = {"node": request.node, "rank": request.rank, "target": request.target, "reason": request.reason[:200]}
        return str(self._transport.json("POST", f"/jobs/{self._job}/migration-requests", body)["id"])

    def answer(self, request_id: str) -> MigrationResult | None:
        """The latest result of the request; None before the first."""
        try:
            items = self._transport.json("GET", f"/jobs/{self._job}/migration-requests")["items"]
        except RetryableError:
            return None  # the job handles the request in any case
        found = next((one for one in items if one["id"] == request_id), None)
        return None if found is None else msgspec.convert(found, MigrationResult)


class _Files:
    """The same through the state directory of the launcher that coordinates."""

    def __init__(self, job: str, directory: Path) -> None:
        self._job = job
        self._directory = directory

    def job(self) -> dict[str, Any]:
        told = self._read()
        if told is None:
            raise InputError(
                f"{self._directory} has no job.json: it is no --state-dir, or another node's launcher coordinates"
            )
        if told["id"] != self._job:
            raise InputError(f"{self._directory} belongs to job {told['id']}, not {self._job}")
        return told

    def send_request(self, request: MigrationRequest) -> str:
        try:
            write_request(self._directory, request)
        except OSError as error:
            raise InputError(f"{self._directory}: the request cannot be written there: {error.strerror}") from error
        return request.id

    def answer(self, request_id: str) -> MigrationResult | None:
        answers = (self._read() or {}).get("migration_requests", [])
        found = next((one for one in answers if one["id"] == request_id), None)
        return None if found is None else msgspec.convert(found, MigrationResult)

    def _read(self) -> dict[str, Any] | None:
        return read_if_whole(self._directory / "job.json", dict[str, Any])
