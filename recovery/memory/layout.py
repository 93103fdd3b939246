"""The layout of a slot: which tensor lies where. Offsets follow from names, dtypes and shapes, so they cannot lie.

The serial form is JSON ``[[name, dtype, [shape…]], …]``; offsets and sizes are computed again by whoever reads it. Two
layouts are the same exactly when their digests are. No torch here: dtypes are torch's names without the ``torch.``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from mainstay.recovery.memory.digest import Bytes, digest
from mainstay.recovery.memory.errors import CorruptArenaError, LayoutMismatchError

ALIGNMENT: Final = 64
"""A cache line and the widest vector register: what a streaming copy wants."""

DTYPES: Final[Mapping[str, str]] = {
    # torch's name: numpy's. Types that numpy lacks are kept as unsigned integers of the same width: bits, not values.
    "bool": "uint8",
    "uint8": "uint8",
    "int8": "int8",
    "uint16": "uint16",
    "int16": "int16",
    "uint32": "uint32",
    "int32": "int32",
    "uint64": "uint64",
    "int64": "int64",
    "float8_e4m3fn": "uint8",
    "float8_e5m2": "uint8",
    "float8_e4m3fnuz": "uint8",
    "float8_e5m2fnuz": "uint8",
    "float8_e8m0fnu": "uint8",
    "float16": "float16",
    "bfloat16": "uint16",
    "float32": "float32",
    "float64": "float64",
    "complex64": "complex64",
    "complex128": "complex128",
}

MAX_TENSORS: Final = 1_000_000
MAX_BYTES: Final = 1 << 50
"""A petabyte in one slot is a damaged layout, not a model."""


def align(nbytes: int, to: int = ALIGNMENT) -> int:
    """``nbytes`` rounded up to a multiple of ``to``."""
    return -(-nbytes // to) * to


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor's place in a slot."""

    name: str
    dtype: str
    """A key of ``DTYPES``."""
    shape: tuple[int, ...]
    offset: int
    """Bytes from the start of the slot, a multiple of 64."""
    nbytes: int

    def view(self, slot: Bytes) -> npt.NDArray[np.generic]:
        """This tensor inside ``slot`` (uint8 [slot bytes]), without a copy; numpy dtype as in ``DTYPES``."""
        flat = slot[self.offset : self.offset + self.nbytes]
        return flat.view(np.dtype(DTYPES[self.dtype])).reshape(self.shape)


@dataclass(frozen=True, slots=True)
class Layout:
    """Ordered tensors of one slot. Build with ``Layout.build``; read back with ``Layout.from_json``."""

    tensors: tuple[TensorSpec, ...]
    nbytes: int = field(init=False)
    """Bytes of a slot that carries this layout: a multiple of 64, at least 64."""
    digest: int = field(init=False)

    def __post_init__(self) -> None:
        end = self.tensors[-1].offset + self.tensors[-1].nbytes if self.tensors else 0
        object.__setattr__(self, "nbytes", align(max(end, 1)))
        object.__setattr__(self, "digest", digest(self.to_json()))

    @classmethod
    def build(cls, tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> Layout:
        """Lay ``{name: (dtype, shape)}`` out in the mapping's order.

        Raises:
            ValueError: an unknown dtype, a negative dimension, or too many bytes; names the tensor.
        """
        return cls(tuple(_place((name, dtype, shape) for name, (dtype, shape) in tensors.items())))

    def to_json(self) -> bytes:
        return msgspec.json.encode([(t.name, t.dtype, t.shape) for t in self.tensors])

    @classmethod
    def from_json(cls, text: bytes) -> Layout:
        """The layout that ``to_json`` wrote.

        Raises:
            CorruptArenaError: not JSON, not a layout, or an impossible one.
        """
        try:
            rows = msgspec.json.decode(text, type=list[tuple[str, str, tuple[int, ...]]])
            layout = cls(tuple(_place(rows)))
        except (msgspec.MsgspecError, ValueError) as error:
            raise CorruptArenaError(f"the layout is damaged: {error}") from error
        if len(layout.specs()) != len(layout.tensors):
            raise CorruptArenaError("the layout is damaged: a tensor name stands twice")
        return layout

    def specs(self) -> dict[str, TensorSpec]:
        return {t.name: t for t in self.tensors}

    def views(self, slot: Bytes) -> dict[str, npt.NDArray[np.generic]]:
        """Every tensor inside ``slot`` by name, without a copy."""
        return {t.name: t.view(slot) for t in self.tensors}

    def require_same(self, other: Layout, what: str) -> None:
        """Raise ``LayoutMismatchError`` naming the first difference unless ``other`` is the same layout."""
        if self.digest == other.digest:
            return
        mine, theirs = self.specs(), other.specs()
        for name in [*mine, *theirs]:
            a, b = mine.get(name), theirs.get(name)
            if a != b:
                raise LayoutMismatchError(f"{what}: tensor {name!r} is {_say(a)} here and {_say(b)} there")
        raise LayoutMismatchError(f"{what}: the same tensors in another order")


def _place(rows: Iterable[tuple[str, str, tuple[int, ...]]]) -> Iterable[TensorSpec]:
    offset = 0
    for count, (name, dtype, shape) in enumerate(rows):
        if dtype not in DTYPES:
            raise ValueError(f"tensor {name!r} has dtype {dtype!r}; known are {', '.join(DTYPES)}")
        if any(n < 0 for n in shape):
            raise ValueError(f"tensor {name!r} has the impossible shape {shape}")
        nbytes = math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize
        if count >= MAX_TENSORS or offset + nbytes > MAX_BYTES:
            raise ValueError(f"tensor {name!r} makes the layout larger than {MAX_TENSORS} tensors or {MAX_BYTES} bytes")
        yield TensorSpec(name, dtype, tuple(shape), offset, nbytes)
        offset = align(offset + nbytes)


def _say(spec: TensorSpec | None) -> str:
    return "absent" if spec is None else f"{spec.dtype}{list(spec.shape)} at {spec.offset}"
