"""What is damaged in an arena beside its data, found and repaired by the agent that owns it: header, layout, records.

Header and layout never change, so what was checked when the arena was mapped is what must stand there. A record is two
cells, and what one of them lost the other, or the agent's memory of it, still says; it is believed only if the data has
the digest that it names. A trainer may begin to write a slot whose cell is being repaired: then the digest cannot hold,
and the slot is declared worthless again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.digest import digest
from mainstay.recovery.memory.records import SlotRecord, SlotState

_LOOKS: Final = 5
_LOOK_SECONDS: Final = 0.001
"""A cell is written within nanoseconds: one that stays unreadable over five looks is damaged, not under way."""


@dataclass(frozen=True, slots=True)
class RecordDamage:
    """What was wrong with the records of an arena."""

    records: int
    lost: int
    """Of these: slots that are worthless now."""
    doubtful: tuple[SlotRecord, ...]
    """Of these: slots that are committed, but nothing says any more which digest they had."""


class RecordShadow:
    """What the agent last read in its own cells of one arena: its memory of them, should they be damaged."""

    def __init__(self) -> None:
        self._cells: dict[int, SlotRecord] = {}

    def repair(self, arena: Arena) -> RecordDamage:
        """Put damaged records right."""
        damaged = lost = 0
        doubtful: list[SlotRecord] = []
        for slot in range(arena.header.slots):
            writer, agent = read_cell(arena, slot, agent=False), read_cell(arena, slot, agent=True)
            if writer is not None and agent is not None:
                self._cells[slot] = agent
                continue
            damaged += 1
            lost += not self._repair(arena, slot, writer, agent or self._cells.get(slot))
            now = arena.record(slot)
            if now.state is SlotState.COPIED:
                doubtful.append(now)
        return RecordDamage(damaged, lost, tuple(doubtful))

    def _repair(self, arena: Arena, slot: int, writer: SlotRecord | None, agent: SlotRecord | None) -> bool:
        """Whether nothing that the slot held is lost."""
        if agent is None or not _speaks_of(writer, agent):
            # The agent's verdict was on an earlier write, or there is none: it digests what is there again.
            arena.write_cell(arena.blank(slot, writer.sequence if writer else 0), agent=True)
            if writer is None:
                arena.write_cell(arena.blank(slot, 1), agent=False)
            return writer is not None
        arena.write_cell(agent, agent=True)
        if agent.state is not SlotState.VERIFIED:
            arena.write_cell(arena.blank(slot, agent.sequence), agent=False)
            return True
        if writer is not None:
            return True  # whether the data still has that digest is asked for every slot
        if not _holds(arena, agent):  # overwritten since, or damaged too: nothing says which, so it is worth nothing
            arena.write_cell(arena.blank(slot, agent.sequence + 1), agent=False)
            return False
        arena.write_cell(agent._replace(state=SlotState.COPIED, digest=0), agent=False)
        if not _holds(arena, agent):  # a trainer has begun to write it just now
            arena.invalidate(arena.record(slot))
            return False
        return True


def _holds(arena: Arena, cell: SlotRecord) -> bool:
    return digest(arena.slot_bytes(cell.slot)[: cell.nbytes]) == cell.digest


def read_cell(arena: Arena, slot: int, *, agent: bool) -> SlotRecord | None:
    """The cell, or None if it is damaged."""
    for look in range(_LOOKS):
        cell = arena.read_cell(slot, agent=agent)
        if cell is not None:
            return cell
        if look < _LOOKS - 1:
            time.sleep(_LOOK_SECONDS)
    return None


def _speaks_of(writer: SlotRecord | None, agent: SlotRecord) -> bool:
    """Whether the agent's cell is about the writer's write; a damaged one leaves no other way to know."""
    return writer is None or (agent.sequence, agent.epoch) == (writer.sequence, writer.epoch)
