"""Distributed decode of a lost slot: survivors decode one stripe each and send the result.

The newcomer first asks every member of the group what it still holds, digested again: what is lost, stale or damaged is
left out, and while the rest is enough the slot comes back. It then receives S bytes in all, and no member holds more
than one chunk of foreign data at a time. Every slot and row used must have the digests that went into the parity.
"""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import numpy as np

from mainstay.recovery.agent.bulk import BulkSender
from mainstay.recovery.agent.errors import AgentError, CorruptError, NoSuchSlotError, TornError
from mainstay.recovery.agent.framing import CHUNK
from mainstay.recovery.agent.messages import Fetched, Group, Rebuild
from mainstay.recovery.agent.node import AgentConnection, AgentNode
from mainstay.recovery.agent.parity import Geometry
from mainstay.recovery.agent.parity_store import ParityRow, ParityRowKey
from mainstay.recovery.agent.peer import Peer
from mainstay.recovery.agent.peer_messages import (
    Decode,
    DecodeSource,
    Head,
    ReadHead,
    ReadParity,
    ReadRow,
    ReadSlot,
    RowState,
    StripeHeader,
)
from mainstay.recovery.agent.streams import Stripe, ask_parity, ask_slot
from mainstay.recovery.coding import gf
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.digest import Bytes
from mainstay.recovery.memory.errors import LayoutMismatchError

MAX_STREAMS: Final = 8
"""Survivors that a newcomer listens to at once."""


# The survivor


def serve_stripe(node: AgentNode, caller: AgentConnection, request: Decode) -> None:
    """Send the stripe of ``request.rank`` in one codeword, made of this node's row of it and the sources' blocks."""
    row = node.rows.find(ParityRowKey(request.ranks, request.place), request.epoch)
    lost = _checked(row, request)
    geometry, part = row.geometry, row.parts[lost]
    offset, length = geometry.span(request.word, lost, row.size, part.nbytes)
    blocks = [geometry.block(request.word, p) for p in (request.place, *(s.place for s in request.sources))]
    coefficients = geometry.code.decode_coefficients(blocks, [geometry.block(request.word, lost)])[0]
    begun = time.perf_counter()
    with ExitStack() as stack:
        others = [
            _source(stack.enter_context(node.peer(source.endpoint, caller.generation)), row, request, source, length)
            for source in request.sources
        ]
        for stripe, coefficient in zip(others, coefficients[1:], strict=True):
            stripe.coefficient = int(coefficient)
        bulk = caller.open_bulk()
        header = StripeHeader(
            seal=bulk.seal,
            generation=part.generation,
            layout_digest=part.layout_digest,
            slot_nbytes=part.nbytes,
            digest=part.digest,
            offset=offset,
            nbytes=length,
        )
        caller.begin_transfer(header)
        _send_decoded(bulk, int(coefficients[0]), row.data(request.word)[:length], others)
        problem = _ended(row, others)
    node.meter.add_transfer("net", length * (1 + len(others)), time.perf_counter() - begun)
    caller.end_transfer(bulk, problem)


def _checked(row: ParityRow, request: Decode) -> int:
    """The place of the lost rank in a request that makes sense.

    Raises:
        ValueError: names what does not.
    """
    if request.rank not in request.ranks:
        raise ValueError(f"rank {request.rank} is not one of {request.ranks}")
    lost, geometry = request.ranks.index(request.rank), row.geometry
    if not 0 <= request.word < geometry.members or lost not in geometry.data_places(request.word):
        raise ValueError(f"codeword {request.word} does not cover rank {request.rank}")
    places = [request.place, *(source.place for source in request.sources)]
    if len(set(places)) != geometry.data or lost in places or not set(places) <= set(range(geometry.members)):
        raise ValueError(f"{geometry.data} members beside {lost} are needed, not {places}")
    return lost


def _source(peer: Peer, row: ParityRow, request: Decode, source: DecodeSource, length: int) -> Stripe:
    """The block that a survivor has in the codeword: its data, or its parity row."""
    geometry, place = row.geometry, source.place
    if place in geometry.parity_places(request.word):
        wanted = ReadParity(ranks=request.ranks, place=place, epoch=request.epoch, word=request.word, nbytes=length)
        return ask_parity(peer, wanted, row.digests)
    known = row.parts[place]
    offset, whole = geometry.span(request.word, place, row.size, known.nbytes)
    slot = ReadSlot(rank=request.ranks[place], epoch=request.epoch, offset=offset, nbytes=min(whole, length))
    return ask_slot(peer, slot, known.digest)


def _send_decoded(bulk: BulkSender, coefficient: int, own: Bytes, others: list[Stripe]) -> None:
    """Send the sum of ``own`` and every other block, each with its coefficient, holding one chunk at a time."""
    buffer: Bytes = np.empty(min(CHUNK, len(own)), np.uint8)
    for at in range(0, len(own), CHUNK):
        chunk = buffer[: min(CHUNK, len(own) - at)]
        if coefficient == 1:
            np.copyto(chunk, own[at : at + len(chunk)])
        else:
            chunk[:] = 0
            gf.multiply_add(coefficient, own[at : at + len(chunk)], chunk)
        for stripe in others:
            stripe.add_into(chunk)
        bulk.send(chunk)


def _ended(row: ParityRow, others: list[Stripe]) -> str:
    """What spoiled the bytes that were sent, or nothing."""
    try:
        for stripe in others:
            stripe.peer.finish()
    except TornError as error:
        return str(error)
    return row.problem


# The newcomer


def rebuild(node: AgentNode, order: Rebuild, generation: int, *, since: int | None = None) -> Fetched:
    """Carry out ``Rebuild``: see ``AgentClient.rebuild``. ``since``: the slot's generation; None: as it was encoded."""
    begun = time.perf_counter()
    store = node.store
    arena = store.arena(order.rank)
    with store.lock(order.rank), ThreadPoolExecutor(MAX_STREAMS, "mainstay-rebuild") as pool:
        requests = plan_decode(order, query_members(node, pool, order, generation))
        slot = arena.choose().slot
        out = arena.begin_write(slot, generation)

        def receive(request: Decode) -> StripeHeader:
            with node.peer(order.group[request.place].endpoint, generation) as peer:
                return _receive_stripe(peer, request, arena, out)

        headers = list(pool.map(receive, requests))
        _check_cover(headers, order)
        node.meter.add_transfer("net", headers[0].slot_nbytes, time.perf_counter() - begun)
        committed = headers[0].generation if since is None else since
        record = store.accept(order.rank, slot, order.epoch, committed, headers[0].digest)
    return Fetched(nbytes=record.nbytes, seconds=time.perf_counter() - begun, digest=record.digest)


@dataclass(frozen=True, slots=True)
class MemberHolding:
    """What a member says that it has of an epoch."""

    head: Head | None = None
    row: RowState | None = None
    problem: str = ""


def query_members(
    node: AgentNode, pool: ThreadPoolExecutor, order: Rebuild, generation: int
) -> dict[int, MemberHolding]:
    """Place -> what is held there; of all members but the lost one, whose rows never cover its own data."""
    ranks = tuple(member.rank for member in order.group)
    if order.rank not in ranks:
        raise ValueError(f"rank {order.rank} is not in its group {ranks}")

    def query_member(place: int) -> MemberHolding:
        member = order.group[place]
        try:
            with node.peer(member.endpoint, generation) as peer:
                head = peer.call(ReadHead(rank=member.rank, epoch=order.epoch, check=True), Head)
                row = peer.call(ReadRow(ranks=ranks, place=place, epoch=order.epoch, check=True), RowState)
        except (AgentError, ValueError) as error:
            return MemberHolding(problem=str(error))
        return MemberHolding(head, row)

    places = [place for place, rank in enumerate(ranks) if rank != order.rank]
    return dict(zip(places, pool.map(query_member, places), strict=True))


def plan_decode(order: Rebuild, held: dict[int, MemberHolding], *, thorough: bool = False) -> list[Decode]:
    """Who decodes which codeword of the lost slot, from whose blocks: pure.

    Args:
        order: what is wanted.
        held: place -> what that member has; places that are not there have nothing.
        thorough: every row of parity decodes, one after the other, so that each of them is tried.

    Raises:
        NoSuchSlotError: too little is left; names what.
    """
    rows = {p: h.row for p, h in held.items() if h.row is not None and h.row.present and h.row.parity}
    for digests, _ in Counter(row.digests for row in rows.values()).most_common():
        kept = {p for p, row in rows.items() if row.digests == digests}
        geometry = Geometry(len(order.group), rows[min(kept)].parity)
        data = {p for p, h in held.items() if h.head is not None and h.head.present and h.head.digest == digests[p]}
        found = _recipes(order, geometry, data, kept, thorough=thorough)
        if found is not None:
            return found
    raise NoSuchSlotError(_too_little(order, held))


def _recipes(
    order: Rebuild, geometry: Geometry, data: set[int], kept: set[int], *, thorough: bool
) -> list[Decode] | None:
    """One decode a codeword, or a row of it, shared among those who hold parity; None if one of them lacks blocks."""
    group: Group = order.group
    ranks = tuple(member.rank for member in group)
    lost, load, found = ranks.index(order.rank), Counter[int](), list[Decode]()
    for word in geometry.words_of(lost):
        blocks = [p for p in geometry.data_places(word) if p in data]
        parity = sorted((p for p in geometry.parity_places(word) if p in kept), key=lambda p: load[p])
        wanted = geometry.data - len(blocks)
        if not 1 <= wanted <= len(parity):
            return None
        for decoder in parity if thorough else parity[:1]:
            load[decoder] += 1
            more = [p for p in parity if p != decoder][: wanted - 1]
            sources = tuple(DecodeSource(place=p, endpoint=group[p].endpoint) for p in (*blocks, *more))
            found.append(
                Decode(rank=order.rank, epoch=order.epoch, ranks=ranks, place=decoder, word=word, sources=sources)
            )
    return found


def _too_little(order: Rebuild, held: dict[int, MemberHolding]) -> str:
    ranks = [member.rank for member in order.group]
    whole = [ranks[p] for p, h in held.items() if h.head and h.head.present]
    covered = [ranks[p] for p, h in held.items() if h.row and h.row.present]
    why = "; ".join(h.problem for h in held.values() if h.problem)
    return (
        f"rank {order.rank} epoch {order.epoch} cannot be decoded: of its group {ranks} only {whole} hold the data "
        f"and {covered} rows, or not of one history{': ' + why if why else ''}"
    )


def _receive_stripe(peer: Peer, request: Decode, arena: Arena, out: Bytes) -> StripeHeader:
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
