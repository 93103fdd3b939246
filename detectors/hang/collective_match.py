"""Calls of one group with one number, laid side by side: do all members mean the same collective?

Match states as PyTorch's flight-recorder analyzer names them (reference 1.20). What a group's members did at the same
sequence number is compared with what most of them did; who differs is named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from mainstay.detectors.hang.flight_recorder import Call


class MatchState(StrEnum):
    FULLY_MATCHED = "FULLY_MATCHED"
    COLLECTIVE_TYPE_MISMATCH = "COLLECTIVE_TYPE_MISMATCH"
    SIZE_OR_SYNTAX_MISMATCH = "SIZE_OR_SYNTAX_MISMATCH"
    COLLECTIVE_DTYPE_MISMATCH = "COLLECTIVE_DTYPE_MISMATCH"
    COLLECTIVE_STATE_MISMATCH = "COLLECTIVE_STATE_MISMATCH"
    UNDECIDED = "UNDECIDED"
    """Members may rightly differ: all_to_all and other calls with uneven parts."""


IMPOSSIBLE = frozenset(
    {MatchState.COLLECTIVE_TYPE_MISMATCH, MatchState.SIZE_OR_SYNTAX_MISMATCH, MatchState.COLLECTIVE_DTYPE_MISMATCH}
)
"""Such a call can never complete: the program is wrong in any case."""

SHIFTS = 32
"""Numbers by which a rank's counters may be wrong: more make a gap that the counters themselves show."""
_UNEVEN = ("all_to_all", "alltoall", "coalesced", "gather", "scatter")
"""Sizes of these may differ from rank to rank: expert routing, uneven shards, roots."""
_EVEN = (
    "_all_gather_base",
    "_allgather_base",
    "_reduce_scatter_base",
    "all_gather_into_tensor",
    "reduce_scatter_tensor",
)
"""But of these they may not, though their names hold one of the above."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveMismatch:
    """One call at which members disagree."""

    match: MatchState
    seq: int
    said: str
    """What most members did."""
    others: Mapping[int, str]
    """Ranks that did something else -> what."""
    sure: bool = True
    """Whether more than half of the members did the usual."""


def compare(calls: Mapping[int, Call], seq: int) -> tuple[MatchState, CollectiveMismatch | None]:
    """Match state of the calls (by rank) that a group's members made at ``seq``, gravest first."""
    for match, facet in (
        (MatchState.COLLECTIVE_TYPE_MISMATCH, _kind),
        (MatchState.COLLECTIVE_DTYPE_MISMATCH, _types),
        (MatchState.SIZE_OR_SYNTAX_MISMATCH, _sizes),
    ):
        if match is MatchState.SIZE_OR_SYNTAX_MISMATCH and _uneven(next(iter(calls.values()))):
            return MatchState.UNDECIDED, None
        seen = {rank: facet(call) for rank, call in sorted(calls.items())}
        seen = {rank: value for rank, value in seen.items() if value}  # a field that a dump lacks tells nothing
        if len(set(seen.values())) > 1:
            usual, count = Counter(seen.values()).most_common(1)[0]
            others = {rank: value for rank, value in seen.items() if value != usual}
            sure = count > len(others)
            return match, CollectiveMismatch(match=match, seq=seq, said=usual, others=others, sure=sure)
    if len({call.done for call in calls.values()}) > 1 or len({call.state for call in calls.values()}) > 1:
        return MatchState.COLLECTIVE_STATE_MISMATCH, None
    return MatchState.FULLY_MATCHED, None


def is_shifted(calls: Mapping[int, Mapping[int, Call]], rank: int, odd: int) -> bool:
    """Whether the calls of ``rank`` agree with those of the others under other numbers.

    Then its numbers may be wrong, and not what it called.

    Args:
        calls: number → rank → call, of one group.
        rank: differs from the others.
        odd: number of the call at which it does.
    """
    mine = {seq: made[rank] for seq, made in calls.items() if rank in made}
    others = {seq: [call for at, call in made.items() if at != rank] for seq, made in calls.items()}
    for by in range(-SHIFTS, SHIFTS + 1):
        both = [(call, others[seq + by][0]) for seq, call in mine.items() if others.get(seq + by)]
        if by and others.get(odd + by) and all((_kind(a), _types(a)) == (_kind(b), _types(b)) for a, b in both):
            return True
    return False


def _kind(call: Call) -> str:
    return call.name


def _types(call: Call) -> str:
    return " -> ".join(text for text in call.dtypes if text)


def _sizes(call: Call) -> str:
    return " -> ".join(text for text in call.sizes if text)


def _uneven(call: Call) -> bool:
    return not any(name in call.name for name in _EVEN) and any(name in call.name for name in _UNEVEN)
