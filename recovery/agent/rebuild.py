"""Distributed decode of a lost slot: every survivor decodes the one stripe that its row covers and sends the result.

So the newcomer receives S bytes in all, and each survivor reads (g-2)/(g-1)·S from the others; nobody holds more than
one chunk of foreign data at a time. Every slot used must have the digest that went into the row.
"""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Final

import numpy as np

from recovery.agent.errors import CorruptError, NoSuchSlotError, TornError
from recovery.agent.framing import CHUNK, send, send_bytes
from recovery.agent.messages import Decode, Fetched, ReadSlot, Rebuild, StripeHeader, Tail
from recovery.agent.node import Caller, Node
from recovery.agent.parity import position_group, span, stripe_of
from recovery.agent.peer import Peer
from recovery.agent.rows import Row
from recovery.agent.store import Store
from recovery.agent.streams import Stripe, open_stripe
from recovery.memory.arena import Arena
from recovery.memory.digest import Bytes
from recovery.memory.errors import LayoutMismatchError

MAX_STREAMS: Final = 8
"""Survivors that a newcomer listens to at once."""


# The survivor


@dataclass(frozen=True, slots=True)
class _Share:
    """What this node decodes: the bytes of the lost member that the row of member ``me`` covers."""

    lost: int
    me: int
    size: int
    """Bytes of a full stripe."""
    offset: int
    length: int


def serve_stripe(node: Node, caller: Caller, request: Decode) -> None:
    """Send the stripe of ``request.rank`` that this node's row covers."""
    row = node.rows.find(request.ranks, request.epoch)
    share = _share(node.store, row, request)
    begun = time.perf_counter()
    with ExitStack() as stack:
        others = [
            stack.enter_context(_stripe(node.peer(endpoint, caller.generation), request, row, share, place))
            for place, endpoint in enumerate(request.endpoints)
            if place not in (share.lost, share.me)
        ]
        caller.streaming = True
        send(caller.sock, _stripe_header(row, share))
        _send_decoded(caller.sock, row.data[: share.length], others)
        problem = _ended(row, others)
    node.meter.add("net", share.length * (1 + len(others)), time.perf_counter() - begun)
    send(caller.sock, Tail(ok=problem is None, reason=problem or ""))
    caller.streaming = False


def _share(store: Store, row: Row, request: Decode) -> _Share:
    if len(request.endpoints) != len(request.ranks) or request.rank not in request.ranks:
        raise ValueError(f"rank {request.rank} of {request.ranks} with {len(request.endpoints)} endpoints")
    lost, me, size = request.ranks.index(request.rank), _place_here(store, request), len(row.data)
    offset, length = span(stripe_of(lost, me), size, row.parts[lost].nbytes)
    return _Share(lost, me, size, offset, length)


def _place_here(store: Store, request: Decode) -> int:
    """Which member this node is.

    Raises:
        NoSuchSlotError: none but the lost one.
    """
    for place, rank in enumerate(request.ranks):
        if rank != request.rank and store.has(rank):
            return place
    raise NoSuchSlotError(f"this node has no rank of {request.ranks} beside the lost {request.rank}")


def _stripe_header(row: Row, share: _Share) -> StripeHeader:
    part = row.parts[share.lost]
    return StripeHeader(
        generation=part.generation,
        layout_digest=part.layout_digest,
        slot_nbytes=part.nbytes,
        digest=part.digest,
        offset=share.offset,
        nbytes=share.length,
    )


def _stripe(peer: Peer, request: Decode, row: Row, share: _Share, place: int) -> AbstractContextManager[Stripe]:
    """The stripe of the survivor ``place`` that our row covers."""
    known = row.parts[place]
    offset, whole = span(stripe_of(place, share.me), share.size, known.nbytes)
    nbytes = min(whole, share.length)
    wanted = ReadSlot(rank=request.ranks[place], epoch=request.epoch, offset=offset, nbytes=nbytes)
    return open_stripe(peer, wanted, known.digest)


def _send_decoded(sock: socket.socket, own: Bytes, others: list[Stripe]) -> None:
    """Send ``own`` XOR every other survivor's stripe, holding one chunk at a time."""
    buffer: Bytes = np.empty(min(CHUNK, len(own)), np.uint8)
    for at in range(0, len(own), CHUNK):
        chunk = buffer[: min(CHUNK, len(own) - at)]
        np.copyto(chunk, own[at : at + len(chunk)])
        for stripe in others:
            stripe.xor_into(chunk)
        send_bytes(sock, chunk)


def _ended(row: Row, others: list[Stripe]) -> str | None:
    """What spoiled the bytes that were sent, or None."""
    try:
        for stripe in others:
            stripe.finish()
    except TornError as error:
        return str(error)
    return None if row.arena.unchanged(row.record) else "the parity row was overwritten meanwhile"


# The newcomer


def rebuild(node: Node, order: Rebuild, generation: int) -> Fetched:
    """Carry out ``Rebuild``: see ``AgentClient.rebuild``."""
    begun = time.perf_counter()
    store = node.store
    arena = store.arena(order.rank)
    members = position_group(order.group, order.rank)
    ranks = tuple(member.ranks[0] for member in members)
    request = Decode(rank=order.rank, epoch=order.epoch, ranks=ranks, endpoints=tuple(m.endpoint for m in members))
    survivors = [m.endpoint for m in members if m.ranks[0] != order.rank]
    with store.lock(order.rank):
        slot = arena.choose().slot
        out = arena.begin(slot, generation)
        with ThreadPoolExecutor(min(MAX_STREAMS, len(survivors)), "mainstay-rebuild") as pool:
            peers = [node.peer(endpoint, generation) for endpoint in survivors]
            headers = list(pool.map(lambda peer: _receive_stripe(peer, request, arena, out), peers))
        _check_cover(headers, order)
        node.meter.add("net", headers[0].slot_nbytes, time.perf_counter() - begun)
        record = store.accept(order.rank, slot, order.epoch, headers[0].generation, headers[0].digest)
    return Fetched(nbytes=record.nbytes, seconds=time.perf_counter() - begun, digest=record.digest)


def _receive_stripe(peer: Peer, request: Decode, arena: Arena, out: Bytes) -> StripeHeader:
    with peer:
        header = peer.call(request, StripeHeader)
        if header.layout_digest != arena.layout.digest:
            raise LayoutMismatchError(f"rank {request.rank} had other tensors than its arena here")
        end = header.offset + header.nbytes
        if header.offset < 0 or header.nbytes < 0 or end > arena.layout.nbytes:
            raise CorruptError(f"{peer.endpoint} announced bytes up to {end}, a slot has {arena.layout.nbytes}")
        peer.receive_into(out[header.offset : end])
        peer.finish()
    return header


def _check_cover(headers: list[StripeHeader], order: Rebuild) -> None:
    """The stripes must be those of one slot, side by side, from its start to its end."""
    if len({(h.slot_nbytes, h.digest) for h in headers}) != 1:
        raise CorruptError(f"the survivors disagree about rank {order.rank} epoch {order.epoch}")
    end = 0
    for header in sorted(headers, key=lambda h: (h.offset, h.nbytes)):
        if header.offset != end:
            raise CorruptError(f"bytes {end} to {header.offset} of rank {order.rank} did not come")
        end += header.nbytes
    if end != headers[0].slot_nbytes:
        raise CorruptError(f"only {end} of {headers[0].slot_nbytes} bytes of rank {order.rank} came")
