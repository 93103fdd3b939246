"""A slot as the group remembers it: its bytes decoded from the others, in order, held one chunk at a time.

For comparing with what lies here: to repair a damaged slot in place, and to try whether the parity is worth anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from mainstay.recovery.agent.errors import AgentError, CorruptError, NoSuchSlotError
from mainstay.recovery.agent.framing import CHUNK
from mainstay.recovery.agent.messages import Group, Rebuild
from mainstay.recovery.agent.node import AgentNode
from mainstay.recovery.agent.peer import Peer
from mainstay.recovery.agent.peer_messages import ReadSlot, SlotHeader, StripeHeader
from mainstay.recovery.agent.rebuild import MAX_STREAMS, plan_decode, query_members
from mainstay.recovery.agent.transfer import WHOLE
from mainstay.recovery.memory.digest import Bytes
from mainstay.recovery.memory.records import SlotRecord
from mainstay.recovery.placement import holders
from mainstay.recovery.protection_scheme import SchemeKind, parse


@dataclass(frozen=True, slots=True)
class SlotChunk:
    """``data`` is what the slot should hold from ``offset``; valid until the next piece is asked for."""

    place: int
    """The member that decoded or keeps it."""
    offset: int
    data: Bytes


def reconstruct_slot(node: AgentNode, rank: int, record: SlotRecord, *, thorough: bool = False) -> Iterator[SlotChunk]:
    """The bytes of a protected slot of a rank here, from its beginning to its end.

    Args:
        node: whose configuration says which group protects the rank.
        rank: a local one.
        record: the slot's, VERIFIED.
        thorough: from every row of parity and every copy, so that pieces come several times.

    Raises:
        NoSuchSlotError: nothing protects it, or too little is left.
        CorruptError: the others speak of another slot than ``record``.
        AgentError: a member went away.
    """
    config = node.store.config
    group = config.group_of(rank)
    if not group:
        raise NoSuchSlotError(f"rank {rank} belongs to no group: nothing protects it")
    scheme = parse(config.scheme)
    if scheme.kind is SchemeKind.COPIES:
        place = [member.rank for member in group].index(rank)
        all_holders = holders(scheme, len(group), place)
        for places in [(holder,) for holder in all_holders] if thorough else [all_holders]:
            yield from _copied(node, group, places, rank, record)
    else:
        yield from _decoded(node, group, rank, record, thorough=thorough)


def _decoded(node: AgentNode, group: Group, rank: int, record: SlotRecord, *, thorough: bool) -> Iterator[SlotChunk]:
    order, generation = Rebuild(rank=rank, epoch=record.epoch, group=group), node.store.config.generation
    with ThreadPoolExecutor(MAX_STREAMS, "mainstay-recall") as pool:
        requests = plan_decode(order, query_members(node, pool, order, generation), thorough=thorough)
    begun, done = 0, 0
    for last, request in zip([None, *requests], requests, strict=False):
        begun = begun if last is not None and last.word == request.word else done
        with node.peer(group[request.place].endpoint, generation) as peer:
            header = peer.call(request, StripeHeader)
            if (header.digest, header.slot_nbytes, header.offset) != (record.digest, record.nbytes, begun):
                raise CorruptError(f"{peer.endpoint} decodes another slot than that of rank {rank} here")
            yield from _pieces(peer, request.place, begun, header.nbytes)
            done = begun + header.nbytes
    if done != record.nbytes:
        raise CorruptError(f"only {done} of {record.nbytes} bytes of rank {rank} came")


def _copied(
    node: AgentNode, group: Group, places: tuple[int, ...], rank: int, record: SlotRecord
) -> Iterator[SlotChunk]:
    """From the first member that has the copy; once bytes came from one, no other is asked."""
    problems = []
    for place in places:
        begun = False
        try:
            with node.peer(group[place].endpoint, node.store.config.generation) as peer:
                wanted = ReadSlot(rank=rank, epoch=record.epoch, offset=0, nbytes=WHOLE)
                header = peer.call(wanted, SlotHeader)
                if (header.digest, header.nbytes) != (record.digest, record.nbytes):
                    raise CorruptError(f"{peer.endpoint} keeps another slot than that of rank {rank} here")
                begun = True
                yield from _pieces(peer, place, 0, header.nbytes)
                return
        except AgentError as error:
            if begun:
                raise
            problems.append(str(error))
    raise NoSuchSlotError(f"no copy of rank {rank} epoch {record.epoch} can be had: {'; '.join(problems)}")


def _pieces(peer: Peer, place: int, start: int, nbytes: int) -> Iterator[SlotChunk]:
    buffer: Bytes = np.empty(min(CHUNK, nbytes), np.uint8)
    for at in range(0, nbytes, CHUNK):
        part = buffer[: min(CHUNK, nbytes - at)]
        peer.receive_into(part)
        yield SlotChunk(place, start + at, part)
    peer.finish()
