"""Whole slots and pieces of them over TCP: served from the mapping, received straight into the mapping."""

from __future__ import annotations

import time
from typing import Final

from mainstay.recovery.agent.arena_files import commit_checked
from mainstay.recovery.agent.errors import AgentError, CorruptError, NoSuchSlotError
from mainstay.recovery.agent.messages import NEWEST, Fetch, Fetched
from mainstay.recovery.agent.node import AgentConnection, AgentNode
from mainstay.recovery.agent.parity_store import ParityRowKey, ParityStore
from mainstay.recovery.agent.peer import Peer
from mainstay.recovery.agent.peer_messages import (
    Head,
    LayoutText,
    ReadHead,
    ReadLayout,
    ReadParity,
    ReadSlot,
    RowHeader,
    SlotHeader,
)
from mainstay.recovery.agent.store import ArenaStore
from mainstay.recovery.memory.errors import ArenaError, LayoutMismatchError
from mainstay.recovery.memory.layout import Layout

WHOLE: Final = 1 << 62
"""As ``ReadSlot.nbytes``: to the end."""


def answer_head(store: ArenaStore, request: ReadHead) -> Head:
    newest = store.newest_epoch(request.rank)
    try:
        arena, record = store.verified(request.rank, request.epoch)
        if request.check:
            arena.check(record)
    except (ArenaError, AgentError):
        return Head(present=False, newest=newest, slot_nbytes=0, digest=0)
    return Head(
        present=True,
        newest=newest,
        slot_nbytes=record.nbytes,
        digest=record.digest,
        layout_digest=arena.layout.digest,
        generation=record.generation,
    )


def serve_slot(store: ArenaStore, caller: AgentConnection, request: ReadSlot) -> None:
    """Header, bytes, tail. The record is looked at again after the last byte: the seqlock reaches across the wire."""
    if request.offset < 0 or request.nbytes < 0:
        raise ValueError(f"a slot has no {request.nbytes} bytes from {request.offset}")
    arena, record = store.verified(request.rank, request.epoch)
    start = min(request.offset, record.nbytes)
    data = arena.slot_bytes(record.slot)[start : min(record.nbytes, start + request.nbytes)]
    bulk = caller.open_bulk()
    header = SlotHeader(
        seal=bulk.seal,
        generation=record.generation,
        layout_digest=arena.layout.digest,
        slot_nbytes=record.nbytes,
        digest=record.digest,
        nbytes=len(data),
    )
    caller.begin_transfer(header)
    bulk.send(data)
    overwritten = f"rank {request.rank} overwrote epoch {request.epoch} meanwhile"
    caller.end_transfer(bulk, "" if arena.unchanged(record) else overwritten)


def serve_parity(rows: ParityStore, caller: AgentConnection, request: ReadParity) -> None:
    """As ``serve_slot``, of a parity row."""
    row = rows.find(ParityRowKey(request.ranks, request.place), request.epoch)
    data = row.data(request.word)
    if not 0 <= request.nbytes <= len(data):
        raise ValueError(f"a row of {len(data)} bytes has no {request.nbytes}")
    bulk = caller.open_bulk()
    header = RowHeader(seal=bulk.seal, digests=row.digests, nbytes=request.nbytes)
    caller.begin_transfer(header)
    bulk.send(data[: request.nbytes])
    caller.end_transfer(bulk, row.problem)


def fetch(node: AgentNode, order: Fetch, generation: int) -> Fetched:
    """Carry out ``Fetch``: see ``AgentClient.fetch``."""
    begun = time.perf_counter()
    store = node.store
    if order.open:
        _prepare(node, order, generation)
    arena = store.arena(order.rank)
    with store.lock(order.rank), node.peer(order.endpoint, generation) as peer:
        epoch = _newest(peer, order.from_rank) if order.epoch == NEWEST else order.epoch
        request = ReadSlot(rank=order.from_rank, epoch=epoch, offset=0, nbytes=WHOLE)
        header = peer.call(request, SlotHeader)
        if header.layout_digest != arena.layout.digest:
            raise LayoutMismatchError(f"rank {order.from_rank} holds other tensors than rank {order.rank}")
        if header.nbytes != header.slot_nbytes or header.nbytes != arena.layout.nbytes:
            raise CorruptError(f"{order.endpoint} announced {header.nbytes} bytes, a slot has {arena.layout.nbytes}")
        slot = arena.choose().slot
        out = arena.begin_write(slot, generation)
        peer.receive_into(out[: header.nbytes])
        peer.finish()
        node.meter.add_transfer("net", header.nbytes, time.perf_counter() - begun)
        record = store.accept(order.rank, slot, epoch, header.generation, header.digest)
    return Fetched(nbytes=record.nbytes, seconds=time.perf_counter() - begun, digest=record.digest)


def _prepare(node: AgentNode, order: Fetch, generation: int) -> None:
    """An arena for a rank that will live here; its pages are touched now and not when everybody waits for it.

    One that the rank left behind in an earlier generation is replaced; not that of a rank that has come meanwhile.
    """
    with node.peer(order.endpoint, generation) as peer:
        layout = peer.call(ReadLayout(rank=order.from_rank), LayoutText).layout
    left = node.store.opened.get(order.rank, 0) < generation
    node.store.open(order.rank, Layout.from_json(layout), replace=left)


def _newest(peer: Peer, rank: int) -> int:
    newest = peer.call(ReadHead(rank=rank, epoch=0), Head).newest
    if newest < 0:
        raise NoSuchSlotError(f"{peer.endpoint} holds no snapshot of rank {rank}")
    return newest


def copy_slot(node: AgentNode, peer: Peer, rank: int, epoch: int, head: Head) -> None:
    """Have a copy of a rank's slot here, with the digest that ``head`` says it has there.

    Raises:
        CorruptError: the peer announced other tensors than ``head`` did, or other bytes came.
    """
    copies = node.store.copies
    found = copies.find(rank, epoch)
    if found is not None and found[1].digest == head.digest:
        return
    kept = copies.find_copy(rank)
    if kept is None or kept.layout.digest != head.layout_digest:
        layout = Layout.from_json(peer.call(ReadLayout(rank=rank), LayoutText).layout)
    else:
        layout = kept.layout
    begun = time.perf_counter()
    header = peer.call(ReadSlot(rank=rank, epoch=epoch, offset=0, nbytes=WHOLE), SlotHeader)
    if header.layout_digest != layout.digest or header.nbytes != layout.nbytes:
        raise CorruptError(f"{peer.endpoint} announced other tensors of rank {rank} than before")
    arena, slot = copies.begin_copy(rank, layout)
    peer.receive_into(arena.slot_bytes(slot)[: header.nbytes])
    peer.finish()
    commit_checked(arena, slot, epoch, header.generation, head.digest)
    node.meter.add_transfer("net", header.nbytes, time.perf_counter() - begun)
