"""A part of a step becomes a slot again, every tensor checked against its digest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from mainstay.recovery.checkpoint.catalog import RunDirectory
from mainstay.recovery.checkpoint.manifest import CheckpointError, CheckpointPart, TensorEntry
from mainstay.recovery.memory.digest import Bytes, digest
from mainstay.recovery.memory.layout import Layout

CHUNK: Final = 8 * 1024 * 1024


def read_part(run: RunDirectory, part: CheckpointPart, layout: Layout, out: Bytes) -> None:
    """Read ``part`` into ``out`` (uint8, the bytes of a slot with ``layout``).

    Raises:
        LayoutMismatchError: the part holds other tensors; names the first.
        CheckpointError: the file is missing, short, or a tensor does not match its digest; ``out`` is worthless.
    """
    layout.require_same(part.layout(), f"{run.step(part.epoch) / part.file}")
    path = run.step(part.epoch) / part.file
    out[:] = 0  # what lies between tensors counts in the digest of a slot
    try:
        with path.open("rb", buffering=0) as file:
            for spec, entry in zip(layout.tensors, part.tensors, strict=True):
                read_tensor(file.fileno(), entry, out[spec.offset : spec.offset + spec.nbytes], path)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error


def read_tensor(fd: int, entry: TensorEntry, out: Bytes, path: Path) -> None:
    """Read and check one tensor into ``out``, uint8 [entry.nbytes]."""
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
        CheckpointError: see ``read_part``.
    """
    import numpy as np  # noqa: PLC0415 - only the command line comes here

    path, total = run.step(part.epoch) / part.file, 0
    try:
        with path.open("rb", buffering=0) as file:
            for entry in part.tensors:
                read_tensor(file.fileno(), entry, np.empty(entry.nbytes, np.uint8), path)
                total += entry.nbytes
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error
    return total
