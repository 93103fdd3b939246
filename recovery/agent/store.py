"""The arenas of one node of one job, as files in one directory; all of an agent's memory of them is in those files.

An agent that is killed and started again finds its arenas by their headers, its fence and parity group in one small
JSON file beside them. A file that does not hold together is reported and left alone until it is replaced.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import msgspec

from mainstay.probes.decoding import UNREADABLE
from mainstay.probes.durable_files import write_json
from mainstay.recovery.agent.arena_files import commit_checked
from mainstay.recovery.agent.degraded import Degradations
from mainstay.recovery.agent.errors import CorruptError, NoSuchSlotError
from mainstay.recovery.agent.messages import ArenaInfo, Group, SlotInfo
from mainstay.recovery.agent.peer_copies import PeerCopyStore, slot_info
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.errors import ArenaError
from mainstay.recovery.memory.layout import Layout
from mainstay.recovery.memory.records import NO_EPOCH, SlotRecord, SlotState, Word
from mainstay.recovery.memory.repair import read_cell

MAX_RANK: Final = 1_000_000

logger = logging.getLogger("mainstay.agent")


class ArenaStoreState(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What survives a restart beside the arenas."""

    fence: int = 0
    groups: tuple[Group, ...] = ()
    """All of the job; see ``messages.ConfigureParity``."""
    every: int = 0
    scheme: str = "xor"
    generation: int = 0
    """Under which the groups were configured."""

    def group_of(self, rank: int) -> Group:
        """Those that protect ``rank``, itself included; none if nothing does."""
        return self._by_rank.get(rank, ()) if self.every else ()

    @cached_property
    def _by_rank(self) -> dict[int, Group]:
        """It is asked for in every round of the encoder, and a job may have thousands of groups."""
        return {member.rank: group for group in self.groups if len(group) > 1 for member in group}


def arena_path(directory: Path, rank: int) -> Path:
    """Where the arena of ``rank`` lies in a node's directory."""
    return directory / f"rank-{rank}.arena"


class ArenaStore:
    """Arenas by rank, with one lock each for whoever writes on the agent's behalf."""

    def __init__(self, directory: Path, *, slots: int, disk_every: int = 0) -> None:
        self.directory = directory
        self.slots = slots
        self.disk_every = disk_every
        self.disk_once = NO_EPOCH
        self.config = ArenaStoreState()
        self.degraded = Degradations()
        """What does not work as it should: subject -> words."""
        self.discards = 0
        """How often the job has gone back. Only grows, before the slots go."""
        self.verdicts_damaged = 0
        """Slots digested again because the record of their digest was damaged; for the scrubber to tell."""
        self.opened: dict[int, int] = {}
        """Rank -> generation in which its own process last opened its arena."""
        self._arenas: dict[int, Arena] = {}
        self._locks: dict[int, threading.RLock] = {}
        self._lock = threading.RLock()
        self.copies = PeerCopyStore(directory)
        self._attach_all()

    # Arenas

    def open(self, rank: int, layout: Layout, *, replace: bool = True) -> ArenaInfo:
        """The arena of ``rank``, made if it is not there or (``replace``) has another layout or number of slots."""
        if not 0 <= rank < MAX_RANK:
            raise ValueError(f"rank {rank} is not between 0 and {MAX_RANK - 1}")
        with self._lock:
            arena = self._arenas.get(rank)
            fits = arena and arena.layout.digest == layout.digest and arena.header.slots == self.slots
            if arena is None or (replace and not fits):
                arena = self._create(rank, layout, arena)
            self._come_home(rank, arena)
        return ArenaInfo(path=str(arena.path), slots=arena.header.slots, slot_bytes=arena.header.slot_bytes)

    def _create(self, rank: int, layout: Layout, old: Arena | None) -> Arena:
        if old is not None and old.newest() is not None:
            logger.warning("rank %d has another layout now: its arena is replaced and its slots are gone", rank)
        arena = Arena.create(arena_path(self.directory, rank), rank=rank, layout=layout, slots=self.slots)
        self._adopt(rank, arena)
        self.degraded.pop(f"rank {rank}", None)
        return arena

    def _adopt(self, rank: int, arena: Arena) -> None:
        arena.set_word(Word.FENCE, max(self.config.fence, arena.word(Word.FENCE)))
        arena.set_word(Word.DISK_EVERY, self.disk_every)
        arena.set_word(Word.DISK_ONCE, self.disk_once)
        arena.set_word(Word.HEARTBEAT, time.monotonic_ns())
        self._arenas[rank] = arena

    def _come_home(self, rank: int, arena: Arena) -> None:
        """A rank that now runs where its copies are kept finds them in its own arena.

        Only what is newer than all that the arena has: a rank that has trained here since writes into it.
        """
        old, newest = self.copies.find_copy(rank), self.newest_epoch(rank)
        if old is not None and old.layout.digest == arena.layout.digest:
            for record in sorted(old.records(), key=lambda r: r.epoch):
                if record.state is SlotState.VERIFIED and record.epoch > newest:
                    slot = arena.choose().slot
                    out = arena.begin_write(slot, arena.word(Word.FENCE))
                    out[: record.nbytes] = old.slot_bytes(record.slot)[: record.nbytes]
                    with contextlib.suppress(CorruptError):
                        self.accept(rank, slot, record.epoch, record.generation, record.digest)

    def arena(self, rank: int) -> Arena:
        """The open arena of ``rank``.

        Raises:
            NoSuchSlotError: none is open.
        """
        arena = self._arenas.get(rank)
        if arena is None:
            raise NoSuchSlotError(f"no arena of rank {rank} is open on this node, only of {sorted(self._arenas)}")
        return arena

    def has(self, rank: int) -> bool:
        return rank in self._arenas

    def all(self) -> list[tuple[int, Arena]]:
        with self._lock:
            return sorted(self._arenas.items())

    def lock(self, rank: int) -> threading.RLock:
        """Held by whoever writes slots or agent's cells of ``rank`` in this process."""
        with self._lock:
            return self._locks.setdefault(rank, threading.RLock())

    def _attach_all(self) -> None:
        self.config = self._load_config()
        for path in sorted(self.directory.glob("rank-*.arena")):
            try:
                arena = Arena.attach(path)
            except (ArenaError, OSError) as error:
                logger.warning("%s cannot be used: %s", path.name, error)
                self.degraded[path.stem.replace("-", " ")] = str(error)
            else:
                self._adopt(arena.header.rank, arena)

    # Slots

    def verified(self, rank: int, epoch: int) -> tuple[Arena, SlotRecord]:
        """The slot of ``epoch``, digested now if it was not yet.

        Raises:
            NoSuchSlotError, TornError: through ``SlotMissingError`` and ``TornSlotError``.
        """
        if rank not in self._arenas or not any(r.committed and r.epoch == epoch for r in self._arenas[rank].records()):
            copy = self.copies.find(rank, epoch)
            if copy is not None:
                return copy
        arena = self.arena(rank)
        record = arena.find(epoch)
        if record.state is not SlotState.VERIFIED:
            with self.lock(rank):
                record = arena.find(epoch)
                if read_cell(arena, record.slot, agent=True) is None:
                    self.verdicts_damaged += 1
                record = arena.verify(record)
        return arena, record

    def verify_newest(self, rank: int) -> SlotRecord | None:
        """Digest the newest slot of ``rank`` unless that is done; None if there is nothing, or it was overwritten."""
        newest = self.arena(rank).newest()
        if newest is None:
            return None
        try:
            return self.verified(rank, newest.epoch)[1]
        except ArenaError:
            return None

    def layout(self, rank: int) -> Layout:
        """Of the arena of ``rank``, or of the copy that is kept of it.

        Raises:
            NoSuchSlotError: neither is here.
        """
        copy = self.copies.find_copy(rank)
        return copy.layout if copy is not None and rank not in self._arenas else self.arena(rank).layout

    def newest_epoch(self, rank: int) -> int:
        newest = self._arenas[rank].newest() if rank in self._arenas else None
        return NO_EPOCH if newest is None else newest.epoch

    def slot_infos(self) -> Iterator[SlotInfo]:
        """One a committed epoch of a rank, verified first where that is possible."""
        for rank, arena in self.all():
            for epoch in sorted({r.epoch for r in arena.records() if r.committed}):
                with contextlib.suppress(ArenaError):  # overwritten just now: it is not there any more
                    yield slot_info(rank, self.verified(rank, epoch)[1])
        own = {(rank, r.epoch) for rank, arena in self.all() for r in arena.records() if r.committed}
        yield from (info for info in self.copies.infos() if (info.rank, info.epoch) not in own)

    def accept(
        self, rank: int, slot: int, epoch: int, generation: int, expected: int, *, digested: bool = False
    ) -> SlotRecord:
        """Commit and verify a slot of a rank; see ``commit_checked``.

        It was written in ``generation``, which may be fenced by now; its bytes are as good as ever, so it is committed
        for the lowest generation alive.
        """
        alive = max(generation, self.config.fence)
        return commit_checked(self.arena(rank), slot, epoch, alive, expected, digested=digested)

    def discard_after(self, epoch: int) -> None:
        self.discards += 1
        self.copies.discard_after(epoch)
        for rank, arena in self.all():
            with self.lock(rank):
                arena.discard_after(epoch)
                arena.set_word(Word.DISK_FLOOR, min(arena.word(Word.DISK_FLOOR), epoch))
                # Look again whether the group holds parity of ``epoch``.
                arena.set_word(Word.PARITY_FLOOR, min(arena.word(Word.PARITY_FLOOR), epoch - 1))
                if arena.word(Word.PARITY_EPOCH) > epoch:
                    arena.set_word(Word.PARITY_EPOCH, NO_EPOCH)

    # What survives a restart

    def fence(self, generation: int) -> None:
        with self._lock:
            self.change(fence=max(self.config.fence, generation))
            for arena in self._arenas.values():
                arena.set_word(Word.FENCE, self.config.fence)

    def change(self, **fields: Any) -> bool:
        """Save the state with these fields; False: it has them already."""
        with self._lock:
            config = msgspec.structs.replace(self.config, **fields)
            changed = config != self.config
            if changed:
                self.save(config)
            return changed

    def save(self, config: ArenaStoreState) -> None:
        with self._lock:
            self.config = config
            write_json(self.directory / "agent.json", config)

    def _load_config(self) -> ArenaStoreState:
        try:
            return msgspec.json.decode((self.directory / "agent.json").read_bytes(), type=ArenaStoreState)
        except FileNotFoundError:
            return ArenaStoreState()
        except UNREADABLE as error:
            self.degraded["agent.json"] = f"the fence and the parity group were forgotten: {error}"
            return ArenaStoreState()

    def beat(self) -> None:
        for _, arena in self.all():
            arena.set_word(Word.HEARTBEAT, time.monotonic_ns())

    def drop(self) -> None:
        """Remove every arena of this node; the directory and the fence stay."""
        with self._lock:
            for path in (*self.directory.glob("*.arena"), *self.directory.glob(".*.new")):
                path.unlink(missing_ok=True)
            self._arenas.clear()
            self.copies.forget()
            self.degraded.clear()
            self.save(ArenaStoreState(fence=self.config.fence))
