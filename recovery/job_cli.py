"""``mainstay job``: ask a running job to move, restore, or give up ranks, to change its shape, or to save.

A command checks the request before it sends it: through the service, or without one through the state directory of the
coordinator. Exit codes: 0 done, 1 the job rejected it or it failed, 2 invalid input, 4 no answer in time, 5 the service
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
from cyclopts import App, Parameter

from mainstay.detectors.cli_errors import BAD_INPUT, NO_SERVICE, AsJson, InputError, one_line, open_transport
from mainstay.probes.core_types import validate_name
from mainstay.probes.decoding import read_if_whole
from mainstay.probes.ids import uuid7
from mainstay.probes.transport import RetryableError, Transport, TransportError
from mainstay.recovery.job_request import (
    JOB_FILE,
    JobRequest,
    JobRequestResult,
    RequestKind,
    RequestState,
    read_result,
    write_request,
)
from mainstay.recovery.option_values import state_directory

REJECTED: Final = 1
NO_ANSWER: Final = 4
POLL_SECONDS: Final = 0.25
SILENT_SECONDS: Final = 10.0
"""A coordinator reports each second; one that is silent for so long may be gone."""
_GONE = "The coordinator of the job has not reported for {age:.0f} s: it may be gone and never answer."
_AFTER: Final = {
    RequestState.REJECTED: "Nothing has changed.",
    RequestState.FAILED: "Every rank is where it was, or where a recovery moved it.",
}

app = App(name="job", help="Ask a running job to move, restore, or give up ranks, to change its shape, or to save.")


class _NoAnswerError(Exception):
    """The job has not answered the request in time."""


_one_line = one_line("mainstay job", {InputError: BAD_INPUT, TransportError: NO_SERVICE, _NoAnswerError: NO_ANSWER})
JobName = Annotated[str, Parameter(help="Name the job.")]
Rank = Annotated[int | None, Parameter(help="Name this rank.")]
Node = Annotated[str | None, Parameter(help="Name all ranks of the job on this node.")]
NodeToLeave = Annotated[str, Parameter(help="Leave this node.")]
Target = Annotated[str | None, Parameter(help="Move them to this node; the default is any with standbys.")]


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """How to reach the job, and how long to wait for it."""

    service: Annotated[str | None, Parameter(env_var="MAINSTAY_SERVICE")] = None
    """Connect to the service at this URL."""
    token: Annotated[str | None, Parameter(env_var="MAINSTAY_TOKEN")] = None
    """Use this token with scope act; prefer a file."""
    token_file: Annotated[Path | None, Parameter(env_var="MAINSTAY_TOKEN_FILE")] = None
    """Read the token from this file."""
    state_dir: Path | None = None
    """Use, without a service, the --state-dir of the coordinator on its node."""
    reason: str = "requested by an operator"
    """Record this reason in the events of the job."""
    timeout: float = 1800.0
    """Stop waiting after this many seconds."""
    as_json: AsJson = False
    """Print only the result, as JSON."""


DEFAULTS: Final = RequestOptions()


@app.command
@_one_line
def migrate(
    job: JobName, /, options: RequestOptions = DEFAULTS, *, rank: Rank = None, node: Node = None, target: Target = None
) -> int:
    """Move one rank, or all ranks of a node, to warm standbys on other nodes.

    Training continues and pauses only while Mainstay fetches the newest step; other ranks keep running.
    """
    _require_one(rank, node)
    return _request(job, options, RequestKind.MIGRATE, rank=rank, node=node, target=target)


@app.command
@_one_line
def restore(job: JobName, /, options: RequestOptions = DEFAULTS, *, rank: Rank = None, node: Node = None) -> int:
    """Restart one rank, or all ranks of a node, from their snapshots.

    A node that the job left (mainstay job degrade) takes ranks again.
    """
    _require_one(rank, node)
    return _request(job, options, RequestKind.RESTORE, rank=rank, node=node)


@app.command
@_one_line
def degrade(job: JobName, /, options: RequestOptions = DEFAULTS, *, node: NodeToLeave) -> int:
    """Leave a node at once: standbys replace its ranks, or training continues without them.

    The node takes no rank of the job until mainstay job restore --node.
    """
    return _request(job, options, RequestKind.DEGRADE, node=node)


@app.command
@_one_line
def reshape(
    job: JobName,
    /,
    options: RequestOptions = DEFAULTS,
    *,
    dp: Annotated[int, Parameter(help="Set the data-parallel replicas.")] = 0,
    pp: Annotated[int, Parameter(help="Set the pipeline stages.")] = 0,
    tp: Annotated[int, Parameter(help="Set the tensor-parallel ranks.")] = 0,
    stages: Annotated[str, Parameter(help="Set the stages of each pipeline if they differ: 3,2.")] = "",
) -> int:
    """Change (dp, pp, tp), through the checkpoint directory. A size that is not given stays as it is.

    Use --stages instead of --dp and --pp for pipelines of unequal depth.
    """
    return _request(job, options, RequestKind.RESHAPE, dp=dp, pp=pp, tp=tp, stages=_stages(dp, pp, stages))


@app.command
@_one_line
def save(job: JobName, /, options: RequestOptions = DEFAULTS) -> int:
    """Write one of the next steps to the checkpoint directory. With three snapshot slots training continues."""
    return _request(job, options, RequestKind.SAVE)


@app.command
@_one_line
def check(job: JobName, /, options: RequestOptions = DEFAULTS, *, rank: Rank = None, node: Node = None) -> int:
    """Compare the speed of one rank, or of all ranks of a node, with that of ranks on other nodes.

    They run the same kernels between two steps, for which training pauses by about a second.
    """
    _require_one(rank, node)
    return _request(job, options, RequestKind.CHECK, rank=rank, node=node)


def _require_one(rank: int | None, node: str | None) -> None:
    if (rank is None) == (node is None):
        raise InputError("give either --rank R, or --node NAME for all ranks that the job has there")


def _stages(dp: int, pp: int, stages: str) -> tuple[int, ...]:
    if stages and (dp, pp) != (0, 0):
        raise InputError("give either --dp and --pp, or --stages")
    try:
        return tuple(int(text) for text in stages.split(",")) if stages else ()
    except ValueError as error:
        raise InputError(f"--stages {stages!r} must look like 3,2") from error


def _request(job: str, options: RequestOptions, kind: RequestKind, **about: Any) -> int:
    """Check the request, send it, and wait for its end.

    Raises:
        InputError: what is wrong with it, in one line.
        TransportError: the service does not answer.
    """
    if not options.reason.strip() or not options.timeout > 0:
        raise InputError("--reason must not be empty, and --timeout must be above 0")
    try:
        request = JobRequest(id=uuid7(), kind=kind, reason=options.reason.strip(), created_at=time.time(), **about)
        validate_name(job, "job")
    except ValueError as error:
        raise InputError(str(error)) from error
    channel = _open_channel(job, options)
    told = channel.job()
    _check(job, told, request)
    say: Callable[[str], None] = (lambda _line: None) if options.as_json else _say
    target = f" to {request.target}" if request.target else ""
    say(f"Asking job {job} for {request.kind} of {request.subject}{target}.")
    if told["state"] == "recovering":
        say("It recovers from a failure just now; it accepts requests when it trains again.")
    age = time.time() - told.get("last_seen_at", time.time())
    if age > SILENT_SECONDS:
        say(_GONE.format(age=age))
    result = _follow(channel, channel.send_request(request), options.timeout, say)
    if options.as_json:
        sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
    return 0 if result.state is RequestState.COMPLETED else REJECTED


def _say(line: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')}  {line}\n")
    sys.stdout.flush()


# checks before the request


def _check(job: str, told: dict[str, Any], request: JobRequest) -> None:
    """Check the request before the command sends it.

    Raises:
        InputError: one line that names the problem and the alternatives.
    """
    if told["state"] in {"finished", "failed"}:
        raise InputError(f"job {job} is {told['state']}: it takes no request")
    rank, node, to = request.rank, request.node, request.target
    locations = {place["rank"]: place["node"] for place in told["topology"]["ranks"]}
    _check_ranks(job, locations, rank, node, told["topology"].get("standbys") or {})
    # A job without standbys has its own check; a service or coordinator of an older version reports no obstacles.
    obstacle = (told.get("request_obstacles") or {}).get(request.kind)
    if request.kind is not RequestKind.MIGRATE:
        if obstacle:
            raise InputError(f"job {job} cannot {request.kind}: {obstacle}")
        return
    source = node if rank is None else locations[rank]
    if to == source:
        raise InputError(f"{'rank ' + str(rank) if node is None else 'what is to move'} is on {to} already")
    standbys: dict[str, int] | None = told["topology"].get("standbys")
    if standbys is not None:  # an older coordinator reports no standbys and checks the request itself
        moving = 1 if rank is not None else sum(location == node for location in locations.values())
        _check_standbys(job, standbys, moving, source, to)


def _check_ranks(
    job: str, locations: dict[int, str], rank: int | None, node: str | None, standbys: dict[str, int]
) -> None:
    known = {*locations.values(), *standbys}
    if rank is not None and rank not in locations:
        raise InputError(f"job {job} has no rank {rank}: its ranks are 0 to {len(locations) - 1}")
    if node is not None and node not in known:
        raise InputError(f"job {job} has no node {node}: its nodes are {', '.join(sorted(known))}")


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
    channel: _Service | _Files, request_id: str, timeout: float, say: Callable[[str], None] = _say
) -> JobRequestResult:
    until, state = time.monotonic() + timeout, RequestState.PENDING
    while time.monotonic() < until:
        answer = channel.answer(request_id)
        if answer is not None and answer.state is not state:
            state = answer.state
            if state is RequestState.ACCEPTED:
                say(f"Under way: {answer.detail}.")
            elif state is not RequestState.PENDING:
                say(_end(answer))
                return answer
        time.sleep(POLL_SECONDS)
    begun = "it has begun and not ended" if state is RequestState.ACCEPTED else "the job has not answered"
    raise _NoAnswerError(
        f"after {timeout:g} s {begun}; request {request_id} is still open and the job may still accept it"
    )


def _end(answer: JobRequestResult) -> str:
    if answer.state is RequestState.COMPLETED:
        paused = "" if not answer.seconds else f"; training paused for {answer.seconds:.1f} s"
        steps = "" if answer.steps_lost is None else f"; {answer.steps_lost} step(s) are repeated"
        return f"Done: {answer.detail}{paused}{steps}."
    return f"{answer.state.capitalize()}: {answer.detail}. {_AFTER[answer.state]}"


def _open_channel(job: str, options: RequestOptions) -> _Service | _Files:
    if options.state_dir is not None or options.service is None:
        return _Files(job, options.state_dir or state_directory(job))
    return _Service(job, open_transport(options.service, options.token, options.token_file))


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

    def send_request(self, request: JobRequest) -> str:
        """Send the request and return its ID."""
        fields = msgspec.to_builtins(request)
        body = {name: fields[name] for name in ("kind", "node", "rank", "target", "dp", "pp", "tp", "stages")}
        body["reason"] = request.reason[:200]
        return str(self._transport.json("POST", f"/jobs/{self._job}/requests", body)["id"])

    def answer(self, request_id: str) -> JobRequestResult | None:
        """The latest result of the request; None before the first."""
        try:
            items = self._transport.json("GET", f"/jobs/{self._job}/requests")["items"]
        except RetryableError:
            return None  # the job handles the request in any case
        found = next((one for one in items if one["id"] == request_id), None)
        return None if found is None else msgspec.convert(found, JobRequestResult)


class _Files:
    """The same through the state directory of the launcher that coordinates."""

    def __init__(self, job: str, directory: Path) -> None:
        self._job = job
        self._directory = directory

    def job(self) -> dict[str, Any]:
        told = read_if_whole(self._directory / JOB_FILE, dict[str, Any])
        if told is None:
            raise InputError(
                f"{self._directory} has no job.json: give --state-dir of the launcher that coordinates, or --service"
            )
        if told["id"] != self._job:
            raise InputError(f"{self._directory} belongs to job {told['id']}, not {self._job}")
        return told

    def send_request(self, request: JobRequest) -> str:
        try:
            write_request(self._directory, request)
        except OSError as error:
            raise InputError(f"{self._directory}: the request cannot be written there: {error.strerror}") from error
        return request.id

    def answer(self, request_id: str) -> JobRequestResult | None:
        return read_result(self._directory, request_id)
