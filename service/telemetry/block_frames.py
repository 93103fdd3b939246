"""The frames in stored blocks, from nodes and from relays."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from mainstay.probes.bundle import decode_bundle, decode_layout, unpack
from mainstay.probes.frame import Frame, decode, encode
from mainstay.service.telemetry.blocks import BlockKind, StoredBlock

Key = tuple[float, str, str, int]


def key_of(block: StoredBlock) -> Key:
    """The order in which frames are read: start, subject, stream, sequence."""
    return block.start, block.subject, block.stream, block.sequence


def frames_of(block: StoredBlock, subject: str | None = None) -> Iterator[Frame]:
    """The frames of a block, of one subject or of all.

    Raises:
        FrameError: the block cannot be read.
    """
    if block.kind is not BlockKind.BUNDLE:
        yield decode(block.body)
        return
    bundle = decode_bundle(block.body)
    yield from unpack(bundle, decode_layout(bundle.layout), subject)


def unbundled(blocks: Iterable[StoredBlock], subject: str | None) -> Iterator[StoredBlock]:
    """Bundles as blocks of one frame each, in the order of ``key_of``; ``blocks`` are sorted by start.

    Raises:
        FrameError: a block cannot be read.
    """
    waiting: list[tuple[Key, StoredBlock]] = []
    for block in blocks:
        # The frames of a bundle begin with it or later: what begins before this one is complete.
        while waiting and waiting[0][0][0] < block.start:
            yield heapq.heappop(waiting)[1]
        for frame in frames_of(block, subject):
            stop = frame.t0 + (frame.samples - 1) * frame.dt
            one = StoredBlock(
                frame.subject, BlockKind.TIME, frame.stream, frame.sequence, frame.t0, stop, encode(frame)
            )
            heapq.heappush(waiting, (key_of(one), one))
    while waiting:
        yield heapq.heappop(waiting)[1]
