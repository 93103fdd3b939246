"""What a slot holds, by name."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.digest import digest
from mainstay.recovery.memory.errors import CorruptArenaError
from mainstay.recovery.memory.records import SlotState


def read_slot(arena: Arena, epoch: int) -> dict[str, npt.NDArray[np.generic]]:
    """Checked copies of every tensor of ``epoch``: numpy arrays (types that numpy lacks as unsigned integers: bits).

    Raises:
        SlotMissingError, TornSlotError, CorruptArenaError: see ``errors``.
    """
    record = arena.find(epoch)
    with arena.reading(record) as data:
        copy = data.copy()
    if record.state is SlotState.VERIFIED and digest(copy) != record.digest:
        raise CorruptArenaError(f"rank {arena.header.rank}: epoch {epoch} does not match its digest")
    return arena.layout.views(copy)
