"""What protects a written epoch, for the disk: this node's parity rows, and its copies of other ranks' slots.

Rows are written as a part of their own, and copies as the part of the rank that they are of. Both follow the parts of
this node's ranks, so that they never claim an epoch that this node did not write. See decision 70.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from mainstay.recovery.agent.errors import AgentError, CorruptError, NoSuchSlotError
from mainstay.recovery.agent.node import AgentNode
from mainstay.recovery.agent.parity import Geometry
from mainstay.recovery.agent.parity_store import META, ParityMember, ParityRowKey, read_description
from mainstay.recovery.agent.peer_messages import LayoutText, ReadLayout
from mainstay.recovery.checkpoint.catalog import DOWNLOADS, RunDirectory
from mainstay.recovery.checkpoint.listed_files import ParityFile, PartFile, RunOnDisk, file_bytes
from mainstay.recovery.checkpoint.load import part_file
from mainstay.recovery.checkpoint.manifest import MANIFEST, CheckpointError, Return, RunInfo, holds
from mainstay.recovery.checkpoint.writer import SlotOrder
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.errors import ArenaError
from mainstay.recovery.memory.layout import Layout
from mainstay.recovery.memory.records import NO_EPOCH, Word

SUBJECT: Final = "checkpoint parity"
"""In the agent's report of what does not work."""
TRIES: Final = 6
"""Of a write that fails; later ones would come when a newer step has parity of its own."""
RETRY_SECONDS: Final = 1.0
"""Before the second try; each further one waits twice as long, half a minute in all."""
RUNS_LISTED: Final = 8
STEPS_LISTED: Final = 16
"""Of a run: the newest that all nodes have may lie before what ``--checkpoint-keep`` keeps."""
PARTS_LISTED: Final = 256
"""Of a step: a node has 16 ranks, and perhaps copies of others."""


def not_written(epoch: int, problem: object) -> str:
    """Say what is degraded."""
    return f"epoch {epoch} was not written: {problem}"


class CheckpointParity:
    """Finds what is to be written, for the thread that has it written, and what is durable, for the one that lists."""

    def __init__(self, node: AgentNode) -> None:
        self._node = node
        self._layouts: dict[int, str] = {}
        self._tries: dict[tuple[Path, int, int], tuple[int, float]] = {}
        """Arena, epoch, and digest -> failed tries (``TRIES``: it is written, or given up), and when to try again."""
        self._durable: dict[tuple[str, int, int, int], ParityFile] = {}
        """By run, epoch, rank, and generation: a file does not change, and has the layouts of a whole group."""

    def orders(self, is_written: Callable[[int], bool]) -> Iterator[tuple[str, SlotOrder]]:
        """(subject, order) of each row and copy that is to be written beside the parts of this node, the oldest first.

        An order that has failed is given again later: whoever takes it leaves the subject degraded then.

        Args:
            is_written: whether parts of an epoch are written at all.
        """
        store = self._node.store
        floor = max((arena.word(Word.DISK_FLOOR) for _, arena in store.all()), default=NO_EPOCH)
        kept: list[tuple[int, ParityRowKey | None, Arena]] = [
            *((key.ranks[key.place], key, arena) for key, arena in self._node.rows.all()),
            *((rank, None, arena) for rank, arena in store.copies.all()),
        ]
        for rank, key, arena in kept:
            for record in sorted(arena.records(), key=lambda r: r.epoch):
                mark, subject = (arena.path, record.epoch, record.digest), f"{SUBJECT} of rank {rank}"
                tries, due = self._tries.get(mark, (0, 0.0))
                if tries >= TRIES or time.monotonic() < due:
                    continue
                if not record.committed or not is_written(record.epoch) or record.epoch > floor:
                    continue
                order = SlotOrder(arena=str(arena.path), rank=rank, epoch=record.epoch, copy=key is None)
                try:
                    order = order if key is None else self._of_rows(key, order)
                except (AgentError, ArenaError, ValueError) as error:
                    store.degraded[subject] = not_written(record.epoch, error)
                else:
                    yield subject, order
                    tries = tries + 1 if subject in store.degraded else TRIES
                    self._tries[mark] = (tries, time.monotonic() + RETRY_SECONDS * 2 ** (tries - 1))

    def _of_rows(self, key: ParityRowKey, order: SlotOrder) -> SlotOrder:
        row = self._node.rows.find(key, order.epoch)
        layouts = {part.layout_digest: self._layout(order.rank, part) for part in row.parts}
        # Of the groups: rows of other members, after a node was replaced, must not take the place of these.
        return msgspec.structs.replace(order, generation=self._node.store.config.generation, layouts=layouts)

    def _layout(self, rank: int, part: ParityMember) -> str:
        """The layout of a member of the group of ``rank``: without it a lost slot has no tensors."""
        if part.layout_digest not in self._layouts:
            layout = self._node.store.layout(rank) if part.rank == rank else self._ask_layout(rank, part.rank)
            if layout.digest != part.layout_digest:
                raise CorruptError(f"rank {part.rank} has other tensors by now")
            self._layouts[layout.digest] = layout.to_json().decode()
        return self._layouts[part.layout_digest]

    def _ask_layout(self, rank: int, of: int) -> Layout:
        config = self._node.store.config
        for member in config.group_of(rank):
            if member.rank == of:
                with self._node.peer(member.endpoint, config.generation) as peer:
                    return Layout.from_json(peer.call(ReadLayout(rank=of), LayoutText).layout)
        raise NoSuchSlotError(f"rank {of} is not in the group of rank {rank} any more")

    def durable(self, run: RunDirectory, returns: tuple[Return, ...]) -> list[ParityFile]:
        """Rows in the directory of ``run`` that the job has not gone back from, the newest step first."""
        found: dict[tuple[str, int, int, int], ParityFile] = {}
        for epoch in reversed(run.steps()):
            for rank, generation in run.parity_files(epoch):
                key = (run.id, epoch, rank, generation)
                with contextlib.suppress(CheckpointError, ValueError):  # damaged: it protects nothing
                    if holds(returns, epoch, generation):
                        found[key] = self._durable.get(key) or _described(run, epoch, rank, generation)
        self._durable = found
        return list(found.values())


def list_runs(directory: Path, wanted: str | None) -> tuple[RunOnDisk, ...]:
    """What ``directory`` has of the newest runs that a job may continue from, in steps that are not complete there.

    A step with more parts than a node has ranks lies in a shared directory. Shares need others, and what is quantized
    does not restore the bits that were saved.

    Args:
        directory: of one node; perhaps not there.
        wanted: the id of a run; None: any.
    """
    try:
        paths = sorted(directory.iterdir(), reverse=True)
    except OSError:
        return ()  # none yet, or it is lost
    known = [RunDirectory(path) for path in paths if wanted in {None, path.name} and path.name != DOWNLOADS]
    listed = []
    for run in known[:RUNS_LISTED]:
        with contextlib.suppress(CheckpointError):  # nothing whole says what it is
            found = _list_run(run, run.info())
            listed += [found] if found.parts or found.parity else []
    return tuple(listed)


def _list_run(run: RunDirectory, info: RunInfo) -> RunOnDisk:
    parts, parity = list[PartFile](), list[ParityFile]()
    incomplete = [epoch for epoch in reversed(run.steps()) if not (run.step(epoch) / MANIFEST).exists()]
    for epoch in incomplete[:STEPS_LISTED]:
        there = [part for part in run.parts(epoch) if holds(info.returns, epoch, part.generation)]
        rows = [key for key in run.parity_files(epoch) if holds(info.returns, epoch, key[1])]
        if len(there) <= PARTS_LISTED >= len(rows):
            with contextlib.suppress(CheckpointError, ValueError):  # damaged
                parts += there if _are_whole(run, there[:1]) else []
            for rank, generation in rows:
                with contextlib.suppress(CheckpointError, ValueError):
                    parity.append(_described(run, epoch, rank, generation))
    return RunOnDisk(info, tuple(parts), tuple(parity))


def _are_whole(run: RunDirectory, some: list[PartFile]) -> bool:
    parts = [run.part(part.epoch, part.rank, part.generation) for part in some]
    return not any(part.is_share or part.quantized for part in parts)


def _described(run: RunDirectory, epoch: int, rank: int, generation: int) -> ParityFile:
    part = run.part(epoch, rank, generation, parity=True)
    (entry,) = (entry for entry in part.tensors if entry.name == META)
    raw = np.empty(entry.nbytes, np.uint8)
    with part_file(run, part) as read:
        read(entry, raw)
    description = read_description(raw)
    geometry = Geometry(len(description.parts), description.parity)
    ranks, nbytes = tuple(member.rank for member in description.parts), file_bytes(run.data_file(part))
    return ParityFile(rank, epoch, ranks, geometry.parity, nbytes)
