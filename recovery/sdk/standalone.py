"""A rank's session with a standalone agent: agree with the other ranks on what to resume, and save together.

The ranks meet in two exchanges without a coordinator: one for the generation (the lowest that any agent listens to,
plus one, so that writers of an earlier start are fenced), one for the epochs that each holds. They resume the newest
epoch that every rank can have, in its own slot or in a replica's.

Two slots a rank are enough because no rank overwrites epoch e - 2 before all hold e - 1: ``save`` waits for its own
copy and then for a vote. So ranks differ by one epoch at most, and the lower of the two is everywhere.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist

from mainstay.recovery.agent import standalone
from mainstay.recovery.agent.client import AgentClient
from mainstay.recovery.agent.errors import AgentError
from mainstay.recovery.agent.standalone import AgentAddress
from mainstay.recovery.agent.store import arena_path
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.errors import ArenaError
from mainstay.recovery.memory.layout import Layout
from mainstay.recovery.memory.shard import RestorableState
from mainstay.recovery.protocol.worker_messages import Assign, RestoreOrder
from mainstay.recovery.recovery_plan import RestoreSource
from mainstay.recovery.sdk.job_reporter import JobReporter, find_service, topology
from mainstay.recovery.sdk.rank_exchange import T, tell_all
from mainstay.recovery.sdk.snapshot_session import RestoreError, SnapshotSession

log = logging.getLogger("mainstay.adapters")

_GONE: Final = -1


@dataclass(frozen=True, slots=True)
class EpochOffer:
    """What one rank brings to the agreement."""

    epochs: tuple[int, ...]
    endpoint: str


@dataclass(frozen=True, slots=True)
class ResumeChoice:
    """What all resume, and from where this rank has it."""

    epoch: int
    from_rank: int


def choose(
    offers: Sequence[EpochOffer], replicas: Sequence[Sequence[int]], rank: int, refused: frozenset[int]
) -> ResumeChoice | None:
    """The newest epoch that every rank can have; None: there is none, so training begins again.

    Args:
        offers: by rank.
        replicas: by rank, who else holds the same state.
        rank: whose source is asked for.
        refused: epochs that were tried and could not be read.
    """
    within_reach = [
        set(offer.epochs).union(*(offers[other].epochs for other in replicas[index])) - refused
        for index, offer in enumerate(offers)
    ]
    common = set.intersection(*within_reach) if within_reach else set()
    if not common:
        return None
    epoch = max(common)
    holders = [rank, *sorted(replicas[rank])]
    return ResumeChoice(epoch, next(other for other in holders if epoch in offers[other].epochs))


class StandaloneSession:
    """See the module. All calls belong to the training thread, and every rank of ``group`` makes them.

    Making one meets the others, ``register`` says what is saved and put back; between the two a framework that
    must know early may ask for ``newest``.

    Args:
        group: all ranks of the job; None: the default group, or this process alone where there is none.
        replicas: ranks that hold the same state, from whom it may be fetched when this node's memory is gone.
    """

    def __init__(self, *, group: dist.ProcessGroup | None = None, replicas: Sequence[int] = ()) -> None:
        self._group = group
        self._alone = not dist.is_initialized()
        self.rank = 0 if self._alone else dist.get_rank(group)
        self._replicas = self._all_replicas(replicas)
        self._place = _find(self.rank)
        self._anybody = False
        """Whether any rank has an agent: if not, this is an ordinary loop."""
        self.generation = self._agree_generation()
        self._agent = self._call_agent()
        self._protection: SnapshotSession | None = None
        self.epoch = 0
        """The newest that was saved or resumed."""
        self._reporter = self._begin_reports()

    def register(self, state: RestorableState) -> None:
        """What is saved and put back from now on. Another layout than an earlier start's gives that one's slots up."""
        if self._protection is not None:
            self._protection.close()
        if self._place is not None:
            self._protection = SnapshotSession(self._assignment(self._place), self.generation, state)

    def newest(self) -> int | None:
        """The newest epoch that every rank can have; None: training begins again."""
        if not self._anybody or _unwanted():
            return None
        choice = choose(self._exchange_offers(), self._replicas, self.rank, frozenset())
        return None if choice is None else choice.epoch

    def layout(self) -> Layout | None:
        """Of what this rank left in this node's memory; None: nothing, or nothing that can be read."""
        if self.folder is None:
            return None
        try:
            return Arena.attach(arena_path(self.folder, self.rank)).layout
        except (OSError, ArenaError):
            return None

    @property
    def folder(self) -> Path | None:
        """This node's memory of the job; None where no agent stands."""
        return None if self._place is None else Path(self._place.socket).parent

    @property
    def protected(self) -> bool:
        """Whether a restart would find this rank's state in memory."""
        return self._protection is not None and not self._protection.problem

    def resume(self) -> int:
        """Put the newest common epoch back into the live state; its number, 0 when training begins again.

        Raises:
            RuntimeError: a peer is gone.
        """
        if not self._anybody or _unwanted():
            return self._begin_anew()
        offers = self._exchange_offers()
        refused: frozenset[int] = frozenset()
        while (choice := choose(offers, self._replicas, self.rank, refused)) is not None:
            if self._all_agree(self._restore(choice, offers)):
                self.epoch = choice.epoch
                if self.rank == 0:  # a warning, because by default nothing less is shown, and a restart is news
                    log.warning("all ranks resume epoch %d from memory", choice.epoch)
                return choice.epoch
            refused |= {choice.epoch}
        return self._begin_anew()

    def save(self, epoch: int) -> None:
        """Begin to copy ``epoch``; the state must not change until ``settle``.

        Raises:
            RuntimeError: a peer is gone.
        """
        self.epoch = epoch
        if not self._anybody:
            return
        self.settle()
        self._all_agree(ok=True)  # no rank overwrites what the slowest may still need
        if self._protection is not None:
            self._protection.save(epoch)

    def settle(self) -> float:
        """Wait until the copy under way is committed; seconds blocked."""
        return 0.0 if self._protection is None else self._protection.settle()

    def close(self) -> None:
        """Finish the copy under way and hang up. The slots stay with the agent."""
        if self._protection is not None:
            self._protection.close()
        if self._agent is not None:
            self._agent.close()
        if self._reporter is not None:
            self._reporter.close()

    def _begin_reports(self) -> JobReporter | None:
        """Tell the service of the job, where it is protected and a service is configured. Every rank names its node."""
        if not self._anybody:
            return None
        nodes = self._tell_all(standalone.node_name())
        transport = None if self.rank else find_service()
        if transport is None:
            return None
        job, where = standalone.job_name(), topology(nodes, self._replicas)
        return JobReporter(transport, job, where, generation=self.generation, step=lambda: self.epoch)

    # Agreement

    def _agree_generation(self) -> int:
        try:
            alive = _GONE if self._place is None else self._place.lowest_alive()
        except (AgentError, OSError) as error:
            _degraded(self.rank, f"trains without protection: {error}")
            alive = _GONE
        if alive == _GONE:
            self._place = None
        lowest = max(self._tell_all(alive))
        self._anybody = lowest != _GONE
        return lowest + 1

    def _call_agent(self) -> AgentClient | None:
        place = self._place
        if place is None:
            return None
        client = AgentClient(place.socket, job=place.job, generation=self.generation)
        try:
            client.fence(self.generation)
        except AgentError as error:
            _degraded(self.rank, f"could not fence earlier writers: {error}")
        return client

    def _assignment(self, place: AgentAddress) -> Assign:
        return Assign(
            rank=self.rank,
            generation=self.generation,
            env={},
            script="",
            module=False,
            argv=(),
            agent_socket=place.socket,
            job=place.job,
        )

    def _exchange_offers(self) -> list[EpochOffer]:
        offer = EpochOffer((), "")
        if self._agent is not None and self._place is not None:
            try:
                slots = self._agent.inventory().slots
                epochs = tuple(slot.epoch for slot in slots if slot.rank == self.rank and slot.verified)
                offer = EpochOffer(epochs, self._place.endpoint)
            except AgentError as error:
                _degraded(self.rank, f"does not know what its agent holds: {error}")
        return self._tell_all(offer)

    def _restore(self, choice: ResumeChoice, offers: Sequence[EpochOffer]) -> bool:
        if self._protection is None:
            return False
        own = choice.from_rank == self.rank
        order = RestoreOrder(
            epoch=choice.epoch,
            source=RestoreSource.LOCAL_SLOT if own else RestoreSource.PEER_COPY,
            from_rank=None if own else choice.from_rank,
            endpoint=None if own else offers[choice.from_rank].endpoint,
        )
        try:
            self._protection.restore(order)
        except RestoreError as error:
            _degraded(self.rank, f"cannot resume epoch {choice.epoch}: {error}")
            return False
        return True

    def _begin_anew(self) -> int:
        """Epoch 0: what earlier runs left must not be mixed with what comes."""
        if self._protection is not None:
            self._protection.forget(-1)
        self.epoch = 0
        return 0

    # Exchanges

    def _all_replicas(self, mine: Sequence[int]) -> list[list[int]]:
        world = 1 if self._alone else dist.get_world_size(self._group)
        return self._tell_all([other for other in range(world) if other in mine and other != self.rank])

    def _tell_all(self, mine: T) -> list[T]:
        """What everybody says, by rank."""
        return [mine] if self._alone else tell_all(mine, self._group, _device(self._group))

    def _all_agree(self, ok: bool) -> bool:
        if self._alone:
            return ok
        ballot = torch.tensor([int(ok)], dtype=torch.int32, device=_device(self._group))
        dist.all_reduce(ballot, dist.ReduceOp.MIN, group=self._group)
        return bool(ballot.item())


def _unwanted() -> bool:
    """Whether the user wants to begin again and ignore what the agents hold."""
    return os.environ.get("MAINSTAY_RESUME", "1") == "0"


def _find(rank: int) -> AgentAddress | None:
    job, node = standalone.job_name(), standalone.node_name()
    try:
        place = standalone.find_agent()
    except (AgentError, ValueError) as error:
        _degraded(rank, f"trains without protection: {error}")
        return None
    if place is None and os.environ.get("MAINSTAY_JOB"):
        _degraded(rank, f"no agent stands for job {job} on node {node}: start `mainstay agent --job {job}`")
    return place


def _degraded(rank: int, problem: str) -> None:
    log.error("DEGRADED rank %d %s", rank, problem)


def _device(group: dist.ProcessGroup | None) -> str:
    return "cuda" if dist.get_backend(group) == "nccl" else "cpu"
