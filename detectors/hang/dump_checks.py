"""Whether dumps can be true together and are of one time: a diagnosis is certain only if it rests on such dumps.

No member of a group leaves a collective that another member has not entered. So a rank whose ``enqueued`` is below what
another member completed left a dump that is damaged, or of another time. This holds for a rank that hangs too. Groups
in which nothing happens any more (their counts are equal on all members) show a dump whose counters are all shifted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from mainstay.detectors.base import Bools, Floats
from mainstay.detectors.finding import join_names
from mainstay.detectors.hang.flight_recorder import Dump
from mainstay.detectors.hang.wait_graph import GroupProgress

ONE_TIME_SECONDS: Final = 1800.0
"""The newest calls of dumps of one hang are closer to each other: PyTorch takes dumps when a call was open for its
timeout, ten minutes by default, and others wait within minutes for a rank that stopped."""
LISTED: Final = 16
"""Ranks listed in a sentence; the rest is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpDoubts:
    """What keeps a diagnosis from being certain."""

    missing: tuple[int, ...] = ()
    """Ranks that others know of and that left no dump."""
    contradicting: tuple[int, ...] = ()
    """Ranks whose dump cannot be true beside those of the others, or contradicts itself."""
    uncounted: tuple[int, ...] = ()
    """Ranks whose dump tells nothing of a group in which others wait."""
    apart_seconds: float = 0.0
    """Between the newest calls of the earliest and the latest dump; 0 where the dumps tell no times."""

    @property
    def unread(self) -> tuple[int, ...]:
        """Ranks of which nothing is known."""
        return tuple(sorted({*self.missing, *self.contradicting}))

    def texts(self) -> tuple[str, ...]:
        """What is missing, and what it would change, one sentence each."""
        found = []
        if self.missing:
            found.append(
                f"No dump from {name_ranks(self.missing)}: {_they(self.missing)} may block the job too, or instead."
            )
        if self.contradicting:
            found.append(
                f"The dump from {name_ranks(self.contradicting)} contradicts itself or the others. It is damaged or of "
                "another time, and was not used."
            )
        if self.uncounted:
            found.append(
                f"The dump from {name_ranks(self.uncounted)} has no calls of a group in which others wait: "
                f"{_they(self.uncounted)} may block the job too, or instead."
            )
        if self.apart_seconds > ONE_TIME_SECONDS:
            found.append(f"The dumps are {self.apart_seconds / 60:.0f} min apart: they may be of different hangs.")
        return tuple(found)


def check_dumps(dumps: Mapping[int, Dump], progress: GroupProgress, missing: tuple[int, ...]) -> DumpDoubts:
    """Find what the dumps cannot prove.

    Args:
        dumps: rank → its dump.
        progress: counters of all members; NaN where a dump tells none.
        missing: ranks without a dump.
    """
    newest = [max(call.time for call in dump.calls) for dump in dumps.values() if dump.calls]
    times = [time for time in newest if time > 0]
    wrong = {rank for rank, dump in dumps.items() if _contradicts_itself(dump)}
    wrong |= _contradicting(progress, wrong | set(missing))
    return DumpDoubts(
        missing=missing,
        contradicting=tuple(sorted(wrong)),
        uncounted=tuple(sorted(_uncounted(progress) - wrong - set(missing))),
        apart_seconds=max(times) - min(times) if times else 0.0,
    )


def _contradicts_itself(dump: Dump) -> bool:
    """Whether it is of another rank, or its counters differ from its newest calls.

    A ring holds the newest calls, however short it is.
    """
    if any(group.ranks and dump.rank not in group.ranks for group in dump.listed):
        return True
    newest: dict[str, int] = {}
    for call in dump.calls:
        if not call.p2p:
            newest[call.pg] = max(newest.get(call.pg, -1), call.seq)
            status = dump.status.get(call.pg)
            if status is not None and call.done and 0 <= status.completed < call.seq:
                return True
    entered = {pg: status.enqueued for pg, status in dump.status.items() if status.enqueued >= 0}
    return any(entered.get(pg, seq) != seq for pg, seq in newest.items())


def _contradicting(progress: GroupProgress, known: set[int]) -> set[int]:
    """The fewest ranks without which the counters of all others can be true, greedily."""
    ranks, row = np.unique(progress.rank, return_inverse=True)
    usable = np.isfinite(progress.enqueued) & np.isfinite(progress.completed) & ~np.isin(progress.rank, [*known])
    usable &= ~progress.pairwise[progress.group]
    found = set[int]()
    while usable.any():
        conflicts = np.zeros(len(ranks))
        np.add.at(conflicts, row.reshape(-1), _conflicts(progress, usable))
        worst = conflicts == conflicts.max()
        if conflicts.max() == 0:
            break
        found |= set(ranks[worst].tolist())
        usable &= ~worst[row.reshape(-1)]
    return found


def _conflicts(progress: GroupProgress, usable: Bools) -> Floats:
    """[M] with how many members of its group each entry cannot be true together."""
    found = np.zeros(len(progress.rank))
    order = np.flatnonzero(usable)[np.argsort(progress.group[usable], kind="stable")]
    for part in np.split(order, np.flatnonzero(np.diff(progress.group[order])) + 1):
        entered, completed = progress.enqueued[part], progress.completed[part]
        if len(part) > 1 and completed.max() > entered.min():
            later = len(part) - np.searchsorted(np.sort(completed), entered, side="right")
            found[part] = later + np.searchsorted(np.sort(entered), completed, side="left")
    return found


def _uncounted(progress: GroupProgress) -> set[int]:
    """Ranks whose dump has no counters of a group in which another member is inside a call."""
    known = np.isfinite(progress.enqueued) & np.isfinite(progress.completed)
    inside = np.unique(progress.group[known & (progress.enqueued > progress.completed)])
    return set(progress.rank[~known & np.isin(progress.group, inside)].tolist())


def name_ranks(ranks: Sequence[int]) -> str:
    """``rank 3``, or ``ranks 3, 4 and 12 more``."""
    return f"rank{'s' if len(ranks) != 1 else ''} {join_names(ranks, LISTED)}"


def _they(ranks: tuple[int, ...]) -> str:
    return "they" if len(ranks) != 1 else "it"
