"""The contract of a checkpoint format: a module beside this one that ends in ``FORMAT = Format(...)``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mainstay.recovery.checkpoint.logical import LogicalCheckpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """What some formats need to know beyond the tensors; 0: as the source says, else 1."""

    dp: int = 0
    """Data-parallel ranks."""
    pp: int = 0
    tp: int = 0
    like: Path | None = None
    """A Mainstay step of the job that shall continue; gives what only its ranks have."""
    zero_stage: int = 0
    """1, 2, or 3: DeepSpeed's own files for ``dp`` ranks. 0: its universal format, which any number of ranks loads."""
    shard_bytes: int = 5 << 30
    """Largest safetensors file; Hugging Face's own limit is 5 GB."""
    accept_quantized: bool = False
    """Convert near values too."""


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
