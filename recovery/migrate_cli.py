"""``mainstay migrate``: move ranks of a running job to standbys elsewhere, and stay until it is done.

What cannot work is said before anything is asked of the job. Through the service, or without one through the state
directory of the launcher that coordinates. Exit codes: 0 moved, 1 the job did not, 2 bad input, 4 no answer in time,
5 the service did not take it.
"""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from cyclopts import Parameter

from detectors.shell import BAD_INPUT, InputError, one_line
from probes.ids import uuid7
from probes.transport import Later, Transport, TransportError
from recovery.advice import Advice, AdviceKind, AdviceState, Answer, leave_file

NOT_MOVED: Final = 1
NO_ANSWER: Final = 4
NO_SERVICE: Final = 5
POLL_SECONDS: Final = 0.25
SILENT_SECONDS: Final = 10.0
"""A coordinator reports each second; one that is silent for so long may be gone."""
_GONE = "The job's coordinator has not been heard for {age:.0f} s: it may be gone, and then nothing will happen."
_AFTER: Final = {
    AdviceState.REFUSED: "Nothing was begun; every rank is where it was.",
    AdviceState.FAILED: "The ranks are where they were, or where a recovery has put them.",
}


class ServiceError(Exception):
    """The service cannot be reached, or did not take what it was given."""


class _NoAnswerError(Exception):
    """The job has not said in time what became of it."""


_one_line = one_line("mainstay migrate", {InputError: BAD_INPUT, ServiceError: NO_SERVICE, _NoAnswerError: NO_ANSWER})


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """How the job is reached: through the service, or where its coordinator runs."""

    service: Annotated[
        str | None, Parameter(env_var="MAINSTAY_SERVICE", help="Where the service listens, http(s)://host:port.")
    ] = None
    token: Annotated[
        str | None,
        Parameter(env_var="MAINSTAY_TOKEN", help="A token that may act (others can read it here: prefer a file)."),
    ] = None
    token_file: Annotated[Path | None, Parameter(env_var="MAINSTAY_TOKEN_FILE", help="A file with the token.")] = None
    state_dir: Annotated[
        Path | None, Parameter(help="Without a service: --state-dir of the launcher that coordinates, on its machine.")
    ] = None


@_one_line
def migrate(
    job: Annotated[str, Parameter(help="The job's id.")],
    /,
    where: Where = Where(),
    *,
    rank: Annotated[int | None, Parameter(help="The rank that moves.")] = None,
    node: Annotated[str | None, Parameter(help="Or the node that all ranks of the job leave.")] = None,
    to: Annotated[str | None, Parameter(help="The node that they go to; by default where standbys wait.")] = None,
    why: Annotated[str, Parameter(help="The reason; it stands in the job's events.")] = "asked for by hand",
    timeout: Annotated[float, Parameter(help="Seconds after which it is no longer watched.")] = 1800.0,
) -> int:
    """Move a rank, or a node's ranks, of a running job to warm standbys on other nodes, and say what came of it.

    Training goes on meanwhile and stands still only while the newest step is fetched; nobody else is stopped.
    """
    if (rank is None) == (node is None):
        raise InputError("give either --rank R, or --node NAME for all ranks that the job has there")
    if not why.strip() or not timeout > 0:
        raise InputError("--why may not be empty, and --timeout must be above 0")
    road = _road(job, where)
    told = road.job()
    _check(job, told, rank, node, to)
    advice = Advice(id=uuid7(), kind=AdviceKind.MIGRATE, node=node, rank=rank, target=to, reason=why.strip())
    _say(f"Asking job {job} to move {_what(advice)}.")
    if told["state"] == "recovering":
        _say("It recovers from a failure just now; it will follow once it trains again.")
    age = time.time() - told.get("last_seen_at", time.time())
    if age > SILENT_SECONDS:
        _say(_GONE.format(age=age))
    return _follow(road, road.give(advice), timeout)


def _what(advice: Advice) -> str:
    ranks = f"rank {advice.rank}" if advice.node is None else f"its ranks on {advice.node}"
    return ranks + (f" to {advice.target}" if advice.target else " to standbys on other nodes")


def _say(line: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')}  {line}\n")
    sys.stdout.flush()


# what can be known beforehand


def _check(job: str, told: dict[str, Any], rank: int | None, node: str | None, to: str | None) -> None:
    """Say what cannot work while nobody has been asked yet.

    Raises:
        InputError: one line that names what is wrong, and what there is instead.
    """
    if told["state"] in {"finished", "failed"}:
        raise InputError(f"job {job} is {told['state']}: there is nothing to move")
    ranks = told["topology"]["ranks"]
    homes = {place["rank"]: place["node"] for place in ranks}
    nodes = ", ".join(sorted(set(homes.values())))
    if rank is not None and rank not in homes:
        raise InputError(f"job {job} has no rank {rank}: its ranks are 0 to {len(homes) - 1}")
    if node is not None and node not in homes.values():
        raise InputError(f"job {job} has no rank on node {node}: its ranks are on {nodes}")
    source = node if rank is None else homes[rank]
    moving = 1 if rank is not None else sum(home == node for home in homes.values())
    if to == source:
        raise InputError(f"{'rank ' + str(rank) if node is None else 'what is to move'} is on {to} already")
    standbys: dict[str, int] | None = told["topology"].get("standbys")
    if standbys is None:
        return  # an older coordinator: it will say itself
    if to is not None and to not in standbys:
        raise InputError(f"job {job} has no node {to}: it runs on {', '.join(sorted(standbys))}")
    ready = sum(count for name, count in standbys.items() if name != source and to in {None, name})
    if ready < moving:
        waiting = ", ".join(f"{count} on {name}" for name, count in sorted(standbys.items()) if count) or "none at all"
        place = to or "other nodes"
        raise InputError(
            f"{moving} warm standby(s) on {place} are needed and {ready} are ready (standbys now: {waiting}); "
            "start the job with --spares, or wait until a standby is back"
        )


# asking, and staying


class Road(ABC):
    """A way to a job's coordinator."""

    @abstractmethod
    def job(self) -> dict[str, Any]:
        """The job as last reported.

        Raises:
            InputError: there is no such job.
            ServiceError: nobody answers.
        """

    @abstractmethod
    def give(self, advice: Advice) -> str:
        """Give it; the id by which it is known from then on."""

    @abstractmethod
    def answer(self, advice_id: str) -> Answer | None:
        """What became of it so far, None while nothing is heard."""


def _follow(road: Road, advice_id: str, timeout: float, sleep: Callable[[float], None] = time.sleep) -> int:
    until, state = time.monotonic() + timeout, AdviceState.GIVEN
    while time.monotonic() < until:
        answer = road.answer(advice_id)
        if answer is not None and answer.state is not state:
            state = answer.state
            if state is AdviceState.ACCEPTED:
                _say(f"Under way: {answer.detail}. Training goes on while their snapshots are fetched.")
            elif state is not AdviceState.GIVEN:
                return _end(answer)
        sleep(POLL_SECONDS)
    begun = "it has begun and not ended" if state is AdviceState.ACCEPTED else "the job has not answered"
    raise _NoAnswerError(f"after {timeout:g} s {begun}; advice {advice_id} still stands and may yet be followed")


def _end(answer: Answer) -> int:
    if answer.state is AdviceState.DONE:
        steps = "" if answer.steps_lost is None else f"; {answer.steps_lost} step(s) are made again"
        _say(f"Done: {answer.detail}{steps}.")
        return 0
    _say(f"{answer.state.capitalize()}: {answer.detail}. {_AFTER[answer.state]}")
    return NOT_MOVED


def _road(job: str, where: Where) -> Road:
    if where.state_dir is not None:
        return _Files(job, where.state_dir)
    if where.service is None:
        raise InputError("give --service URL with a token, or --state-dir DIR of the launcher that coordinates")
    return _Service(job, _transport(where.service, where.token, where.token_file))


def _transport(service: str, token: str | None, token_file: Path | None) -> Transport:
    try:
        secret = (token or "") if token_file is None else token_file.read_text("ascii").strip()
        if not secret.isprintable() or not secret:
            raise InputError("no token: give --token-file, or --token")
        return Transport(service, secret)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{token_file}: no token can be read from it: {error}") from error
    except ValueError as error:
        raise InputError(str(error)) from error


class _Service(Road):
    """Through the control plane."""

    def __init__(self, job: str, transport: Transport) -> None:
        self._job = job
        self._transport = transport

    def job(self) -> dict[str, Any]:
        try:
            told: dict[str, Any] = self._transport.json("GET", f"/jobs/{self._job}")
        except TransportError as error:
            if error.slug != "unknown-job":
                raise ServiceError(str(error)) from error
            running = self._ask("GET", "/jobs?state=running")["items"]
            names = ", ".join(sorted(one["id"] for one in running)[:20]) or "none"
            raise InputError(f"there is no job {self._job}; running now: {names}") from error
        return told

    def give(self, advice: Advice) -> str:
        body = {"node": advice.node, "rank": advice.rank, "target": advice.target, "reason": advice.reason[:200]}
        return str(self._ask("POST", f"/jobs/{self._job}/advice", body)["id"])

    def answer(self, advice_id: str) -> Answer | None:
        try:
            items = self._transport.json("GET", f"/jobs/{self._job}/advice")["items"]
        except Later:
            return None  # the job follows its advice whether or not we hear of it
        found = next((one for one in items if one["id"] == advice_id), None)
        return None if found is None else msgspec.convert(found, Answer)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        try:
            return self._transport.json(method, path, body)
        except TransportError as error:
            raise ServiceError(str(error)) from error


class _Files(Road):
    """Through the state directory of the launcher that coordinates."""

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

    def give(self, advice: Advice) -> str:
        try:
            leave_file(self._directory, advice)
        except OSError as error:
            raise InputError(f"{self._directory}: advice cannot be written there: {error.strerror}") from error
        return advice.id

    def answer(self, advice_id: str) -> Answer | None:
        answers = (self._read() or {}).get("advice", [])
        found = next((one for one in answers if one["id"] == advice_id), None)
        return None if found is None else msgspec.convert(found, Answer)

    def _read(self) -> dict[str, Any] | None:
        try:
            told: dict[str, Any] = msgspec.json.decode((self._directory / "job.json").read_bytes())
        except (OSError, msgspec.DecodeError):
            return None
        return told
