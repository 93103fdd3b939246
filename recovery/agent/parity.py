"""RAIM5: rotated XOR parity over the g members of a group, as pure index arithmetic and one XOR kernel.

Each slot is cut into g-1 stripes. Member r's parity row is the XOR of one stripe of every *other* member: no row covers
data of the node that holds it, and each stripe is covered by exactly one row, so any one member can be lost. With g = 2
a row is a copy of the other's slot. A slot shorter than the longest of the group counts as padded with zeros.

After REFT (Wang et al. 2023, arXiv 2310.12670).
"""

from __future__ import annotations

import numpy as np

from recovery.agent.messages import GroupMember
from recovery.memory.digest import Bytes
from recovery.memory.layout import align


def position_group(group: tuple[GroupMember, ...], rank: int) -> tuple[GroupMember, ...]:
    """The members that protect ``rank``: those with a rank at the same place, each cut down to that rank.

    Raises:
        ValueError: ``rank`` stands in no member, or is alone at its place.
    """
    places = [member.ranks.index(rank) for member in group if rank in member.ranks]
    if len(places) != 1:
        raise ValueError(f"rank {rank} stands {len(places)} times in the group, not once")
    place = places[0]
    members = tuple(
        GroupMember(node=m.node, endpoint=m.endpoint, ranks=(m.ranks[place],)) for m in group if len(m.ranks) > place
    )
    if len(members) < 2:
        raise ValueError(f"rank {rank} is alone at place {place} of its group: nothing protects it")
    return members


def stripe_bytes(longest: int, members: int) -> int:
    """Bytes of a stripe and of a row, for slots of at most ``longest`` bytes; a multiple of 64."""
    return align(-(-longest // (members - 1)))


def stripe_of(member: int, row: int) -> int:
    """Which stripe of ``member`` the row of member ``row`` covers; the two differ."""
    assert member != row, "a row never covers its own member"
    return row if row < member else row - 1


def span(stripe: int, size: int, nbytes: int) -> tuple[int, int]:
    """(offset, length) of a stripe of ``size`` bytes in a slot of ``nbytes``: cut where the slot ends."""
    offset = min(stripe * size, nbytes)
    return offset, min(size, nbytes - offset)


def xor_into(target: Bytes, other: Bytes) -> None:
    """``target[:len(other)] ^= other``, both uint8, in words of 8 bytes as far as they go."""
    whole = len(other) & ~7
    a, b = target[:whole].view(np.uint64), other[:whole].view(np.uint64)
    np.bitwise_xor(a, b, out=a)
    rest = target[whole : len(other)]
    np.bitwise_xor(rest, other[whole:], out=rest)
