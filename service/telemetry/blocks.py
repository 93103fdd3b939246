"""Blocks: frames and bundles as they came, kept durably by the hour of their data.

A block's key is (subject, stream, sequence); its hour follows from its content alone, so the same frame sent again
meets itself in the same place however late it comes. That makes "none double" a property of the primary key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

HOUR: Final = 3600


class BlockKind(StrEnum):
    """What a block holds."""

    TIME = "time"  # a frame on the time axis
    STEP = "step"  # a frame on the step axis
    BUNDLE = "bundle"  # the frames of several nodes on the time axis; the subject is the relay


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """One stored frame or bundle and what is needed to find it."""

    subject: str
    kind: BlockKind
    stream: str
    sequence: int
    start: float
    """Unix seconds of the first sample."""
    stop: float
    """Unix seconds of the last sample, at most an hour later on the time axis."""
    body: bytes
    """As it was encoded."""
    members: tuple[str, ...] = ()
    """Nodes in a bundle, where it is stored; what is read does not name them."""

    @property
    def hour(self) -> int:
        return int(self.start) // HOUR

    @property
    def key(self) -> tuple[str, str, int]:
        return self.subject, self.stream, self.sequence


class BlockStore(Protocol):
    """Where blocks live. One thread appends; any thread reads."""

    def append(self, blocks: Sequence[StoredBlock]) -> list[bool]:
        """Store the blocks durably; for each, whether it is new (a block that is there already is left as it is).

        Either the call returns and every block is durable, or it raises and may be repeated.
        """
        ...

    def read(
        self,
        start: float,
        stop: float,
        *,
        subject: str | None = None,
        kinds: Sequence[BlockKind],
        relayed: bool = True,
    ) -> Iterator[StoredBlock]:
        """Blocks that touch ``[start, stop)``, oldest first within an hour.

        Args:
            start: Unix seconds.
            stop: Unix seconds.
            subject: a node, a job, or a relay; a node's bundles are those of the relays that sent for it.
            kinds: what they hold.
            relayed: whether a node's bundles are read too, or only what the subject itself sent.
        """
        ...

    def count(self, hour: int) -> int:
        """Blocks that were stored in an hour."""
        ...

    def senders(self, hour: int) -> list[str]:
        """Nodes, jobs, and relays with blocks in an hour, ascending."""
        ...

    def hours(self) -> list[int]:
        """Hours that hold anything, ascending (Unix hours)."""
        ...

    def drop_before(self, hour: int) -> int:
        """Forget whole hours older than ``hour``; how many."""
        ...

    def close(self) -> None: ...
