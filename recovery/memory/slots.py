"""Which slot may be overwritten next: pure, so that every case can be tried.

Never the newest committed epoch, in any case. Never, while there is a choice, an epoch that something else needs:
the newest epoch with complete parity (a lost node is rebuilt from it and from *our* data of it), a parity epoch still
under way, an epoch that is being written to disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mainstay.recovery.memory.records import NO_EPOCH, SlotRecord


@dataclass(frozen=True, slots=True)
class Pins:
    """What the agent has published in the arena's header."""

    parity_epoch: int = NO_EPOCH
    parity_floor: int = NO_EPOCH
    parity_every: int = 0
    disk_floor: int = NO_EPOCH
    disk_every: int = 0
    disk_once: int = NO_EPOCH

    def disk_pending(self, epoch: int) -> bool:
        """Whether ``epoch`` is still to be written to disk."""
        due = epoch == self.disk_once or (self.disk_every and epoch % self.disk_every == 0)
        return bool(due) and epoch > self.disk_floor

    def reason(self, epoch: int) -> str | None:
        """Why ``epoch`` must stay, or None; the gravest reason of several."""
        if self.parity_every and epoch == self.parity_epoch:
            return "parity_complete"
        if self.disk_pending(epoch):
            return "disk_pending"
        if self.parity_every and epoch > self.parity_floor and epoch % self.parity_every == 0:
            return "parity_pending"
        return None


_RELUCTANCE = {"parity_pending": 0, "disk_pending": 1, "parity_complete": 2}
"""What is given up first when all is pinned: work not finished before protection already had."""


@dataclass(frozen=True, slots=True)
class SlotChoice:
    slot: int
    sacrifices: str | None
    """The pin that writing to ``slot`` breaks; None in the good case."""


def newest(records: Sequence[SlotRecord]) -> SlotRecord | None:
    """The committed record with the highest epoch; of equal epochs the one of the later generation."""
    committed = [r for r in records if r.committed]
    return max(committed, key=lambda r: (r.epoch, r.generation, r.sequence), default=None)


def choose_slot(records: Sequence[SlotRecord], pins: Pins) -> SlotChoice:
    """The slot to write next: an invalid one, else the oldest unpinned, else the pinned one that costs least.

    Args:
        records: one a slot, at least two.
        pins: what the agent asks to keep.
    """
    assert len(records) > 1, "one slot cannot survive a crash while it is written"
    keep = newest(records)
    free = [r for r in records if not r.committed]
    if free:
        return SlotChoice(free[0].slot, None)
    rest = sorted((r for r in records if r is not keep), key=lambda r: (r.epoch, r.generation))
    loose = [r for r in rest if pins.reason(r.epoch) is None or _kept_twice(r, records)]
    if loose:
        return SlotChoice(loose[0].slot, None)
    victim = min(rest, key=lambda r: (_RELUCTANCE[pins.reason(r.epoch) or ""], r.epoch))
    return SlotChoice(victim.slot, pins.reason(victim.epoch))


def _kept_twice(record: SlotRecord, records: Sequence[SlotRecord]) -> bool:
    """Another slot holds the same epoch of a later write, so this one protects nothing."""
    twins = [r for r in records if r.committed and r.epoch == record.epoch]
    return max(twins, key=lambda r: (r.generation, r.sequence, r.slot)) is not record
