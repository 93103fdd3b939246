"""The steps of one rank, each written in full, encoded alone, or encoded as differences to an earlier one.

Digests of the units of two bases are kept in memory, 8 bytes a unit: of the first step of the chain, and of the last.
Without them, as after the process was killed, the next step is written in full, in the format that other tools read.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

import msgspec

from mainstay.recovery.checkpoint import save
from mainstay.recovery.checkpoint.encoding.chain_policy import ChainCosts, Link, NextSizes, choose_base
from mainstay.recovery.checkpoint.encoding.encoded_slot import (
    ChainBase,
    SlotDigests,
    SlotId,
    changed_bytes,
    encode_slot,
    slot_digests,
    write_encoded_slot,
)
from mainstay.recovery.checkpoint.load import full_slot, layout_text
from mainstay.recovery.checkpoint.manifest import (
    CheckpointError,
    CheckpointPart,
    TensorEntry,
    data_name,
    encoded_name,
    holds,
    remove_file,
)
from mainstay.recovery.checkpoint.save import SlotDigest, WriteTarget
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.digest import Bytes, digest
from mainstay.recovery.memory.errors import CorruptArenaError
from mainstay.recovery.memory.global_slices import GlobalSlice
from mainstay.recovery.memory.layout import Layout, TensorSpec
from mainstay.recovery.memory.records import SlotRecord

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


class EncodedWriter:
    """Writes the steps of one rank, which has one layout in one run; ``fits`` tells whether it has."""

    def __init__(self, target: WriteTarget, layout: Layout) -> None:
        self._run, self._layout = target.run, layout
        self._nbytes = sum(spec.nbytes for spec in layout.tensors)
        self._chain: list[Link] = []
        self._bases: dict[int, _Base] = {}
        self._ratio = 1.0 - 2 * LEAST_SAVING
        """Bytes of the last encoded step for each byte that changed; a guess until there is one."""
        self._write_rate = READ_RATE

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
        data = arena.slot_bytes(record.slot)[: record.nbytes]
        digests = slot_digests(self._layout, data)
        self._forget_unusable(record, target)
        encoded, below = self._choose(digests, read_rate or READ_RATE)
        if encoded:
            return self._write_encoded(arena, record, target, digests, below)
        part = save.write_part(arena, record, target, direct=direct, final=True)
        self._write_rate = part.nbytes / max(part.seconds, 1e-9)
        self._keep(_Base(full_slot(self._run, part), digests), self._nbytes, None)
        return part

    def _forget_unusable(self, record: SlotRecord, target: WriteTarget) -> None:
        """Keep of the chain what can be a base: another node may be late with the last step, or the job went back."""
        for kept in (1, 0):
            if self._chain and not self._usable(self._bases[self._chain[-1].epoch].id.slot, record, target):
                self._chain = self._chain[:kept]
        known = {link.epoch for link in self._chain}
        self._bases = {epoch: base for epoch, base in self._bases.items() if epoch in known}

    def _usable(self, base: SlotId, record: SlotRecord, target: WriteTarget) -> bool:
        """Whether ``base`` is part of a complete step that still counts. A step without its bases never would."""
        if base.epoch >= record.epoch or not holds(target.config.returns, base.epoch, base.generation):
            return False
        try:
            manifest = self._run.manifest(base.epoch)
        except CheckpointError:
            return False
        return (base.rank, base.generation) in {(part.rank, part.generation) for part in manifest.parts}

    def _choose(self, digests: SlotDigests, read_rate: float) -> tuple[bool, _Base | None]:
        """Whether to encode the next step, and against which base."""
        if not self._chain:
            return False, None
        changed = {epoch: changed_bytes(self._layout, digests, base.digests) for epoch, base in self._bases.items()}
        if min(changed.values()) > (1.0 - LEAST_SAVING) * self._nbytes:
            return self._ratio < 1.0 - LEAST_SAVING, None
        first, last = (round(changed[self._chain[at].epoch] * self._ratio) for at in (0, -1))
        full_seconds = self._nbytes / read_rate
        costs = ChainCosts(
            write_bytes_per_second=self._write_rate,
            read_bytes_per_second=read_rate,
            max_restore_seconds=max(RESTORE_RATIO * full_seconds, RESTORE_SECONDS),
            link_seconds=LINK_RATIO * full_seconds,
        )
        epoch = choose_base(self._chain, NextSizes(full=self._nbytes, since_full=first, since_previous=last), costs)
        return epoch is not None, None if epoch is None else self._bases[epoch]

    def _write_encoded(
        self, arena: Arena, record: SlotRecord, target: WriteTarget, digests: SlotDigests, base: _Base | None
    ) -> CheckpointPart:
        begun, rank, layout = time.perf_counter(), arena.header.rank, self._layout
        step, name = target.run.step(record.epoch), encoded_name(rank, record.generation)
        save.make_room(step, name, 0)
        remove_file(step / data_name(rank, record.generation))  # of a process that was killed before it wrote its part
        data = arena.slot_bytes(record.slot)[: record.nbytes]
        whole = SlotDigest(data)

        def copied(spec: TensorSpec) -> Bytes:
            """What is digested is what is encoded: memory may change, and be repaired, meanwhile."""
            tensor = data[spec.offset : spec.offset + spec.nbytes].copy()
            whole.skip(spec.offset, spec.nbytes)
            whole.state.update(tensor.data)
            if digest(tensor) != digests[spec.name].whole:
                raise CorruptArenaError(f"rank {rank}: {spec.name!r} of epoch {record.epoch} changed as it was read")
            return tensor

        index = write_encoded_slot(
            step / name, SlotId(target.config.run, record.epoch, rank, record.generation), layout,
            encode_slot(layout, data, base.digests if base else None, own=digests, copied=copied), exact=True,
            base=base.id if base else None, still=lambda: arena.check(record, whole.finish()),
        )  # fmt: skip
        nbytes, places = (step / name).stat().st_size, save.slices_of(layout, data)
        described, text = layout_text(layout)
        part = save.report_part(
            target, (record.epoch, rank, record.generation), layout,
            [_entry(spec, digests[spec.name].whole, places.get(spec.name)) for spec in layout.tensors],
            _entry(described, digest(text)), file=name, nbytes=layout.nbytes, seconds=time.perf_counter() - begun,
            encoded=nbytes, base=(base.id.slot.epoch, base.id.slot.generation) if base else msgspec.UNSET,
        )  # fmt: skip
        changed = self._nbytes if base is None else changed_bytes(layout, digests, base.digests)
        self._ratio = nbytes / max(changed, 1)
        self._keep(_Base(index, digests), nbytes, base)
        return part

    def _keep(self, written: _Base, nbytes: int, base: _Base | None) -> None:
        """Remember a step; one that needs no base begins a chain."""
        epoch = written.id.slot.epoch
        if base is None:
            self._chain, self._bases = [], {}
        self._chain.append(Link(epoch, nbytes, None if base is None else base.id.slot.epoch))
        self._bases = {self._chain[0].epoch: self._bases.get(self._chain[0].epoch, written), epoch: written}


def _entry(spec: TensorSpec, found: int, place: GlobalSlice | None = None) -> TensorEntry:
    """A tensor that has no place of its own in a file."""
    return TensorEntry(spec.name, spec.dtype, spec.shape, 0, spec.nbytes, found, 0, 0, place)
