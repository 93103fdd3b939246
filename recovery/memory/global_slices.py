"""Where a rank's tensor lies in the tensor of the whole model, when the model is cut among ranks.

A slot keeps what is on its rank. FSDP2, HSDP, and tensor parallelism cut tensors; a job of another shape needs to know
where each piece belongs (Universal Checkpointing, Lian et al. 2024, arXiv 2406.18820, section 3). Slots of cut tensors
carry that as one more tensor, so that every copy and every checkpoint has it too. No torch here.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Final

import msgspec
import numpy as np

from mainstay.probes.decoding import UNREADABLE
from mainstay.recovery.memory.digest import Bytes

SLICES: Final = "mainstay.slices"
"""The tensor of a slot that holds them, as JSON."""


class GlobalSlice(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A box of a tensor of the whole model. Its sizes are the shape of the tensor that lies there."""

    global_shape: tuple[int, ...]
    offsets: tuple[int, ...]
    """Index of its first element."""

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether a piece of ``shape`` can lie there."""
        return len(shape) == len(self.offsets) == len(self.global_shape) and all(
            min(at, size) >= 0 and at + size <= whole
            for at, size, whole in zip(self.offsets, shape, self.global_shape, strict=True)
        )


_SLICES: Final = msgspec.json.Decoder(dict[str, GlobalSlice])
"""Made while there is one thread: msgspec 0.22 crashes where several threads are the first to decode a type."""


def whole(shape: tuple[int, ...]) -> GlobalSlice:
    """Of a tensor that is not cut."""
    return GlobalSlice(shape, (0,) * len(shape))


Slices = Mapping[str, GlobalSlice]
"""Name in the slot -> its place; tensors that are not cut are left out."""


def encode(slices: Slices) -> Bytes:
    """``slices`` as the bytes of a tensor."""
    return np.frombuffer(msgspec.json.encode(dict(sorted(slices.items()))), np.uint8)


def decode(data: Bytes) -> dict[str, GlobalSlice]:
    """What ``encode`` wrote.

    Raises:
        ValueError: it did not write that.
    """
    try:
        return _SLICES.decode(data.tobytes())
    except UNREADABLE as error:
        raise ValueError(f"{SLICES} is damaged: {error}") from error


Split = int | tuple[int, int, int]
"""A dimension that is cut evenly among tensor-parallel ranks; or (dimension, rank, ranks) where it is cut among others,
such as the ranks of an expert-parallel group."""
Sharding = Mapping[str, Split | list[Split]]
"""Parameter or buffer name, or a pattern with ``*`` -> how it is cut; a list where it is cut several times."""


class DeclaredSlices:
    """The slices of tensors that a script cuts evenly among ranks itself, as it declares them."""

    def __init__(self, sharding: Sharding, rank: int, count: int) -> None:
        """Note what is cut.

        Args:
            sharding: how.
            rank: of this process among ``count`` tensor-parallel ranks.
            count: of them.

        Raises:
            ValueError: an entry is no ``Split``; names it.
        """
        self._splits = {
            name: [_split(name, one, rank, count) for one in (some if isinstance(some, list) else [some])]
            for name, some in sharding.items()
        }
        self._used: set[str] = set()

    def place(self, name: str, shape: tuple[int, ...]) -> GlobalSlice | None:
        """Where a piece of ``shape`` of the parameter or buffer ``name`` lies; None: it is not cut.

        Raises:
            ValueError: it has no such dimension; names it.
        """
        pattern = next((pattern for pattern in self._splits if fnmatchcase(name, pattern)), None)
        if pattern is None:
            return None
        self._used.add(pattern)
        sizes, offsets = list(shape), [0] * len(shape)
        for dimension, rank, count in reversed(self._splits[pattern]):  # each cuts what those before it left
            if not 0 <= dimension < len(shape):
                raise ValueError(f"sharding: {name!r} has shape {list(shape)} and no dimension {dimension}")
            offsets[dimension] += rank * sizes[dimension]
            sizes[dimension] *= count
        return None if tuple(sizes) == shape else GlobalSlice(tuple(sizes), tuple(offsets))

    def require_used(self) -> None:
        """Check that every pattern names something.

        Raises:
            ValueError: one does not.
        """
        unused = self._splits.keys() - self._used
        if unused:
            raise ValueError(f"sharding: no parameter or buffer of this model matches {min(unused)!r}")


def _split(name: str, one: Split, rank: int, count: int) -> tuple[int, int, int]:
    match one:
        case bool():
            pass
        case int():
            return one, rank, count
        case (int(), int() as place, int() as places) if 0 <= place < places:
            return one
    raise ValueError(f"sharding: {name!r} is {one!r}, which is no dimension and no (dimension, rank, ranks)")
