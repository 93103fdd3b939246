"""What data-parallel replicas hold alike, divided among them: each saves its share, and its own beside it.

Parameters and optimizer tensors are alike on all replicas; buffers, random numbers, scalars and extras are each rank's
own. What is alike is one run of bytes, cut where the rows (the first dimension) of a tensor end: each piece is a box
that ``torch.distributed.checkpoint`` can name, so that checkpoints of shares are as good as others.

The idea is REFT's (Wang et al. 2023, arXiv 2310.12670: each data-parallel path snapshots S/n) and FastPersist's (Wang
et al. 2024, arXiv 2406.13768: replicas write in parallel). The price: a rank that goes back to a slot needs the shares
of all its replicas, so ``join`` takes them together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from mainstay.recovery.memory.digest import Bytes
from mainstay.recovery.memory.global_slices import SLICES, GlobalSlice, Slices, encode, whole
from mainstay.recovery.memory.layout import Layout, TensorSpec
from mainstay.recovery.memory.slot_copy import Piece, cut
from mainstay.recovery.memory.snapshot import SnapshotSource

SHARED: Final = ("param.", "optim.")
"""How the names of tensors begin that data-parallel replicas hold alike (``memory.state``)."""

SHARD: Final = "mainstay.shard."
"""How the name of a tensor of one byte begins that slots have which hold a share."""

Arrays = Mapping[str, npt.NDArray[np.generic]]


class RestorableState(SnapshotSource, Protocol):
    """What can be cut, saved to a slot and put back: a source that also takes."""

    @property
    def slices(self) -> Slices: ...

    def load(self, arrays: Arrays) -> None: ...

    def rewind(self, pieces: Mapping[str, Piece]) -> None: ...


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a tensor; a tensor without rows or bytes counts as one."""

    first: int
    count: int


def share(layout: Layout, index: int, count: int, weights: Sequence[int] = ()) -> dict[str, Rows]:
    """What replica ``index`` of ``count`` saves of the tensors of ``layout`` that replicas hold alike.

    Shares of all replicas cover each tensor once; their bytes are as ``weights`` (none: equal), but for a row or so.

    Raises:
        ValueError: no such replica, or weights that are not of ``count`` replicas.
    """
    weights = weights or (1,) * count
    if not 0 <= index < count:
        raise ValueError(f"replica {index} of {count}")
    if len(weights) != count or min(weights) < 1:
        raise ValueError(f"weights {list(weights)} for {count} replicas")
    shared = [spec for spec in layout.tensors if spec.name.startswith(SHARED)]
    total, at, found = sum(spec.nbytes for spec in shared), 0, {}
    start, stop = (total * sum(weights[:end]) // sum(weights) for end in (index, index + 1))
    for spec in shared:
        first, last = _row(spec, start - at), _row(spec, stop - at)
        if not spec.nbytes:
            first, last = 0, int(index == 0)
        if last > first:
            found[spec.name] = Rows(first, last - first)
        at += spec.nbytes
    return found


def _row(spec: TensorSpec, at: int) -> int:
    """The row where byte ``at`` of the tensor cuts."""
    rows = _rows_of(spec)
    return min(max(round(at * rows / max(1, spec.nbytes)), 0), rows)


def _rows_of(spec: TensorSpec) -> int:
    return spec.shape[0] if spec.shape and spec.nbytes else 1


@dataclass(frozen=True, slots=True)
class Cut:
    """Some rows of a tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int
    """Bytes of the tensor."""
    place: GlobalSlice | None
    """In the tensor of the whole model; None: it is that tensor."""


def cut_rows(spec: TensorSpec, rows: Rows, place: GlobalSlice | None) -> Cut:
    """``rows`` of a tensor that itself lies at ``place``."""
    if rows.count == _rows_of(spec):
        return Cut(spec.name, spec.dtype, spec.shape, 0, spec.nbytes, place)
    each, whole_place = spec.nbytes // spec.shape[0], place or whole(spec.shape)
    first, *rest = whole_place.offsets
    at = GlobalSlice(whole_place.global_shape, (first + rows.first, *rest))
    shape = (rows.count, *spec.shape[1:])
    return Cut(spec.name, spec.dtype, shape, rows.first * each, (rows.first + rows.count) * each, at)


class ShardedState:
    """A ``State`` whose slots hold replica ``index``'s range of ``whole`` and what is its own. ``load`` is ``join``."""

    def __init__(self, whole_state: RestorableState, index: int, count: int) -> None:
        """Cut ``whole_state`` among ``count`` replicas, of which this is number ``index``.

        Raises:
            ValueError: no such replica, or nothing in ``whole_state`` that replicas would share.
        """
        if not 0 <= index < count:
            raise ValueError(f"replica {index} of {count}")
        self._whole = whole_state
        self.index, self.count = index, count
        layout = whole_state.layout
        self.shared = Layout.build({t.name: (t.dtype, t.shape) for t in layout.tensors if t.name.startswith(SHARED)})
        """What replicas hold alike, as one run of bytes."""
        if not self.shared.tensors:
            raise ValueError("the state has no parameters that replicas could share: save it whole")
        self._own = {t.name: (t.dtype, t.shape) for t in layout.tensors if not t.name.startswith((*SHARED, SLICES))}
        self._cuts = [self._cuts_of(i) for i in range(count)]
        self.layout = self.layout_of(index)
        self.slices = self._places(index)

    def _cuts_of(self, index: int) -> list[Cut]:
        specs, places = self.shared.specs(), self._whole.slices
        rows = share(self.shared, index, self.count)
        return [cut_rows(specs[name], some, places.get(name)) for name, some in rows.items()]

    def _places(self, index: int) -> dict[str, GlobalSlice]:
        own = {name: place for name, place in self._whole.slices.items() if name in self._own}
        return own | {cut.name: cut.place for cut in self._cuts[index] if cut.place is not None}

    def layout_of(self, index: int) -> Layout:
        """Of the slots of replica ``index``: its share, then its own tensors; the first tensor says whose it is."""
        cuts = {cut.name: (cut.dtype, cut.shape) for cut in self._cuts[index]}
        places = {SLICES: ("uint8", (len(encode(self._places(index))),))}
        return Layout.build({self._mark(index): ("uint8", (1,)), **cuts, **self._own, **places})

    def _mark(self, index: int) -> str:
        """So that the layout's digest tells one replica's slot from another's."""
        return f"{SHARD}{index}of{self.count}"

    def freeze(self) -> Mapping[str, Piece]:
        """See ``Source``.

        Raises:
            ValueError: a tensor is gone.
        """
        pieces = self._whole.freeze()
        kept = {name: piece for name, piece in pieces.items() if name in self._own}
        cuts = self._cuts[self.index]
        missing = next((part.name for part in cuts if part.name not in pieces), None)
        if missing is not None:
            raise ValueError(f"tensor {missing!r} is gone from the state")
        own: dict[str, Piece] = {self._mark(self.index): np.ones(1, np.uint8), SLICES: encode(self.slices)}
        return own | {p.name: cut(pieces[p.name], p.start, p.stop) for p in cuts} | kept

    def rewind(self, pieces: Mapping[str, Piece]) -> None:
        """See ``TrainerState.rewind``; it needs only what is the rank's own."""
        self._whole.rewind({name: piece for name, piece in pieces.items() if name in self._own})

    def load(self, arrays: Arrays) -> None:
        """Refused: one replica's slot alone is not the state.

        Raises:
            ValueError: always.
        """
        del arrays
        raise ValueError(f"a slot of replica {self.index} is one part of {self.count}; the others are needed too")

    def put(self, index: int, slot: Bytes, shared: Bytes) -> None:
        """Copy the share of replica ``index`` from its ``slot`` to its place in ``shared`` (see ``join``)."""
        views, specs = self.layout_of(index).views(slot), self.shared.specs()
        for part in self._cuts[index]:
            at = specs[part.name].offset
            shared[at + part.start : at + part.stop] = views[part.name].reshape(-1).view(np.uint8)

    def join(self, shared: Bytes, own: Bytes) -> None:
        """Load the whole state.

        Args:
            shared: uint8 [``shared.nbytes``], filled by ``put`` of all replicas' slots.
            own: a slot of this replica's layout, from which everything but its share is taken.
        """
        mine = {name: array for name, array in self.layout.views(own).items() if name in self._own}
        self._whole.load({**self.shared.views(shared), **mine})
