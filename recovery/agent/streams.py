"""Stripes of several members read side by side, chunk by chunk, so that what they are combined into stays in cache.

Fused in this way an XOR of k stripes touches memory once a byte instead of three times; see ``bench.snapshot_path``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from recovery.agent.errors import CorruptError
from recovery.agent.framing import CHUNK
from recovery.agent.messages import ReadSlot, SlotHeader
from recovery.agent.parity import xor_into
from recovery.agent.peer import Peer
from recovery.memory.digest import Bytes


class Stripe:
    """One member's stripe as it comes over the wire."""

    def __init__(self, peer: Peer, header: SlotHeader) -> None:
        self.peer = peer
        self.header = header
        self._left = header.nbytes
        self._buffer: Bytes = np.empty(min(CHUNK, header.nbytes), np.uint8)

    def read_into(self, out: Bytes) -> None:
        """The next bytes, straight into ``out``; zeros where the stripe has ended."""
        count = self._take(len(out))
        self.peer.receive_into(out[:count])
        out[count:] = 0

    def xor_into(self, out: Bytes) -> None:
        """``out`` XOR the next bytes; those past the stripe's end count as zeros."""
        part = self._buffer[: self._take(len(out))]
        self.peer.receive_into(part)
        xor_into(out, part)

    def finish(self) -> None:
        """See ``Peer.finish``."""
        self.peer.finish()

    def _take(self, most: int) -> int:
        count = min(most, self._left)
        self._left -= count
        return count


@contextmanager
def open_stripe(peer: Peer, wanted: ReadSlot, digest: int) -> Iterator[Stripe]:
    """Ask for a stripe of the slot that has ``digest``.

    Raises:
        CorruptError: the member holds other bytes under that epoch.
    """
    with peer:
        yield ask(peer, wanted, digest)


def ask(peer: Peer, wanted: ReadSlot, digest: int) -> Stripe:
    """As ``open_stripe``, on a connection that is open already."""
    header = peer.call(wanted, SlotHeader)
    if header.digest != digest or header.nbytes != wanted.nbytes:
        raise CorruptError(
            f"{peer.endpoint}: rank {wanted.rank} epoch {wanted.epoch} is not the one that went into the parity"
        )
    return Stripe(peer, header)


def combine(stripes: Sequence[Stripe], out: Bytes) -> None:
    """``out`` becomes the XOR of all stripes, each padded with zeros."""
    for at in range(0, len(out), CHUNK):
        chunk = out[at : at + CHUNK]
        stripes[0].read_into(chunk)
        for stripe in stripes[1:]:
            stripe.xor_into(chunk)
