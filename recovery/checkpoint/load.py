"""Tensors of a part of a step, each checked against its digest."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from mainstay.recovery.checkpoint.catalog import RunDirectory
from mainstay.recovery.checkpoint.manifest import CheckpointError, CheckpointPart, TensorEntry
from mainstay.recovery.memory.digest import Bytes, digest

CHUNK: Final = 8 * 1024 * 1024


@contextmanager
def part_file(run: RunDirectory, part: CheckpointPart) -> Iterator[Callable[[TensorEntry, Bytes], None]]:
    """Open the file of ``part``: what is yielded reads and checks one tensor into a uint8 [entry.nbytes].

    Raises:
        CheckpointError: the file is missing, short, or a tensor does not match its digest.
    """
    path = run.step(part.epoch) / part.file
    try:
        with path.open("rb", buffering=0) as file:
            yield lambda entry, out: _read_tensor(file.fileno(), entry, out, path)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error


def _read_tensor(fd: int, entry: TensorEntry, out: Bytes, path: Path) -> None:
    if len(out) != entry.nbytes:
        raise CheckpointError(f"{path}: tensor {entry.name!r} has {entry.nbytes} bytes instead of {len(out)}")
    done = 0
    while done < len(out):
        count = os.preadv(fd, [out[done : done + CHUNK].data], entry.at + done)
        if not count:
            raise CheckpointError(f"{path} ends within tensor {entry.name!r}")
        done += count
    found = digest(out)
    if found != entry.digest:
        raise CheckpointError(f"{path}: tensor {entry.name!r} has digest {found:016x}, not {entry.digest:016x}")


def verify_part(run: RunDirectory, part: CheckpointPart) -> int:
    """Read a whole part and check every tensor; bytes read.

    Raises:
        CheckpointError: the file is missing, short, or a tensor does not match its digest.
    """
    import numpy as np  # noqa: PLC0415 - only the command line comes here

    with part_file(run, part) as read:
        for entry in part.tensors:
            read(entry, np.empty(entry.nbytes, np.uint8))
    return sum(entry.nbytes for entry in part.tensors)
