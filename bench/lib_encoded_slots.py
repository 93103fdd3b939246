"""Encoded slots, decoded as a restore decodes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from mainstay.recovery.checkpoint.encoding.encoded_slot import (
    FullSlot,
    SlotDigests,
    SlotId,
    sampled_against,
    slot_digests,
)
from mainstay.recovery.checkpoint.encoding.slot_chain import SlotChain
from mainstay.recovery.memory.digest import Bytes
from mainstay.recovery.memory.layout import Layout, TensorSpec


def decoded(layout: Layout, blobs: Iterable[bytes], base: Bytes | None = None) -> Bytes:
    """The slot that was encoded against ``base``: uint8 [layout.nbytes]."""
    slot = np.zeros(layout.nbytes, np.uint8)
    fill(chain_in_memory(layout, blobs, base), slot)
    return slot


def readable(layout: Layout, slot: Bytes, base: Bytes) -> SlotDigests:
    """Digests of ``base``, whose bytes are read for the tensors of ``slot`` where that pays."""
    views = {spec.name: base[spec.offset : spec.offset + spec.nbytes] for spec in layout.tensors}

    def read_from(name: str) -> Callable[[int, Bytes], None]:
        return lambda at, out: np.copyto(out, views[name][at : at + len(out)])

    stored = {name: replace(known, read=read_from(name)) for name, known in slot_digests(layout, base).items()}
    return sampled_against(layout, slot, slot_digests(layout, slot), stored)[2]


def chain_in_memory(layout: Layout, blobs: Iterable[bytes], base: Bytes | None = None) -> SlotChain:
    """The chain of one slot on top of ``base``."""
    found = dict(zip(layout.specs(), blobs, strict=True))

    def read_base(spec: TensorSpec, out: Bytes) -> None:
        assert base is not None
        out[:] = base[spec.offset : spec.offset + spec.nbytes]

    full = None if base is None else FullSlot(SlotId("", 0, 0, 1), 0, read_base)
    return SlotChain(layout, [lambda spec: found[spec.name]], full)


def fill(chain: SlotChain, slot: Bytes) -> None:
    """Read all tensors."""
    for spec in chain.layout.tensors:
        chain.read(spec.name, slot[spec.offset : spec.offset + spec.nbytes])
