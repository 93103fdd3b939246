"""Who coordinates when the coordinator is gone: the launchers decide among themselves, a term at a time.

lost      the connection ends, or nothing is heard: this node's ranks leave their collectives at once. A node without a
          coordinator does not train
fate      an election endpoint that refuses shows that the launcher has ended. Otherwise ``--node-timeout`` must have
          passed: by then a coordinator that is cut off or stopped has lost its lease (``lease``)
election  the lowest living node rank stands first, each next one a little later; a launcher votes once a term, and
          only when it has no coordinator itself. ``--quorum`` votes, its own too, make one coordinator and no second
take over the winner begins with the newest coordinator state of a voter, a generation above all that voters know of
give up   without a quorum in time this node ends its ranks, in one line

Votes are kept in memory: a launcher that ends is no member any more. Decision 18 has the reasons.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass
from typing import Final, NamedTuple

from mainstay.recovery.job_tls import JobTls
from mainstay.recovery.membership import launcher_discovery
from mainstay.recovery.membership.election_server import (
    CoordinatorAnnouncement,
    CoordinatorQuery,
    ElectionReply,
    ElectionRequest,
    RequestStatus,
    VoteRequest,
    send_election_request,
    serve_elections,
)
from mainstay.recovery.options import RunOptions
from mainstay.recovery.protocol.coordinator_state import CoordinatorState, ElectionMember
from mainstay.recovery.protocol.messages import ReplicateState, StopJob

log = logging.getLogger("mainstay.launcher")

EXIT_LOST: Final = 70
"""Exit code when the coordinator is gone or turned this node away."""
HEAD_START: Final = 0.5
"""Seconds that each living node rank waits for the ones below it: an election takes some milliseconds."""
_AGAIN_SECONDS: Final = 0.2
_PATIENCE: Final = 2.0
"""Times ``--node-timeout`` that an election may take: all who live know of the loss by one of them."""
_TELL_TIMES: Final = 20

Endpoint = tuple[str, int]


class CoordinatorLoss(NamedTuple):
    """How a coordinator was lost."""

    reason: str
    heard_at: float
    """When it was heard last, on the event loop's clock."""


@dataclass(frozen=True, slots=True)
class ElectionResult:
    """An election: what the new coordinator begins with."""

    term: int
    coordinator_state: CoordinatorState
    generation: int
    """The highest that a voter knows of."""
    lost: CoordinatorLoss
    predecessor: str
    """Its node is not waited for."""


@dataclass(eq=False)
class CoordinatorElection:
    """One a launcher."""

    _options: RunOptions
    _: KW_ONLY
    generation: Callable[[], int]
    """The highest that this launcher has heard of."""
    coordinates: Callable[[], bool]
    """Whether the coordinator of this job is in this process now."""
    take_office: Callable[[ElectionResult, str], Awaitable[Endpoint]]
    """Becomes the coordinator; gives where its coordinator server is."""
    resign: Callable[[str], None]
    """Called when another launcher coordinates in a higher term."""

    def __post_init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._host = ""
        self._term = self._promised = 1
        self._holder, self._holder_endpoint = "", ""
        self._coordinator_state: CoordinatorState | None = None
        self._where = ""
        """Of the elected coordinator that this launcher follows, or is."""
        self._free = False
        """This launcher has no coordinator, and knows it."""
        self._elected: Endpoint | None = None
        self._news = asyncio.Event()
        self._not_before = 0.0
        self._reporting: set[asyncio.Task[None]] = set()

    async def open(self, host: str) -> str:
        """Open the election endpoint on this node's own address ``host``; gives ``host:port`` as others reach it.

        Raises:
            OSError: this node cannot listen there.
        """
        self._host = host
        options, known = self._options, self._options.launcher_endpoint
        port = known[1] if known else 0
        self._server = await serve_elections(host, port, options.control_tls, options.job, self._answer)
        return f"{known[0] if known else host}:{self._server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._reporting:
            task.cancel()

    def load_state(self, legacy: ReplicateState) -> None:
        """The coordinator says what is to be known when it dies."""
        self._term, self._promised = legacy.term, max(self._promised, legacy.term)
        self._holder, self._holder_endpoint = legacy.holder, legacy.election_endpoint
        self._coordinator_state = legacy.coordinator_state
        self._free, self._elected = False, None
        self._note()

    def _note(self) -> None:
        if self._coordinator_state is not None:
            launcher_discovery.keep(self._options, self._coordinator_state, self._promised)

    @property
    def deposed(self) -> bool:
        """Another launcher than the one that is followed coordinates now."""
        return self._elected is not None

    # Asked by others

    def _answer(self, question: ElectionRequest) -> ElectionReply:
        if isinstance(question, CoordinatorAnnouncement):
            self._hear(question)
        if not isinstance(question, VoteRequest):
            where = "" if self._free or self.deposed else self._where
            return ElectionReply(term=self._promised, coordinates=self.coordinates(), coordinator=where)
        refusal = self._refusal(question)
        if not refusal:
            log.warning("node %s has this node's vote for term %d", question.node, question.term)
            self._promised = question.term
            self._not_before = _now() + HEAD_START * 2
            self._note()
        return ElectionReply(
            term=self._promised,
            coordinates=self.coordinates(),
            granted=not refusal,
            generation=self.generation(),
            coordinator_state=None if refusal else self._coordinator_state,
            reason=refusal,
        )

    def _refusal(self, question: VoteRequest) -> str:
        if self.coordinates() or not self._free:
            return f"node {self._options.node} has a coordinator"
        if question.term <= self._promised:
            return f"node {self._options.node} has promised term {self._promised}"
        state = self._coordinator_state
        if self._options.spare_nodes and state is not None and question.node not in _living(state):
            return f"node {question.node} was lost, and another may have taken its place"
        return ""

    def _hear(self, call: CoordinatorAnnouncement) -> None:
        if call.term <= self._term or call.node == self._options.node:
            return
        if self.coordinates():
            self.resign(f"node {call.node} coordinates now (term {call.term})")
            return
        host, _, port = call.endpoint.rpartition(":")
        self._term, self._promised = call.term, max(self._promised, call.term)
        self._holder = call.node
        self._elected = host, int(port)
        if self._coordinator_state is not None:
            self._holder_endpoint = next(
                (e.election_endpoint for e in self._coordinator_state.electors if e.node == call.node), ""
            )
        self._news.set()

    # Deciding

    async def next(self, lost: CoordinatorLoss) -> Endpoint | StopJob:
        """Where the next coordinator of this job is, once there is one; or why this node ends."""
        if (called := self._elected) is not None:
            return self._follow(called)
        refusal = self._hopeless() or await self._fate(lost)
        if refusal:
            return StopJob(exit_code=EXIT_LOST, reason=f"{lost.reason}; {refusal}")
        self._free = True
        deadline = _now() + _PATIENCE * self._options.node_seconds
        self._not_before = _now() + HEAD_START * self._ahead()
        agreed = 0
        while _now() < deadline:
            if (elected := self._elected) is not None:
                return self._follow(elected)
            if self._coordinator_state is not None and _now() >= self._not_before:
                found, agreed = await self._stand(self._coordinator_state, lost)
                if found is not None:
                    return found
            self._news.clear()
            await _wait(self._news, _AGAIN_SECONDS)
        options = self._options
        why = f"{agreed} of {options.max_nodes} launchers agree to another one and {options.quorum} must (--quorum)"
        return StopJob(exit_code=EXIT_LOST, reason=f"{lost.reason}; {why}: this node ends its ranks")

    def _follow(self, endpoint: Endpoint) -> Endpoint:
        self._elected, self._free = None, False
        self._where = f"{endpoint[0]}:{endpoint[1]}"
        return endpoint

    def _hopeless(self) -> str:
        """Why there cannot be another coordinator; empty when there can."""
        options = self._options
        if not self._holder:
            return "the job had not begun"
        left = options.max_nodes - 1
        if left < options.quorum:
            return f"another one needs {options.quorum} of {left + 1} launchers (--quorum), and {left} can be left"
        return ""

    async def _fate(self, lost: CoordinatorLoss) -> str:
        """Wait until the coordinator is gone for certain; why it is not, when it lives."""
        until = lost.heard_at + self._options.node_seconds
        query = CoordinatorQuery(job=self._options.job, term=self._term)
        while not self.deposed:
            seconds = min(1.0, self._options.node_seconds / 4)
            found = await send_election_request(self._holder_endpoint, query, self._options.control_tls, seconds)
            if found is RequestStatus.REFUSED:
                return ""
            if isinstance(found, ElectionReply):
                return "it lives, and has given this node up" if found.coordinates else ""
            if _now() >= until:
                return ""
            await _wait(self._news, _AGAIN_SECONDS)
        return ""

    def _others(self, coordinator_state: CoordinatorState) -> list[ElectionMember]:
        gone = {self._options.node, self._holder}
        return [e for e in coordinator_state.electors if e.node not in gone and e.alive and e.election_endpoint]

    def _ahead(self) -> int:
        if self._coordinator_state is None:
            return 0
        return sum(e.node_rank < self._options.node_rank for e in self._others(self._coordinator_state))

    async def _stand(self, coordinator_state: CoordinatorState, lost: CoordinatorLoss) -> tuple[Endpoint | None, int]:
        """Stand for election; where the coordinator is if that decides it, and how many votes there were."""
        term = self._promised = self._promised + 1
        others = self._others(coordinator_state)
        tls = self._options.control_tls
        call = VoteRequest(job=self._options.job, term=term, node=self._options.node)
        answers = [
            a
            for a in await asyncio.gather(*(send_election_request(e.election_endpoint, call, tls) for e in others))
            if isinstance(a, ElectionReply)
        ]
        self._promised = max([self._promised, *(a.term for a in answers)])
        granted = [a for a in answers if a.granted]
        votes = 1 + len(granted)
        if self._elected is not None:
            return self._follow(self._elected), votes
        if votes < self._options.quorum:
            return None, votes
        newest = max(
            [coordinator_state, *(a.coordinator_state for a in granted if a.coordinator_state)], key=lambda t: t.age
        )
        generation = max([self.generation(), newest.generation, *(a.generation for a in granted)])
        predecessor, self._term, self._holder = self._holder, term, self._options.node
        log.warning("node %s coordinates now (term %d, %d votes): %s", self._holder, term, votes, lost.reason)
        endpoint = await self.take_office(ElectionResult(term, newest, generation, lost, predecessor), self._host)
        self._free, self._where = False, f"{endpoint[0]}:{endpoint[1]}"
        self._announce(newest, term, endpoint)
        return endpoint, votes

    # Announcements

    def _announce(self, coordinator_state: CoordinatorState, term: int, endpoint: Endpoint) -> None:
        """Tell every launcher, the old coordinator's too: it may have been stopped, and must know when it wakes."""
        call = CoordinatorAnnouncement(
            job=self._options.job, term=term, node=self._options.node, endpoint=f"{endpoint[0]}:{endpoint[1]}"
        )
        for elector in coordinator_state.electors:
            if elector.node != self._options.node and elector.election_endpoint:
                task = asyncio.create_task(_retry(elector.election_endpoint, call, self._options.control_tls))
                self._reporting.add(task)
                task.add_done_callback(self._reporting.discard)


def _living(state: CoordinatorState) -> set[str]:
    return {elector.node for elector in state.electors if elector.alive}


async def _retry(election_endpoint: str, call: CoordinatorAnnouncement, tls: JobTls) -> None:
    for _ in range(_TELL_TIMES):
        if await send_election_request(election_endpoint, call, tls) is not RequestStatus.SILENT:
            return
        await asyncio.sleep(1.0)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def _now() -> float:
    return asyncio.get_running_loop().time()
