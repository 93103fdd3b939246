"""Reports what does not fit into host memory when protection is configured, before the first epoch needs it."""

from __future__ import annotations

from typing import Final

from mainstay.recovery.agent.store import ArenaStore
from mainstay.recovery.memory.budget import FreeMemory, redundancy_bytes
from mainstay.recovery.protection_scheme import SchemeKind, parse

HOST_MEMORY: Final = "host memory"
"""The subject of a shortage."""


def check_capacity(store: ArenaStore, room: FreeMemory | None = None) -> None:
    """Put on record whether the redundancy that was configured fits beside what is there.

    Args:
        store: with the groups and the scheme that hold now.
        room: what is left; looked up by default.
    """
    missing = sum(_needed(store, rank, arena.layout.nbytes) for rank, arena in store.all())
    kept = [path for pattern in ("parity-*.arena", "copy-*.arena") for path in store.directory.glob(pattern)]
    missing -= sum(path.stat().st_size for path in kept)
    store.degraded.report(HOST_MEMORY, (room or FreeMemory.measure(store.directory)).shortage(max(0, missing)))


def _needed(store: ArenaStore, rank: int, state: int) -> int:
    members = len(store.config.group_of(rank))
    scheme = parse(store.config.scheme).fitted(members) if members else None
    if scheme is None or scheme.kind is SchemeKind.NONE:
        return 0
    if scheme.kind is SchemeKind.COPIES:
        return redundancy_bytes(state, copies=scheme.copies)
    return redundancy_bytes(state, parity=scheme.parity, group=members)
