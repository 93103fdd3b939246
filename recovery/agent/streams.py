"""Stripes of several members read side by side, chunk by chunk, so that what they are combined into stays in cache.

Fused in this way a sum of k stripes touches memory once a byte instead of three times; see ``bench.snapshot_path``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mainstay.recovery.agent.errors import CorruptError
from mainstay.recovery.agent.framing import CHUNK
from mainstay.recovery.agent.peer import Peer
from mainstay.recovery.agent.peer_messages import ReadParity, ReadSlot, RowHeader, SlotHeader
from mainstay.recovery.coding import gf
from mainstay.recovery.memory.digest import Bytes


class Stripe:
    """One member's stripe, or parity row, as it comes over the wire, to be added with a coefficient of GF(2^8)."""

    def __init__(self, peer: Peer, nbytes: int, coefficient: int = 1) -> None:
        self.peer = peer
        self.nbytes = nbytes
        self.coefficient = coefficient
        self._left = nbytes
        self._buffer: Bytes = np.empty(min(CHUNK, nbytes), np.uint8)

    def start_into(self, out: Bytes) -> None:
        """The next bytes times the coefficient into ``out``; zeros where the stripe has ended."""
        if self.coefficient != 1:
            out[:] = 0
            self.add_into(out)
            return
        count = self._take(len(out))
        self.peer.receive_into(out[:count])
        out[count:] = 0

    def add_into(self, out: Bytes) -> None:
        """``out`` plus the next bytes times the coefficient; those past the stripe's end count as zeros."""
        part = self._buffer[: self._take(len(out))]
        self.peer.receive_into(part)
        gf.multiply_add(self.coefficient, part, out[: len(part)])

    def _take(self, most: int) -> int:
        count = min(most, self._left)
        self._left -= count
        return count


def ask_slot(peer: Peer, wanted: ReadSlot, digest: int, coefficient: int = 1) -> Stripe:
    """Ask for bytes of the slot that has ``digest``.

    Raises:
        CorruptError: the member holds other bytes under that epoch.
    """
    header = peer.call(wanted, SlotHeader)
    if header.digest != digest or header.nbytes != wanted.nbytes:
        raise CorruptError(
            f"{peer.endpoint}: rank {wanted.rank} epoch {wanted.epoch} is not the one that went into the parity"
        )
    return Stripe(peer, header.nbytes, coefficient)


def ask_parity(peer: Peer, wanted: ReadParity, digests: tuple[int, ...]) -> Stripe:
    """Ask for the beginning of a parity row made of the slots that have ``digests``.

    Raises:
        CorruptError: the member's row covers other bytes.
    """
    header = peer.call(wanted, RowHeader)
    if header.digests != digests or header.nbytes != wanted.nbytes:
        raise CorruptError(f"{peer.endpoint}: its parity of epoch {wanted.epoch} covers other bytes")
    return Stripe(peer, header.nbytes)


def combine(stripes: Sequence[Stripe], out: Bytes) -> None:
    """``out`` becomes the sum of all stripes, each padded with zeros."""
    for at in range(0, len(out), CHUNK):
        chunk = out[at : at + CHUNK]
        stripes[0].start_into(chunk)
        for stripe in stripes[1:]:
            stripe.add_into(chunk)
