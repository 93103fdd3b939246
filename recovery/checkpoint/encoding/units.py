"""Units of a tensor, and which of them changed since a base.

A unit is a row, as of an embedding (Check-N-Run, NSDI'22, section 4.1), or a block of 64 KiB where rows are too short
or too long.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash

from mainstay.recovery.checkpoint.encoding.tensor_blob import ExactHeader, Sections, stored
from mainstay.recovery.checkpoint.manifest import CheckpointError
from mainstay.recovery.memory.digest import Bytes, digest
from mainstay.recovery.memory.layout import TensorSpec

BLOCK: Final = 64 * 1024
_LEAST_ROW: Final = 64
"""Shorter rows would need nearly as many bytes for digests as for data."""

Mask = npt.NDArray[np.bool_]
ReadBytes = Callable[[int, Bytes], None]
"""Reads bytes of a tensor from an offset on, without a check; raises ``CheckpointError``."""


@dataclass(frozen=True, slots=True)
class UnitDigests:
    """A tensor of the base by digests: 8 bytes a unit instead of its bytes."""

    whole: int
    units: npt.NDArray[np.uint64]
    read: ReadBytes | None = None
    """None: nothing is read of it."""


def unit_bytes(spec: TensorSpec) -> int:
    """Bytes of a unit of this tensor."""
    row = spec.nbytes // spec.shape[0] if len(spec.shape) > 1 and spec.shape[0] else 0
    return row if _LEAST_ROW <= row <= BLOCK else BLOCK


def unit_digests(spec: TensorSpec, data: Bytes) -> UnitDigests:
    """What to keep of a tensor (uint8 [spec.nbytes]) to find its changed units later."""
    unit, view = unit_bytes(spec), data.data
    starts = range(0, len(data), unit)
    digests = (xxhash.xxh3_64_intdigest(view[start : start + unit]) for start in starts)
    return UnitDigests(digest(data), np.fromiter(digests, np.uint64, len(starts)))


@dataclass(frozen=True, slots=True)
class Selection:
    """The units of a tensor that a blob holds."""

    unit: int
    """Bytes of a unit; 0: all of the tensor."""
    mask: Mask

    @classmethod
    def build(cls, spec: TensorSpec, own: UnitDigests, base: UnitDigests | None) -> Selection:
        """What differs from the base; all where that is all, the base can be read, or there is none."""
        changed: Mask = np.ones(1, np.bool_) if base is None or base.read else own.units != base.units
        return cls(0, changed) if changed.all() else cls(unit_bytes(spec), changed)

    @classmethod
    def read(cls, header: ExactHeader, sections: Sections, spec: TensorSpec) -> Selection:
        """What the header and the first section say.

        Raises:
            CheckpointError: they do not fit the tensor.
        """
        if not header.unit:
            return cls(0, np.ones(1, np.bool_))
        if header.unit != unit_bytes(spec) or header.base is None:
            raise CheckpointError(f"{sections.what} has an impossible header")
        count = -(-spec.nbytes // header.unit)
        return cls(header.unit, np.unpackbits(sections.read(-(-count // 8)), count=count).astype(np.bool_))

    def sections(self) -> list[bytes]:
        """The section for ``read``; none where all of the tensor is there."""
        return [stored(np.packbits(self.mask))] if self.unit else []

    def gather(self, data: Bytes) -> Bytes:
        """The bytes of the units one after another: ``data``, or a copy of a part. The last unit may be short."""
        if not self.unit:
            return data
        whole = len(data) // self.unit
        body = data[: whole * self.unit].reshape(whole, self.unit)[self.mask[:whole]].reshape(-1)
        return np.concatenate([body, data[whole * self.unit :]]) if self.mask[whole:].any() else body

    def scatter(self, units: Bytes, out: Bytes) -> None:
        """Put back what ``gather`` gave."""
        if not self.unit:
            return
        whole = len(out) // self.unit
        body = int(self.mask[:whole].sum()) * self.unit
        out[: whole * self.unit].reshape(whole, self.unit)[self.mask[:whole]] = units[:body].reshape(-1, self.unit)
        if self.mask[whole:].any():
            out[whole * self.unit :] = units[body:]
