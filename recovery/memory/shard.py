"""Sharded save: of what D data-parallel replicas hold alike, each keeps one D-th in its arena, and its own beside it.

Parameters and optimizer tensors are alike on all replicas; buffers, random numbers, scalars and extras are each rank's
own. What is alike is thought of as one flat run of bytes (the layout of those tensors alone), cut at multiples of 64
bytes into D ranges that differ by at most D cache lines, wherever tensors begin or end. The first tensor of a sharded
slot is the range, and its name says which; so the layout's digest tells one replica's slot from another's.

The idea is REFT's (Wang et al. 2023, arXiv 2310.12670: each data-parallel path snapshots S/n). The price: a rank that
goes back to a slot needs the ranges of all its replicas, so ``join`` takes them together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from mainstay.recovery.memory.digest import Bytes
from mainstay.recovery.memory.layout import Layout, align
from mainstay.recovery.memory.slot_copy import Composite, Item, Piece, cut

SHARED: Final = ("param.", "optim.")
"""How the names of tensors begin that data-parallel replicas hold alike (``memory.state``)."""

Arrays = Mapping[str, npt.NDArray[np.generic]]


class RestorableState(Protocol):
    """What can be cut, saved to a slot and put back: a ``Source`` that also takes."""

    @property
    def layout(self) -> Layout: ...

    def freeze(self) -> Mapping[str, Piece]: ...

    def load(self, arrays: Arrays) -> None: ...

    def rewind(self, pieces: Mapping[str, Piece]) -> None: ...


@dataclass(frozen=True, slots=True)
class ByteRange:
    """The bytes from ``start`` to ``stop`` (multiples of 64) of what the replicas share."""

    index: int
    count: int
    start: int
    stop: int

    @property
    def name(self) -> str:
        """Of the tensor that holds it."""
        return f"mainstay.shard.{self.index}of{self.count}.{self.start}-{self.stop}"

    @property
    def nbytes(self) -> int:
        return self.stop - self.start


def ranges(nbytes: int, count: int) -> tuple[ByteRange, ...]:
    """Cut ``nbytes`` (a multiple of 64) into ``count`` ranges; the last may be shorter, or empty when there is little.

    Raises:
        ValueError: fewer than one.
    """
    if count < 1:
        raise ValueError(f"state is cut among {count} replicas: at least 1")
    step = align(-(-nbytes // count))
    cuts = [min(i * step, nbytes) for i in range(count + 1)]
    return tuple(ByteRange(i, count, cuts[i], cuts[i + 1]) for i in range(count))


@dataclass(frozen=True, slots=True)
class _Part:
    """Bytes ``start`` to ``stop`` of one tensor, which lie at ``at`` of the range."""

    name: str
    start: int
    stop: int
    at: int


class ShardedState:
    """A ``State`` whose slots hold replica ``index``'s range of ``whole`` and what is its own. ``load`` is ``join``."""

    def __init__(self, whole: RestorableState, index: int, count: int) -> None:
        """Cut ``whole`` among ``count`` replicas, of which this is number ``index``.

        Raises:
            ValueError: no such replica, or nothing in ``whole`` that replicas would share.
        """
        if not 0 <= index < count:
            raise ValueError(f"replica {index} of {count}")
        specs = whole.layout.tensors
        self.whole = whole
        self.shared = Layout.build({t.name: (t.dtype, t.shape) for t in specs if t.name.startswith(SHARED)})
        """What replicas hold alike, as one run of bytes."""
        if not self.shared.tensors:
            raise ValueError("the state has no parameters that replicas could share: save it whole")
        self._own = {t.name: (t.dtype, t.shape) for t in specs if not t.name.startswith(SHARED)}
        self.ranges = ranges(self.shared.nbytes, count)
        self.range = self.ranges[index]
        self._parts = tuple(_parts(self.shared, self.range))
        self._layout = self.layout_of(index)

    @property
    def layout(self) -> Layout:
        return self._layout

    def layout_of(self, index: int) -> Layout:
        """Of the slots of replica ``index``: its range first, at offset 0, then its own tensors."""
        piece = self.ranges[index]
        return Layout.build({piece.name: ("uint8", (piece.nbytes,)), **self._own})

    def freeze(self) -> Mapping[str, Piece]:
        """See ``Source``.

        Raises:
            ValueError: a tensor is gone.
        """
        pieces = self.whole.freeze()
        kept = {name: piece for name, piece in pieces.items() if name in self._own}
        missing = next((part.name for part in self._parts if part.name not in pieces), None)
        if missing is not None:
            raise ValueError(f"tensor {missing!r} is gone from the state")
        parts = [Item(p.at, p.stop - p.start, cut(pieces[p.name], p.start, p.stop)) for p in self._parts]
        return {self.range.name: Composite(parts), **kept}

    def rewind(self, pieces: Mapping[str, Piece]) -> None:
        """See ``TrainerState.rewind``; it needs only what is the rank's own."""
        self.whole.rewind({name: piece for name, piece in pieces.items() if name in self._own})

    def load(self, arrays: Arrays) -> None:
        """Refused: one replica's slot alone is not the state.

        Raises:
            ValueError: always.
        """
        del arrays
        raise ValueError(f"a slot with {self.range.name} is one part of {self.range.count}; the others are needed too")

    def join(self, shared: Bytes, own: Bytes) -> None:
        """Load the whole state.

        Args:
            shared: uint8 [``shared.nbytes``], all ranges side by side.
            own: a slot of this replica's layout, from which everything but its range is taken.
        """
        self.whole.load({**self.shared.views(shared), **self._own_of(own)})

    def _own_of(self, slot: Bytes) -> Arrays:
        return {name: array for name, array in self._layout.views(slot).items() if name in self._own}


def _parts(layout: Layout, piece: ByteRange) -> Iterator[_Part]:
    """The parts of tensors that lie in ``piece``, in order."""
    for spec in layout.tensors:
        start, stop = max(spec.offset, piece.start), min(spec.offset + spec.nbytes, piece.stop)
        if start < stop:
            yield _Part(spec.name, start - spec.offset, stop - spec.offset, start - piece.start)
