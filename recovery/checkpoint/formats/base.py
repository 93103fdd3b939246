"""The contract of a checkpoint format: a module beside this one that ends in ``FORMAT = Format(...)``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mainstay.recovery.checkpoint.logical import LogicalCheckpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """What some formats need to know beyond the tensors, as ``mainstay checkpoint convert`` asks for it.

    A size of 0 is as the source says, or else 1. With ``zero_stage`` 0, any number of ranks loads what is written.
    """

    dp: int = 0
    """Set the data-parallel size of the job that shall load it, for mainstay and for --zero-stage."""
    pp: int = 0
    """Set its pipeline stages, for mainstay."""
    tp: int = 0
    """Set its tensor slices, for mainstay."""
    like: Path | None = None
    """Take random numbers and other rank-local state from this Mainstay step of the job, for mainstay."""
    zero_stage: int = 0
    """Write the files of ZeRO 1, 2, or 3; by default, DeepSpeed's universal format."""
    accept_quantized: bool = False
    """Convert a quantized step too, whose values are near those that were saved."""


@dataclass(frozen=True, slots=True)
class Format:
    """How checkpoints of one kind of program are found, read and written."""

    name: str
    detect: Callable[[Path], bool]
    """Whether a path is a checkpoint of just this format."""
    read: Callable[[Path], LogicalCheckpoint]
    """Read the metadata; tensors read their bytes later. Raises ``CheckpointError``."""
    write: Callable[[LogicalCheckpoint, Path, WriteOptions], None]
    """Write to a path that does not exist; what is there after an error is removed by the caller."""
