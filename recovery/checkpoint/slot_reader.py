"""A slot out of a step on disk: from a rank's own part, or from the shares that replicas divided among themselves.

Tensors are read by several threads, each checked against its digest. A tensor that a replica beside this rank has
already read is copied from its slot instead: stored pieces with equal digests hold equal bytes, so that one device
serves all replicas of a node with one read (MegaScale's "one reader a data-parallel group", NSDI 2024, section 4.4,
within a node). Memory is as slow as a fast disk, so that nothing passes over it more often than it must: what is read
or copied is digested while it is in the processor's cache.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import Final

import numpy as np

from mainstay.recovery.checkpoint.catalog import RunDirectory
from mainstay.recovery.checkpoint.load import IN_CACHE, part_file
from mainstay.recovery.checkpoint.manifest import CheckpointError, CheckpointPart, TensorEntry
from mainstay.recovery.checkpoint.slot_tensors import slices_of
from mainstay.recovery.checkpoint.tensor_index import TensorIndex
from mainstay.recovery.memory.digest import Bytes, digest, digest_of
from mainstay.recovery.memory.errors import LayoutMismatchError
from mainstay.recovery.memory.global_slices import SLICES, GlobalSlice, whole
from mainstay.recovery.memory.layout import Layout, TensorSpec
from mainstay.recovery.memory.shard import SHARED

READERS: Final = 4
"""Reads under way at a time: what one device answers best, as ``bench.checkpoints`` measures it."""

Origin = tuple[tuple[GlobalSlice, int], ...]
"""Place and digest of the stored pieces that a tensor is made of: equal origins, equal bytes."""
Reuse = Callable[[str, Origin], tuple[Bytes, int] | None]
"""Name and origin of a tensor -> its bytes, if they are in memory already, and the digest that they should have."""
ReadAll = Callable[[Iterable[TensorSpec]], Iterator[None]]
"""Reads tensors into the slot, one a turn."""
Exchange = Callable[[Sequence[TensorSpec], Mapping[str, Origin], ReadAll], None]
"""Fills tensors of known origins, with as few as possible from disk, and tells ``SlotReader.ready`` of each."""


class ReadyTensors:
    """Tensors of a slot that is being filled, and their digests: whoever wants one waits for it."""

    def __init__(self) -> None:
        self.digests: dict[str, int] = {}
        self.over = False
        """No more come."""
        self.changed = threading.Condition()

    def put(self, name: str, digest: int) -> None:
        """The slot holds the tensor."""
        with self.changed:
            self.digests[name] = digest
            self.changed.notify_all()

    def finish(self) -> None:
        """No more tensors come: the slot is filled, or given up."""
        with self.changed:
            self.over = True
            self.changed.notify_all()

    def wait(self, name: str) -> int | None:
        """The digest of a tensor as soon as the slot holds it; None: it does not come."""
        with self.changed:
            self.changed.wait_for(lambda: self.over or name in self.digests)
            return self.digests.get(name)


class SlotReader:
    """Fills a slot with ``layout``, for a rank in the place of the one that wrote the first of ``parts``."""

    def __init__(
        self, run: RunDirectory, parts: Sequence[CheckpointPart], layout: Layout, joined: tuple[str, ...] = ()
    ) -> None:
        """Look through the parts of one step.

        Args:
            run: that wrote the step.
            parts: of the step; what is not joined comes from the first.
            layout: of this rank.
            joined: beginnings of the names of tensors that are put together from the pieces in all parts.

        Raises:
            CheckpointError: two parts hold different bytes of the same place.
        """
        self.part, self.layout = parts[0], layout
        self.ready = ReadyTensors()
        self._index, self._joined = TensorIndex(run, parts), joined
        self._own = {entry.name: entry for entry in self.part.tensors}
        self._places: Mapping[str, GlobalSlice] = {}
        """Of joined tensors that are cut."""
        self._made: Mapping[str, Bytes] = {}
        """Tensors that come from no part as they are."""
        self._counts: list[int] = []

    @property
    def nbytes(self) -> int:
        """Read from disk so far."""
        return sum(self._counts)

    @cached_property
    def origins(self) -> Mapping[str, Origin]:
        """Where each tensor comes from.

        Raises:
            CheckpointError: the step lacks one, or has it in another shape.
        """
        return {spec.name: self._origin(spec) for spec in self.layout.tensors}

    def _origin(self, spec: TensorSpec) -> Origin:
        if spec.name in self._made:
            return ((whole(spec.shape), digest(self._made[spec.name])),)
        if spec.name.startswith(self._joined):
            # Of the same pieces, ranks may need other boxes.
            return ((GlobalSlice(spec.shape, self._place(spec).offsets), 0), *self._index.origin(spec.name))
        entry = self._entry(spec)
        return ((entry.slice, entry.digest),)

    def read_tensor(self, spec: TensorSpec, slot: Bytes) -> int:
        """Fill a tensor of ``slot`` (uint8) from disk, checked; its digest. Called from several threads.

        Raises:
            CheckpointError: a file is missing, short, or a stored piece does not match its digest.
        """
        out = slot[spec.offset : spec.offset + spec.nbytes]
        if spec.name in self._made:
            out[:] = self._made[spec.name]
            return digest(out)
        if spec.name.startswith(self._joined):
            return self._index.read(spec.name, spec.dtype, self._place(spec), spec.view(slot))
        entry = self._entry(spec)
        self._index.read_piece(self.part, entry, out)
        return entry.digest

    def _place(self, spec: TensorSpec) -> GlobalSlice:
        return self._places.get(spec.name) or whole(spec.shape)

    def _entry(self, spec: TensorSpec) -> TensorEntry:
        if spec.name not in self._own:
            raise CheckpointError(f"the step has no tensor {spec.name!r}, which this rank needs")
        entry = self._own[spec.name]
        if (entry.dtype, entry.shape) != (spec.dtype, spec.shape):
            raise CheckpointError(
                f"{spec.name!r} is {entry.dtype}{list(entry.shape)} there, {spec.dtype}{list(spec.shape)} here"
            )
        return entry

    def read(self, out: Bytes, reuse: Reuse | None = None, exchange: Exchange | None = None) -> int:
        """Fill ``out`` (uint8, the bytes of a slot); with ``exchange``, not all of it from disk.

        Returns:
            Digest of ``out``.

        Raises:
            CheckpointError: as ``read_tensor``; ``out`` is worthless.
        """
        _clear_between(self.layout, out)

        def bring(spec: TensorSpec) -> None:
            tensor = out[spec.offset : spec.offset + spec.nbytes]
            known = None if reuse is None else reuse(spec.name, self.origins[spec.name])
            if known is None or (found := _copy(known[0], tensor)) != known[1]:
                self._counts.append(spec.nbytes)
                found = self.read_tensor(spec, out)
            self.ready.put(spec.name, found)

        with ThreadPoolExecutor(READERS, thread_name_prefix="checkpoint-read") as pool:
            if exchange is not None:
                exchange(self.layout.tensors, self.origins, partial(pool.map, bring))
                return digest(out)
            return digest_of(self._in_order(out, pool.map(bring, self.layout.tensors)))

    def _in_order(self, out: Bytes, read: Iterator[None]) -> Iterator[Bytes]:
        """The slot piece by piece, while later tensors are still being read."""
        at = 0
        for spec, _ in zip(self.layout.tensors, read, strict=True):
            yield out[at : spec.offset + spec.nbytes]
            at = spec.offset + spec.nbytes
        yield out[at:]


class PartReader(SlotReader):
    """Reads the slot that ``part`` is all of, or a share of."""

    def __init__(self, run: RunDirectory, part: CheckpointPart, layout: Layout) -> None:
        """Find where the tensors of ``layout`` are.

        Raises:
            LayoutMismatchError: the part holds other tensors; names the first where it can.
            CheckpointError: the step is not whole, or one of the shares is missing.
        """
        where = run.step(part.epoch) / part.file
        if not part.is_share:
            layout.require_same(part.layout(), str(where))
        elif part.layout_digest != layout.digest:
            raise LayoutMismatchError(f"{where} holds other tensors than this rank has")
        super().__init__(run, _shares(run, part), layout, SHARED if part.is_share else ())
        spec = layout.specs().get(SLICES)
        if part.is_share and spec is not None:
            slot = np.zeros(layout.nbytes, np.uint8)  # of which no more than this tensor takes memory
            self.read_tensor(spec, slot)
            self._places = slices_of(layout, slot)


def _shares(run: RunDirectory, part: CheckpointPart) -> list[CheckpointPart]:
    """The part, and those of the replicas that wrote the rest of its state."""
    if not part.is_share:
        return [part]
    kept = {entry.rank: entry.generation for entry in run.manifest(part.epoch).parts}
    peers = [peer for peer in part.shape.dp_peers(part.rank) if peer in kept and peer != part.rank]
    return [part, *(run.part(part.epoch, peer, kept[peer]) for peer in peers)]


def _copy(source: Bytes, out: Bytes) -> int:
    """Copy, and digest what was copied while the processor's cache still has it."""

    def copied() -> Iterator[Bytes]:
        for start in range(0, len(out), IN_CACHE):
            piece = out[start : start + IN_CACHE]
            np.copyto(piece, source[start : start + IN_CACHE])
            yield piece

    return digest_of(copied())


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


def read_slot(run: RunDirectory, part: CheckpointPart, layout: Layout, out: Bytes) -> int:
    """Read the slot of ``part`` into ``out`` (uint8, the bytes of a slot with ``layout``); its digest.

    Raises:
        LayoutMismatchError, CheckpointError: see ``PartReader``.
    """
    return PartReader(run, part, layout).read(out)
