"""Whole slots that a node keeps for ranks of other nodes: an arena of two slots each, as GEMINI's peers do.

They are served and listed like slots of the node's own ranks, so that a lost rank simply fetches one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from mainstay.recovery.agent.arena_files import ArenaFiles
from mainstay.recovery.agent.messages import SlotInfo
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.errors import ArenaError
from mainstay.recovery.memory.layout import Layout
from mainstay.recovery.memory.records import SlotRecord, SlotState

COPY_ARENA: Final = 2


class PeerCopyStore(ArenaFiles[int]):
    """Copy arenas by rank. Written by the encoder's thread alone."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, "copy-*.arena", lambda arena: arena.header.rank)
        self.extra_copies: frozenset[int] = frozenset()
        """Ranks of which copies are kept beside the scheme; see ``extra_copies``."""

    def find_copy(self, rank: int) -> Arena | None:
        return self._arenas.get(rank)

    def find(self, rank: int, epoch: int, *, check: bool = False) -> tuple[Arena, SlotRecord] | None:
        """The copy of a rank's slot, if a verified one is here (and, with ``check``, still has its digest)."""
        arena = self._arenas.get(rank)
        if arena is None:
            return None
        with contextlib.suppress(ArenaError):
            record = arena.find(epoch)
            if record.state is SlotState.VERIFIED:
                if check:
                    arena.check(record)
                return arena, record
        return None

    def begin_copy(self, rank: int, layout: Layout) -> tuple[Arena, int]:
        """A slot for a new copy, never that of the newest complete epoch."""
        return self.begin_slot(rank, f"copy-{rank}.arena", rank=rank, layout=layout, kind=COPY_ARENA)

    def retain(self, keys: Collection[int]) -> None:
        super().retain(self.extra_copies.union(keys))

    def infos(self) -> Iterator[SlotInfo]:
        for rank, arena in self.all():
            for record in arena.records():
                if record.state is SlotState.VERIFIED:
                    yield slot_info(rank, record)


def slot_info(rank: int, record: SlotRecord) -> SlotInfo:
    return SlotInfo(
        rank=rank,
        epoch=record.epoch,
        generation=record.generation,
        nbytes=record.nbytes,
        verified=record.state is SlotState.VERIFIED,
    )
