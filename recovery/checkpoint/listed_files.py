"""What the names of durable files in a step directory say, as agents list them."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from mainstay.recovery.checkpoint.manifest import CheckpointError, RunInfo

log = logging.getLogger("mainstay.checkpoint")


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


def entries_of(directory: Path, *, strict: bool = False) -> list[Path]:
    """What is in ``directory``; nothing where there is none.

    Raises:
        CheckpointError: the disk refuses to say, and ``strict``; otherwise that is logged.
    """
    try:
        return list(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        if strict:
            raise CheckpointError(f"{directory}: {error.strerror}") from error
        log.warning("%s is passed over: %s", directory, error.strerror)
        return []


def numbered(directory: Path, pattern: re.Pattern[str], *, strict: bool = False) -> Iterator[tuple[int, Path]]:
    """Number and path of each entry whose name is a number by ``pattern``; raises as ``entries_of``."""
    paths = entries_of(directory, strict=strict)
    return ((int(match[1]), path) for path in paths if (match := pattern.match(path.name)))


def named_parts_of(entries: Iterable[Path], pattern: re.Pattern[str]) -> dict[tuple[int, int], Path]:
    """Paths by the rank and generation that ``pattern`` finds in their names."""
    return {(int(match[1]), int(match[2])): path for path in entries if (match := pattern.match(path.name))}
