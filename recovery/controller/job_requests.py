"""Requests from outside the job (``mainstay.recovery.job_request``): heard, started when the job has time, answered.

A workflow carries out each kind (``workflows``): the coordinator registers it in ``handlers``.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, Protocol

from mainstay.recovery.controller.job import Job, log
from mainstay.recovery.controller.state.job_state import JobPhase
from mainstay.recovery.job_request import (
    OPEN,
    JobRequest,
    JobRequestResult,
    RequestKind,
    RequestState,
    read,
    read_requests,
)
from mainstay.recovery.membership.members import Members

REMEMBERED: Final = 64
"""Results that a job report carries at most: the service asks for each until it has arrived."""
PLANNED: Final = frozenset({RequestKind.MIGRATE, RequestKind.RESHAPE})
"""They stop all ranks for a planned change: one at a time, and only while every rank takes part."""


class RequestRejectedError(RuntimeError):
    """The request is not carried out; the message says why in one line."""


def named_ranks(members: Members, request: JobRequest) -> list[int]:
    """The ranks that a request is about.

    Raises:
        RequestRejectedError: the job has no such rank or node.
    """
    if request.rank is not None:
        if not 0 <= request.rank < len(members.ranks):
            raise RequestRejectedError(
                f"the job has no rank {request.rank}: its ranks are 0 to {len(members.ranks) - 1}"
            )
        return [request.rank]
    if request.node not in members.nodes:
        names = ", ".join(sorted(members.nodes))
        raise RequestRejectedError(f"the job has no node {request.node}: its nodes are {names}")
    return [rank.number for rank in members.on(request.node)]


class RequestHandler(Protocol):
    """What carries out one kind of request."""

    def obstacle(self, kind: RequestKind) -> str:
        """Why the job can carry out no request of ``kind`` now, in one line; empty: it can, as far as is known.

        Only asked of a job whose ranks use the SDK and train.
        """

    def start(self, request: JobRequest) -> None:
        """Begin, where there is no ``obstacle``, and give every further state to ``JobRequests.answer``.

        Raises:
            RequestRejectedError: it cannot be done.
        """


class JobRequests:
    """One a coordinator."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.handlers: dict[RequestKind, RequestHandler] = {}
        self._waiting: dict[str, JobRequest] = {}
        self._planned: set[str] = set()
        """Planned changes under way."""
        self._results: dict[str, JobRequestResult] = {}
        job.reporter.listen(lambda answer: self.submit(read(answer)))

    def submit(self, given: Collection[JobRequest]) -> None:
        """Hear requests; one that was heard before is not carried out twice."""
        for request in given:
            if request.id not in self._results:
                self._waiting.setdefault(request.id, request)

    def run_once(self) -> None:
        """Called every second or so: start what the job has time for, the oldest first."""
        self.submit(read_requests(self._job.options.state_dir))
        for request in list(self._waiting.values()):
            if request.id in self._results:  # heard once more in the moment in which it began
                del self._waiting[request.id]
            elif self._is_free(request.kind):
                del self._waiting[request.id]
                self._start(request)

    def _is_free(self, kind: RequestKind) -> bool:
        job = self._job
        if job.state.over or job.state.phase is not JobPhase.RUNNING or job.active:
            return False
        return kind not in PLANNED or not (self._planned or job.busy)

    def _start(self, request: JobRequest) -> None:
        if request.kind in PLANNED:
            self._planned.add(request.id)
        problem = self._obstacle(request.kind)
        if not problem:
            try:
                self.handlers[request.kind].start(request)
            except RequestRejectedError as error:
                problem = str(error)
        if problem:
            log.warning("no %s of %s: %s", request.kind, request.subject, problem)
            self.answer(request, RequestState.REJECTED, problem)

    def answer(self, request: JobRequest, state: RequestState, detail: str, **figures: Any) -> None:
        """Note what became of ``request``; the job report tells it."""
        if state not in OPEN:
            self._planned.discard(request.id)
        self._results.pop(request.id, None)
        self._results[request.id] = JobRequestResult(id=request.id, state=state, detail=detail[:500], **figures)
        while len(self._results) > 2 * REMEMBERED:
            del self._results[next(iter(self._results))]
        self._job.control.report()

    def obstacles(self) -> dict[str, str]:
        """Kind -> why no request of that kind can be carried out now; empty: it can."""
        return {kind.value: self._obstacle(kind) for kind in self.handlers}

    def _obstacle(self, kind: RequestKind) -> str:
        members = self._job.members
        if members.shape is None:
            return "the script does not use the SDK: its ranks have no snapshots"
        if any(rank.gone for rank in members.ranks):
            return "ranks have left the training loop already: the job is about to end"
        return self.handlers[kind].obstacle(kind)

    def results(self) -> list[JobRequestResult]:
        """What became of requests, for the job report; the oldest are forgotten first."""
        return list(self._results.values())[-REMEMBERED:]
