"""What the names of durable files in a step directory say, as agents list them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from mainstay.recovery.checkpoint.manifest import RunInfo


class PartFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part that is durable, as its name says; what it holds is checked when it is read."""

    rank: int
    epoch: int
    nbytes: int
    """Of its data file."""
    generation: int
    """In which the slot was committed: tells a future that was given up from the steps made again."""


class ParityFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parity rows that are durable; what they hold is checked when they are decoded from."""

    rank: int
    """That keeps them."""
    epoch: int
    ranks: tuple[int, ...]
    """Members of the group, in the order of their places."""
    parity: int
    """Rows a codeword: members that may be lost."""
    nbytes: int = 0
    """Of its data file."""


class RunOnDisk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one node's disk has of an earlier run, as far as no step is complete there."""

    info: RunInfo
    parts: tuple[PartFile, ...]
    parity: tuple[ParityFile, ...]


def file_bytes(path: Path) -> int:
    """Size of a file; 0: it cannot be read."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
