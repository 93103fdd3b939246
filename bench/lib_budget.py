"""Host memory that snapshots take, in closed form."""

from __future__ import annotations

from mainstay.recovery.memory.budget import redundancy_bytes


def host_bytes(state: int, *, slots: int, parity: int = 0, group: int = 0, copies: int = 1) -> int:
    """All snapshot memory of a node: S·(slots + 2t/(g-t)), or with copies S·(slots + 2(M-1)). See the module."""
    return slots * state + redundancy_bytes(state, parity=parity, group=group, copies=copies)
