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
            usual = Counter(seen.values()).most_common(1)[0][0]
            others = {rank: value for rank, value in seen.items() if value != usual}
            return match, CollectiveMismatch(match=match, seq=seq, said=usual, others=others)
    if len({call.done for call in calls.values()}) > 1 or len({call.state for call in calls.values()}) > 1:
        return MatchState.COLLECTIVE_STATE_MISMATCH, None
    return MatchState.FULLY_MATCHED, None


def _kind(call: Call) -> str:
    return call.name


def _types(call: Call) -> str:
    return " -> ".join(text for text in call.dtypes if text)


def _sizes(call: Call) -> str:
    return " -> ".join(text for text in call.sizes if text)


def _uneven(call: Call) -> bool:
    return not any(name in call.name for name in _EVEN) and any(name in call.name for name in _UNEVEN)
