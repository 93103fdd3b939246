"""What snapshots cost in host memory, and whether a node has it: before it is needed, not when it runs out.

With S bytes of state a node, ``slots`` slots and parity of t rows over g members, each written while the one before it
is kept, a node holds S·(slots + 2t/(g-t)); with M copies S·(slots + 2(M-1)) on average.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mainstay.recovery.memory.arena import free_bytes

_V2: Final = ("memory.max", "memory.current")
_V1: Final = ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")
_NO_LIMIT: Final = 1 << 60
"""Version 1 writes "no limit" as the largest multiple of a page."""


def redundancy_bytes(state: int, *, parity: int = 0, group: int = 0, copies: int = 1) -> int:
    """Bytes that a node keeps for others, of the epoch that is complete and the one that is being made.

    Args:
        state: bytes of a node's ranks together; all nodes of the group alike.
        parity: rows a stripe; 0: none.
        group: members.
        copies: of each slot, the own included.

    Raises:
        ValueError: more parity than a group can have; names it.
    """
    if parity < 0 or copies < 1 or state < 0 or (parity and not parity < group):
        raise ValueError(f"{state} bytes, {parity} rows and {copies} copies in a group of {group} make no scheme")
    rows = -(-2 * parity * state // (group - parity)) if parity else 0
    return rows + 2 * (copies - 1) * state


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """What a node has left, in bytes; None: no limit, or none that can be seen."""

    shared: int | None
    """In the file system of the arenas."""
    group: int | None
    """Until the control group's limit; files in shared memory count against it."""

    @classmethod
    def measure(cls, arenas: Path, *, control: Path = Path("/sys/fs/cgroup")) -> FreeMemory:
        """Look.

        Args:
            arenas: directory of the arenas.
            control: where control groups are mounted.
        """
        return cls(shared=free_bytes(arenas), group=_left_in_group(control))

    def shortage(self, nbytes: int) -> str:
        """What is too little for so many bytes more, in one sentence an operator can act on; empty: nothing."""
        known = [
            ("shared memory has", self.shared, "make /dev/shm larger (mount -o remount,size=…, --shm-size)"),
            ("the control group has", self.group, "raise the container's memory limit"),
        ]
        short = [
            f"{what} {_say(left)} left, {_say(nbytes)} are needed: {advice}"
            for what, left, advice in known
            if left is not None and nbytes > left
        ]
        return "; ".join(short)


def _left_in_group(control: Path) -> int | None:
    for limit, used in (_V2, _V1):
        try:
            most, now = (control / limit).read_text().strip(), int((control / used).read_text())
        except (OSError, ValueError):
            continue
        if most.isdigit() and int(most) < _NO_LIMIT:
            return max(0, int(most) - now)
    return None


def _say(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f} GiB" if nbytes >= 2**28 else f"{nbytes / 2**20:.1f} MiB"
