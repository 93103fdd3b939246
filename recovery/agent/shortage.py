"""What will not fit into host memory is said when protection is configured, before the first epoch has need of it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from recovery.agent.store import Store
from recovery.memory.budget import Room, redundancy_bytes
from recovery.scheme import Kind, parse

HOST_MEMORY: Final = "host memory"
"""The subject of a shortage."""


def foresee(store: Store, directory: Path, room: Room | None = None) -> None:
    """Put on record whether the redundancy that was configured fits beside what is there.

    Args:
        store: with the groups and the scheme that hold now.
        directory: of the arenas.
        room: what is left; looked up by default.
    """
    missing = 0
    for rank, arena in store.all():
        missing += _needed(store, rank, arena.layout.nbytes)
    kept = [path for pattern in ("parity-*.arena", "copy-*.arena") for path in directory.glob(pattern)]
    missing -= sum(path.stat().st_size for path in kept)
    words = (room or Room.of(directory)).shortage(max(0, missing))
    if words:
        store.degraded[HOST_MEMORY] = words
    else:
        store.degraded.pop(HOST_MEMORY, None)


def _needed(store: Store, rank: int, state: int) -> int:
    members = len(store.config.group_of(rank))
    scheme = parse(store.config.scheme).fitted(members) if members else None
    if scheme is None or scheme.kind is Kind.NONE:
        return 0
    if scheme.kind is Kind.COPIES:
        return redundancy_bytes(state, copies=scheme.copies)
    return redundancy_bytes(state, parity=scheme.parity, group=members)
