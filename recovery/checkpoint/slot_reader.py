"""A slot out of a step on disk: from a rank's own part, or from the shares that replicas divided among themselves.

Tensors are read by several threads, each checked against its digest. A tensor that a replica beside this rank has
already read is copied from its slot instead: stored pieces with equal digests hold equal bytes, so that one device
serves all replicas of a node with one read (MegaScale's "one reader a data-parallel group", NSDI 2024, section 4.4,
within a node).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Final

import numpy as np

from mainstay.recovery.checkpoint.catalog import RunDirectory
from mainstay.recovery.checkpoint.load import part_file
from mainstay.recovery.checkpoint.manifest import CheckpointError, CheckpointPart
from mainstay.recovery.checkpoint.slot_tensors import slices_of
from mainstay.recovery.checkpoint.tensor_index import TensorIndex
from mainstay.recovery.memory.digest import Bytes
from mainstay.recovery.memory.errors import LayoutMismatchError
from mainstay.recovery.memory.global_slices import SLICES, GlobalSlice, whole
from mainstay.recovery.memory.layout import Layout, TensorSpec
from mainstay.recovery.memory.shard import SHARED

READERS: Final = 4
"""Reads under way at a time: what one device answers best, as ``bench.checkpoints`` measures it."""

Origin = tuple[tuple[GlobalSlice, int], ...]
"""Place and digest of the stored pieces that a tensor is made of: equal origins, equal bytes."""
Reuse = Callable[[str, Origin], Bytes | None]
"""Name and origin of a tensor -> its bytes, if they are in memory already."""
ReadAll = Callable[[Iterable[TensorSpec]], Iterator[int]]
"""Reads tensors into the slot; of each, in order, the bytes that came from disk."""
Exchange = Callable[[Sequence[TensorSpec], Mapping[str, Origin], ReadAll], int]
"""Fills tensors of known origins, with as few as possible from disk; the bytes of these."""


class SlotReader:
    """Reads the slot that ``part`` is all of, or a share of."""

    def __init__(self, run: RunDirectory, part: CheckpointPart, layout: Layout) -> None:
        """Find where the tensors of ``layout`` are.

        Raises:
            LayoutMismatchError: the part holds other tensors; names the first where it can.
            CheckpointError: the step is not whole, or one of the shares is missing.
        """
        where = run.step(part.epoch) / part.file
        if part.is_share:
            if part.layout_digest != layout.digest:
                raise LayoutMismatchError(f"{where} holds other tensors than this rank has")
        else:
            layout.require_same(part.layout(), str(where))
        self._run, self.part, self.layout = run, part, layout
        self._own = {entry.name: entry for entry in part.tensors}
        self._index = self._join() if part.is_share else None
        self._places: dict[str, GlobalSlice] = {}
        self.origins: dict[str, Origin] = {}
        """Of each tensor that was read."""
        self.nbytes = 0
        """Read from disk so far."""

    def _join(self) -> TensorIndex:
        """Of the shares of all replicas."""
        part = self.part
        kept = {entry.rank: entry.generation for entry in self._run.manifest(part.epoch).parts}
        peers = [peer for peer in part.shape.dp_peers(part.rank) if peer in kept and peer != part.rank]
        return TensorIndex(self._run, [part, *(self._run.part(part.epoch, peer, kept[peer]) for peer in peers)])

    def read(self, out: Bytes, reuse: Reuse | None = None, exchange: Exchange | None = None) -> None:
        """Fill ``out`` (uint8, the bytes of a slot); with ``exchange``, not all of it from disk.

        Raises:
            CheckpointError: a file is missing, short, or a tensor does not match its digest; ``out`` is worthless.
        """
        _clear_between(self.layout, out)
        with ExitStack() as stack, ThreadPoolExecutor(READERS, thread_name_prefix="checkpoint-read") as pool:
            read_entry = stack.enter_context(part_file(self._run, self.part))

            def bring(spec: TensorSpec) -> int:
                tensor = out[spec.offset : spec.offset + spec.nbytes]
                known = None if reuse is None else reuse(spec.name, self.origins[spec.name])
                if known is not None:
                    np.copyto(tensor, known)
                    return 0
                if self._is_shared(spec.name):
                    assert self._index is not None
                    self._index.read(spec.name, spec.dtype, self._place(spec), spec.view(out))
                else:
                    read_entry(self._own[spec.name], tensor)
                return spec.nbytes

            first = [spec for spec in self.layout.tensors if spec.name == SLICES]
            for spec in first:  # the others' places depend on it
                self.origins[SLICES] = ((self._own[SLICES].slice, self._own[SLICES].digest),)
                self.nbytes += bring(spec)
            self._places = slices_of(self.layout, out)
            others = [spec for spec in self.layout.tensors if spec.name != SLICES]
            self.origins |= {spec.name: self._origin(spec) for spec in others}
            read_all = partial(pool.map, bring)
            self.nbytes += exchange(others, self.origins, read_all) if exchange else sum(read_all(others))

    def _is_shared(self, name: str) -> bool:
        return self._index is not None and name.startswith(SHARED)

    def _place(self, spec: TensorSpec) -> GlobalSlice:
        return self._places.get(spec.name) or whole(spec.shape)

    def _origin(self, spec: TensorSpec) -> Origin:
        if self._is_shared(spec.name):
            assert self._index is not None
            return self._index.origin(spec.name)
        if spec.name not in self._own:
            raise CheckpointError(f"{self._run.step(self.part.epoch) / self.part.file} has no tensor {spec.name!r}")
        entry = self._own[spec.name]
        return ((self._place(spec), entry.digest),)


def _clear_between(layout: Layout, out: Bytes) -> None:
    """Make zeros of what lies between tensors: it counts in the digest of a slot."""
    at = 0
    for spec in sorted(layout.tensors, key=lambda tensor: tensor.offset):
        out[at : spec.offset] = 0
        at = spec.offset + spec.nbytes
    out[at:] = 0


def slot_layout(run: RunDirectory, part: CheckpointPart) -> Layout:
    """How the slot is laid out that ``part`` is all of, or a share of.

    Raises:
        CheckpointError: the file is missing, short, or damaged.
    """
    text = np.empty(part.described.nbytes, np.uint8)
    with part_file(run, part) as read:
        read(part.described, text)
    layout = Layout.from_json(text.tobytes())
    if layout.digest != part.layout_digest:
        raise CheckpointError(f"{run.step(part.epoch) / part.file} describes another layout than it has")
    return layout


def read_slot(run: RunDirectory, part: CheckpointPart, layout: Layout, out: Bytes) -> None:
    """Read the slot of ``part`` into ``out`` (uint8, the bytes of a slot with ``layout``).

    Raises:
        LayoutMismatchError, CheckpointError: see ``SlotReader``.
    """
    SlotReader(run, part, layout).read(out)
