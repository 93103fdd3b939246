"""A part of a step that this node's disk does not have, from the disks of other nodes: see decision 75.

The other nodes read their parts and parity rows into memory, where the rebuild of a group (``agent.rebuild``) finds
them. Nothing is written here: the slot that came back goes to disk as every other one does.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import defaultdict
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYetError
from typing import Final

import numpy as np

from mainstay.probes.core_types import validate_name
from mainstay.recovery.agent import transfer
from mainstay.recovery.agent.arena_files import commit_checked
from mainstay.recovery.agent.checkpoint_exchange import WAIT_SECONDS
from mainstay.recovery.agent.checkpoint_reader import CheckpointReader
from mainstay.recovery.agent.errors import AgentError, NoSuchSlotError
from mainstay.recovery.agent.messages import Fetch, Fetched, GroupMember, LoadDisk, Rebuild
from mainstay.recovery.agent.node import AgentNode
from mainstay.recovery.agent.parity_store import META, ParityRowKey, read_description, row_name
from mainstay.recovery.agent.peer_messages import LoadedForRebuild, LoadForRebuild
from mainstay.recovery.agent.rebuild import MAX_STREAMS, rebuild
from mainstay.recovery.checkpoint.catalog import RunDirectory
from mainstay.recovery.checkpoint.load import read_tensors
from mainstay.recovery.checkpoint.manifest import CheckpointError
from mainstay.recovery.checkpoint.slot_reader import read_slot, slot_layout
from mainstay.recovery.memory.digest import Bytes
from mainstay.recovery.memory.errors import ArenaError

READERS: Final = 4
"""Ranks read at a time for other nodes."""

log = logging.getLogger("mainstay.agent")


class DiskRebuild:
    """Reads for other nodes what they lack, and brings what this one lacks."""

    def __init__(self, node: AgentNode, reader: CheckpointReader) -> None:
        self._node = node
        self._reader = reader
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="disk-rebuild")
        self._under_way: dict[tuple[LoadForRebuild, int], Future[tuple[str, ...]]] = {}
        """By generation too: a later one looks again."""
        self._extra: set[int] = set()
        """Ranks of other nodes of which a copy is here only since it was read."""
        self._lock = threading.Lock()
        self._locks: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)

    # For another node

    def answer(self, request: LoadForRebuild, generation: int, run: str) -> LoadedForRebuild:
        """Begin to read, and wait a while for the end. ``run`` is the one that this agent writes for."""
        with self._lock:
            known = {key: future for key, future in self._under_way.items() if key[1] >= generation}
            if (request, generation) not in known:
                known[request, generation] = self._pool.submit(self._load, request, generation, run)
            self._under_way, future = known, known[request, generation]
        try:
            return LoadedForRebuild(pending=False, problems=future.result(WAIT_SECONDS))
        except NotYetError:
            return LoadedForRebuild(pending=True)

    def _load(self, request: LoadForRebuild, generation: int, run: str) -> tuple[str, ...]:
        problems = []
        with self._locks[request.rank]:  # it may be asked for alone and for its group
            for load in (self._load_slot, self._load_rows):
                try:
                    load(request, generation, run)
                except (AgentError, ArenaError, OSError, ValueError) as error:
                    problems.append(str(error) or type(error).__name__)
        return tuple(problems)

    def _source(self, run: str) -> RunDirectory:
        directory = self._node.settings.checkpoint_dir
        if directory is None:
            raise NoSuchSlotError(f"node {self._node.settings.node} has no --checkpoint-dir")
        return RunDirectory(directory / validate_name(run, "run"))

    def _load_slot(self, request: LoadForRebuild, generation: int, run: str) -> None:
        store, rank, source = self._node.store, request.rank, self._source(request.run)
        with contextlib.suppress(ArenaError, NoSuchSlotError):  # the disk has it
            arena, record = store.verified(rank, request.epoch)
            arena.check(record)
            return
        if store.has(rank) and store.newest_epoch(rank) <= request.epoch:  # else it trains
            order = LoadDisk(rank=rank, epoch=request.epoch, directory=str(source.path.parent), run=request.run)
            self._reader.load(order, generation, run)
            return
        found = [part.generation for part in source.parts(request.epoch) if part.rank == rank]
        if not found:
            raise NoSuchSlotError(f"{source.step(request.epoch)} does not hold rank {rank}")
        part = source.part(request.epoch, rank, max(found))
        layout = slot_layout(source, part)
        if store.copies.find_copy(rank) is None:
            self._extra.add(rank)
        kept, slot = store.copies.begin_copy(rank, layout)
        read = read_slot(source, part, layout, kept.slot_bytes(slot)[: layout.nbytes])
        since = part.generation if request.run == run else generation
        commit_checked(kept, slot, request.epoch, since, read)

    def _load_rows(self, request: LoadForRebuild, _generation: int, _run: str) -> None:
        if not request.ranks:
            return
        rows, source, rank = self._node.rows, self._source(request.run), request.rank
        key = ParityRowKey(request.ranks, request.ranks.index(rank))
        try:
            rows.find(key, request.epoch, check=True)
        except (ArenaError, NoSuchSlotError):
            tensors = _read_rows(source, request)
            description = read_description(tensors.pop(META))
            arena, slot, places = rows.begin_row(key, description.parity, len(tensors[row_name(0)]))
            for number, place in enumerate(places):
                np.copyto(place, tensors[row_name(number)])
            rows.commit(arena, slot, request.epoch, description.parity, description.parts)

    def release(self) -> None:
        """Give back the memory of copies that were read: all ranks have what they asked for."""
        self._node.store.copies.release(self._extra)
        self._extra.clear()

    # For this node

    def restore(self, order: LoadDisk, generation: int, run: str, problem: str) -> Fetched:
        """Carry out ``LoadDisk`` of a part that other nodes' disks have, or parity of it; here there is a ``problem``.

        Raises:
            NoSuchSlotError: too little is left; names what, and each file that is damaged.
        """
        begun = time.perf_counter()
        ranks = tuple(member.rank for member in order.holders) if len(order.holders) > 1 else ()
        asked = [member for member in order.holders if member.endpoint]
        with ThreadPoolExecutor(MAX_STREAMS, "disk-rebuild") as pool:
            answers = pool.map(lambda member: self._ask(member, order, ranks, generation), asked)
            told = [f"node {each.node}: {why}" for each, whys in zip(asked, answers, strict=True) for why in whys]
        for why in told:
            log.warning("step %d of rank %d is rebuilt without what is damaged: %s", order.epoch, order.rank, why)
        try:
            if ranks:
                wanted = Rebuild(rank=order.rank, epoch=order.epoch, group=order.holders)
                found = rebuild(self._node, wanted, generation, since=None if order.run == run else generation)
            else:
                (holder,) = order.holders
                fetch = Fetch(rank=order.rank, epoch=order.epoch, from_rank=holder.rank, endpoint=holder.endpoint)
                found = transfer.fetch(self._node, fetch, generation)
        except AgentError as error:
            raise NoSuchSlotError("; ".join((problem, *told, str(error)))) from error
        how, nodes = "rebuilt from parity" if ranks else "copied", ", ".join(member.node for member in asked)
        log.warning(
            "step %d of run %s: rank %d was %s on the disks of %s, in %.1f s",
            order.epoch, order.run, order.rank, how, nodes, time.perf_counter() - begun,
        )  # fmt: skip
        return found

    def _ask(self, member: GroupMember, order: LoadDisk, ranks: tuple[int, ...], generation: int) -> tuple[str, ...]:
        """Have another node read what it has; what it lacks."""
        request = LoadForRebuild(run=order.run, epoch=order.epoch, rank=member.rank, ranks=ranks)
        try:
            with self._node.peer(member.endpoint, generation) as peer:
                while (answer := peer.call(request, LoadedForRebuild)).pending:
                    pass
        except AgentError as error:
            return (str(error),)
        return answer.problems


def _read_rows(run: RunDirectory, request: LoadForRebuild) -> dict[str, Bytes]:
    """The rows of the rank for its group, the newest that are whole.

    Raises:
        CheckpointError: there are none; says what is damaged.
    """
    problem = CheckpointError(f"{run.step(request.epoch)} holds no parity of ranks {request.ranks} by {request.rank}")
    for rank, generation in reversed(run.parity_files(request.epoch)):
        if rank == request.rank:
            try:
                tensors = read_tensors(run, run.part(request.epoch, rank, generation, parity=True))
                if tuple(member.rank for member in read_description(tensors[META]).parts) == request.ranks:
                    return tensors
            except CheckpointError as error:
                problem = error
    raise problem
