"""A trainer's state as a part of a step, without an agent."""

from __future__ import annotations

from pathlib import Path

from mainstay.recovery.checkpoint import save
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.snapshot import SnapshotWriter
from mainstay.recovery.memory.state import TrainerState


def write_state(target: save.WriteTarget, state: TrainerState, epoch: int, rank: int, memory: Path) -> None:
    """Take a snapshot of ``state`` in the new arena ``memory``, and write it to the run's directory."""
    save.begin_step(target)
    arena = Arena.create(memory, rank=rank, layout=state.layout, slots=2)
    writer = SnapshotWriter(arena, state)
    writer.start(epoch, 1)
    writer.wait()
    writer.close()
    save.write_part(arena, arena.verify(arena.find(epoch)), target)
    arena.close()
