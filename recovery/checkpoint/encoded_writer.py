"""The steps of one rank, each written in full, encoded alone, or encoded as differences to an earlier one.

Digests of the units of two bases are kept in memory, 8 bytes a unit: of the first step of the chain, and of the last.
Without them, as after the process was killed, the next step is written in full, in the format that other tools read.
Where nearly everything changed, as with dense models, the bytes of the first step are read from disk to subtract them.

A quantized step needs none of this: each stands alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import msgspec

from mainstay.recovery.checkpoint import save
from mainstay.recovery.checkpoint.encoding.chain_policy import MAX_LINKS, ChainCosts, Link, choose_base, pays_full
from mainstay.recovery.checkpoint.encoding.encoded_slot import (
    ChainBase,
    SlotDigests,
    SlotId,
    SlotIndex,
    changed_bytes,
    encode_slot,
    sampled_against,
    slot_digests,
    write_encoded_slot,
)
from mainstay.recovery.checkpoint.encoding.tensor_blob import split
from mainstay.recovery.checkpoint.load import full_part, full_slot, layout_text
from mainstay.recovery.checkpoint.manifest import (
    QUANTIZED,
    CheckpointError,
    CheckpointPart,
    TensorEntry,
    data_name,
    encoded_name,
    holds,
    remove_file,
)
from mainstay.recovery.checkpoint.save import WriteTarget
from mainstay.recovery.checkpoint.slot_tensors import SlotDigest, slices_of
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.digest import Bytes, digest
from mainstay.recovery.memory.errors import CorruptArenaError
from mainstay.recovery.memory.global_slices import GlobalSlice
from mainstay.recovery.memory.layout import Layout, TensorSpec
from mainstay.recovery.memory.records import SlotRecord

logger = logging.getLogger("mainstay.checkpoint")

RESTORE_RATIO: Final = 3.0
"""Most time to restore from a chain, in restores of a full step. The files of a chain that retention keeps have no more
bytes than so many full steps either."""
LINK_RATIO: Final = 0.1
"""Time that a file costs beyond its bytes, likewise: up to (4.2 - 2.1) / 23 in ``bench.checkpoint_size``."""
RESTORE_SECONDS: Final = 5.0
"""A shorter restore is not worth a full step: to form the process groups again takes as long."""
READ_RATE: Final = 5e8
"""Bytes a second, until a restore was measured: an SSD behind SATA."""
LEAST_SAVING: Final = 0.1
"""Of a step. Where a base saves less, it makes each restore longer for nothing; likewise encoding without a base."""


@dataclass(frozen=True, slots=True)
class _Base:
    """A step that the next one may be written against."""

    id: ChainBase
    digests: SlotDigests
    part: CheckpointPart | None = None
    """Of a full step, whose bytes can be read."""


@dataclass(frozen=True, slots=True)
class _Choice:
    """How to write the next step."""

    encoded: bool
    base: _Base | None = None
    known: SlotDigests | None = None
    """Of the base; None: its digests."""


class EncodedWriter:
    """Writes the steps of one rank, which has one layout in one run; ``fits`` tells whether it has."""

    def __init__(self, target: WriteTarget, layout: Layout) -> None:
        self._run, self._layout = target.run, layout
        self._nbytes = sum(spec.nbytes for spec in layout.tensors)
        self._chain: list[Link] = []
        self._bases: dict[int, _Base] = {}
        self._ratio = 1.0 - 2 * LEAST_SAVING
        """Bytes of the last encoded step for each byte that changed; a guess until there is one."""
        self._alone = 0
        """Steps in a row without a base: after some, a full step shows whether a base pays by now."""

    def fits(self, target: WriteTarget, layout: Layout) -> bool:
        return (self._run.path, self._layout.digest) == (target.run.path, layout.digest)

    def write(
        self, arena: Arena, record: SlotRecord, target: WriteTarget, *, direct: bool = True, read_rate: float = 0.0
    ) -> CheckpointPart:
        """Write a verified slot durably.

        Args:
            arena: of the rank.
            record: of the slot.
            target: where.
            direct: a full step past the page cache.
            read_rate: bytes a second of the last restores from disk; 0: none was measured.

        Raises:
            TornSlotError, CorruptArenaError, OSError: see ``save.write_part``.
        """
        if target.config.encoding in QUANTIZED:
            return _write_slot(arena, record, target)[0]
        data = arena.slot_bytes(record.slot)[: record.nbytes]
        digests = slot_digests(self._layout, data)
        self._forget_unusable(record, target)
        with ExitStack() as opened:
            choice = self._choose(data, digests, read_rate or READ_RATE, opened)
            try:
                if choice.encoded:
                    return self._write_encoded(arena, record, target, digests, choice)
            except CheckpointError as error:  # of the base, which is no reason to lose this step
                logger.warning("step %d is written without its base: %s", record.epoch, error)
                return self._write_encoded(arena, record, target, digests, _Choice(encoded=True))
        part = save.write_part(arena, record, target, direct=direct, final=True)
        self._alone = 0
        self._keep(_Base(full_slot(self._run, part), digests, part), self._nbytes, None)
        return part

    def _forget_unusable(self, record: SlotRecord, target: WriteTarget) -> None:
        """Keep of the chain what can be a base: another node may be late with the last step, or the job went back."""
        for kept in (1, 0):
            if self._chain and not self._usable(self._bases[self._chain[-1].epoch].id.slot, record, target):
                self._chain = self._chain[:kept]
        known = {link.epoch for link in self._chain}
        self._bases = {epoch: base for epoch, base in self._bases.items() if epoch in known}

    def _usable(self, base: SlotId, record: SlotRecord, target: WriteTarget) -> bool:
        """Whether ``base`` is part of a complete step that still counts. A step without its bases never would.

        Nor would one whose bases only this node's disk has: those of a time at which the others were away. With parity,
        on a disk of the node's own, the part is enough: other nodes decode a lost one without its bases.
        """
        if base.epoch >= record.epoch or not holds(target.config.returns, base.epoch, base.generation):
            return False
        if target.config.parity:
            return (base.rank, base.generation) in {(p.rank, p.generation) for p in self._run.parts(base.epoch)}
        try:
            manifest = self._run.manifest(base.epoch)
        except CheckpointError:
            return False
        ranks = {rank for rank, _ in manifest.checks}
        return (base.rank, base.generation) in manifest.checks and target.config.writers() <= ranks

    def _choose(self, data: Bytes, digests: SlotDigests, read_rate: float, opened: ExitStack) -> _Choice:
        """How to write the next step; files that this needs are open until ``opened`` ends."""
        if not self._chain:
            return _Choice(encoded=False)
        full_seconds = self._nbytes / read_rate
        costs = ChainCosts(
            read_bytes_per_second=read_rate,
            max_restore_seconds=max(RESTORE_RATIO * full_seconds, RESTORE_SECONDS),
            link_seconds=LINK_RATIO * full_seconds,
        )
        changed = {epoch: changed_bytes(self._layout, digests, base.digests) for epoch, base in self._bases.items()}
        if min(changed.values()) > (1.0 - LEAST_SAVING) * self._nbytes:
            try:
                return self._choose_dense(data, digests, costs, opened)
            except CheckpointError as error:
                logger.warning("the base of the next step cannot be read: %s", error)
                return _Choice(encoded=self._ratio < 1.0 - LEAST_SAVING)
        first, last = (round(changed[self._chain[at].epoch] * self._ratio) for at in (0, -1))
        epoch = choose_base(self._chain, costs, since_full=first, since_previous=last)
        return _Choice(encoded=epoch is not None, base=None if epoch is None else self._bases[epoch])

    def _choose_dense(self, data: Bytes, digests: SlotDigests, costs: ChainCosts, opened: ExitStack) -> _Choice:
        """The same where nearly everything changed: only what is subtracted from the bytes of a base becomes smaller.

        Raises:
            CheckpointError: the base cannot be read.
        """
        base = self._bases[self._chain[0].epoch]
        if base.part is None:
            return _Choice(encoded=self._ratio < 1.0 - LEAST_SAVING and self._alone < MAX_LINKS)
        read = opened.enter_context(full_part(self._run, base.part))
        stored = {e.name: replace(base.digests[e.name], read=partial(read, e)) for e in base.part.tensors}
        alone, against, known = sampled_against(self._layout, data, digests, stored)
        pays = against <= (1.0 - LEAST_SAVING) * alone
        if pays and choose_base(self._chain, costs, since_full=against, since_previous=against) is not None:
            return _Choice(encoded=True, base=base, known=known)
        return _Choice(encoded=alone < (1.0 - LEAST_SAVING) * self._nbytes and not pays_full(self._chain, alone))

    def _write_encoded(
        self, arena: Arena, record: SlotRecord, target: WriteTarget, digests: SlotDigests, choice: _Choice
    ) -> CheckpointPart:
        base = choice.base
        known = choice.known or (base.digests if base else None)
        part, index = _write_slot(arena, record, target, known=known, digests=digests, base=base.id if base else None)
        nbytes = part.encoded or 0
        self._ratio = nbytes / max(changed_bytes(self._layout, digests, base.digests) if base else self._nbytes, 1)
        self._alone = 0 if base else self._alone + 1
        self._keep(_Base(index, digests), nbytes, base)
        return part

    def _keep(self, written: _Base, nbytes: int, base: _Base | None) -> None:
        """Remember a step; one that needs no base begins a chain."""
        epoch = written.id.slot.epoch
        if base is None:
            self._chain, self._bases = [], {}
        self._chain.append(Link(epoch, nbytes, None if base is None else base.id.slot.epoch))
        self._bases = {self._chain[0].epoch: self._bases.get(self._chain[0].epoch, written), epoch: written}


def _write_slot(
    arena: Arena, record: SlotRecord, target: WriteTarget, *, known: SlotDigests | None = None,
    digests: SlotDigests | None = None, base: ChainBase | None = None,
) -> tuple[CheckpointPart, SlotIndex]:  # fmt: skip
    """Write the file of a slot, and its part.

    Args:
        arena: of the rank.
        record: of the slot.
        target: where, and how many bits a value takes.
        known: what is known of the base.
        digests: of the slot; None: none were made.
        base: the step that the slot is encoded against.
    """
    begun, rank, layout = time.perf_counter(), arena.header.rank, arena.layout
    step, name = target.run.step(record.epoch), encoded_name(rank, record.generation)
    save.make_room(step, name, 0)
    remove_file(step / data_name(rank, record.generation))  # of a process that was killed before it wrote its part
    data = arena.slot_bytes(record.slot)[: record.nbytes]
    whole, places, entries = SlotDigest(data), slices_of(layout, data), list[TensorEntry]()
    bits = QUANTIZED.get(target.config.encoding)

    def copied(spec: TensorSpec) -> Bytes:
        """What is digested is what is encoded: memory may change, and be repaired, meanwhile."""
        tensor = data[spec.offset : spec.offset + spec.nbytes].copy()
        whole.skip(spec.offset, spec.nbytes)
        whole.state.update(tensor.data)
        if digests is not None and digest(tensor) != digests[spec.name].whole:
            raise CorruptArenaError(f"rank {rank}: {spec.name!r} of epoch {record.epoch} changed as it was read")
        return tensor

    def noted() -> Iterator[bytes]:
        blobs = encode_slot(layout, data, known, bits, own=digests, copied=copied)
        for spec, blob in zip(layout.tensors, blobs, strict=True):
            entries.append(_entry(spec, split(blob, spec)[0].digest, places.get(spec.name)))
            yield blob

    index = write_encoded_slot(
        step / name, SlotId(target.config.run, record.epoch, rank, record.generation), layout, noted(),
        base=base, still=lambda: arena.check(record, whole.finish()),
    )  # fmt: skip
    described, text = layout_text(layout)
    part = save.report_part(
        target, (record.epoch, rank, record.generation), layout, entries, _entry(described, digest(text)), file=name,
        nbytes=layout.nbytes, seconds=time.perf_counter() - begun, encoded=(step / name).stat().st_size,
        base=(base.slot.epoch, base.slot.generation) if base else msgspec.UNSET, quantized=index.bound,
    )  # fmt: skip
    return part, index


def _entry(spec: TensorSpec, found: int, place: GlobalSlice | None = None) -> TensorEntry:
    """A tensor that has no place of its own in a file."""
    return TensorEntry(spec.name, spec.dtype, spec.shape, 0, spec.nbytes, found, 0, 0, place)
