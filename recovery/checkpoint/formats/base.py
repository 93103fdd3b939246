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
    """Set the data-parallel size of the job that loads it, for mainstay and --zero-stage; 0: as in the source, or 1."""
    pp: int = 0
    """Set its number of pipeline stages, for mainstay; 0: as in the source, or 1."""
    tp: int = 0
    """Set its tensor-parallel size, for mainstay; 0: as in the source, or 1."""
    like: Path | None = None
    """Take random numbers and other rank-local state from this Mainstay step of the job, for mainstay."""
    zero_stage: int = 0
    """For deepspeed, write the files of ZeRO 1, 2, or 3; 0: the universal format, which any number of ranks loads."""
    accept_quantized: bool = False
    """Convert also a quantized step, whose values are only near those that were saved."""


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
