"""Who holds up a job that stands still: counters of collectives in, culprits out. Pure arithmetic, no time.

A rank that is inside collective ``s`` of a group waits for the members that have not entered it: their ``enqueued`` is
below ``s = completed + 1``. That relation, over all groups at once, is a graph; a rank that others wait for and that
waits for no rank is the culprit, all others are victims (the wait-for graph of Mycroft and C4: "never entered op k").
It needs no order of groups where each call blocks its rank. Where calls run ahead of the GPU (NCCL) it may say nothing,
since everybody entered; then the lag rule decides, innermost group first: ``lag = max(max_enqueued - enqueued,
max_completed - completed)``, flagged from half of the group's largest lag on (in-sample on two NVRx dump sets,
reference 1.18).

Everybody of a group inside one call and no lag at all is a communication hang of that group. In groups of
point-to-point calls (pipelines) counts of different members cannot be compared; there a member inside a call waits for
those in none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from mainstay.detectors.base import Bools, Floats

Ints = npt.NDArray[np.int64]

INNERMOST_FIRST = ("tp", "ep", "cp", "pp", "dp", "world")
"""As process groups nest: blame is looked for in this order where the graph does not decide."""
FLAG_SHARE = 0.5
"""Share of the group's largest lag that is lagging too: two faults of one group seldom stop at the same call."""


class StallKind(StrEnum):
    """Why the job stands still."""

    BEHIND = "behind"  # culprits did not enter what others wait in: noncomm_hang
    SILENT = "silent"  # culprits are not heard while others are: noncomm_hang
    FROZEN = "frozen"  # culprits entered what others completed, and did not complete it: noncomm_hang
    TRANSPORT = "transport"  # every rank of a group entered, none left: comm_hang
    CIRCLE = "circle"  # ranks wait for one another: an order of calls that cannot be served
    PHASE = "phase"  # culprits are still in a phase that the others left: noncomm_hang
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupProgress:
    """Counters of every member of every group, flat: M entries, G groups.

    Raises:
        ValueError: lengths disagree or a group number is out of range.
    """

    rank: Ints
    """[M]"""
    group: Ints
    """[M] 0 .. G-1."""
    enqueued: Floats
    """[M] collectives entered; NaN = unknown."""
    completed: Floats
    """[M]"""
    kinds: tuple[str, ...]
    """[G] kind or name of each group."""
    pairwise: Bools
    """[G] point-to-point calls, or membership unknown: counts of members cannot be compared."""
    depth: Ints
    """[G] 0 = innermost."""
    role: Ints | None = None
    """[M] equal for members that do the same transfers in the same order (mates of a stage): their counts of
    point-to-point calls can be compared."""
    since: Floats | None = None
    """[M] when the member's oldest open call began, where known: tells which of several open calls is the first."""

    def __post_init__(self) -> None:
        size = len(self.rank)
        if not (len(self.group) == len(self.enqueued) == len(self.completed) == size):
            raise ValueError("rank, group, enqueued and completed differ in length")
        if not len(self.kinds) == len(self.pairwise) == len(self.depth):
            raise ValueError("kinds, pairwise and depth differ in length")
        if size and not 0 <= int(self.group.min()) <= int(self.group.max()) < len(self.kinds):
            raise ValueError("a group number is out of range")


@dataclass(frozen=True, slots=True, kw_only=True)
class HangCulprit:
    rank: int
    stall: StallKind
    group: int | None
    """The innermost group in which it was seen to hold up others."""
    behind_entered: float
    behind_completed: float
    waiting: int
    """Members of that group that wait for it."""
    sure: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class HangLocalization:
    stall: StallKind
    culprits: tuple[HangCulprit, ...] = ()
    """Gravest first: most ranks waiting, then the largest lag, then by number."""
    groups: tuple[int, ...] = ()
    """Groups whose members are all inside one call that does not end, likeliest first."""


def localize_hang(progress: GroupProgress, silent: Ints | None = None, inside: Ints | None = None) -> HangLocalization:
    """Name who holds up a job that stands still.

    Args:
        progress: counters at the standstill.
        silent: ranks that stopped reporting when the job stopped: their counters are not trusted.
        inside: ranks known to be inside or outside a call for any state of the counters; given as the ranks *inside*.
            Where it is given every call blocks its rank, so a rank that is in none holds up the job alone.
    """
    if not len(progress.rank):
        return HangLocalization(stall=StallKind.UNCLEAR)
    nobody = np.empty(0, np.int64)
    # First without the members of whom nothing is known: what the others tell may suffice.
    table = _Table(progress, nobody if silent is None else silent, known_only=True)
    held = table.culprits(inside)
    if held.any() or table.is_silent.any():
        return table.blame(held)
    whole = _Table(progress, nobody if silent is None else silent)
    whole.culprits(inside)
    return whole.without_sinks(synchronous=inside is not None)


def still_in_phase(ranks: Ints) -> HangLocalization:
    """Blame ranks that are still in a phase that the others left, where no counter shows who waits for whom."""
    nan = float("nan")
    culprits = [
        HangCulprit(
            rank=int(rank), stall=StallKind.PHASE, group=None, behind_entered=nan, behind_completed=nan, waiting=0
        )
        for rank in np.sort(ranks)
    ]
    return HangLocalization(stall=StallKind.PHASE, culprits=tuple(culprits))


def find_frozen(progress: GroupProgress, blamed: Sequence[int]) -> list[HangCulprit]:
    """Ranks that entered calls which the others of a group completed, and did not complete them.

    Where calls run ahead of the GPU, a rank may enter everything and yet its GPU does nothing. A victim's calls end
    when those of the others do. One group alone is no proof: the source of a broadcast may leave it early.

    Args:
        progress: counters at the standstill, as those of dumps: reports of a running job come a moment late.
        blamed: ranks that are known to block the job.
    """
    if not len(progress.rank):
        return []
    table = _Table(progress, np.empty(0, np.int64), known_only=True)
    lag = table.lag_completed()
    lag[np.isin(table.ranks[table.row], list(blamed))] = 0.0
    groups = np.bincount(table.row[lag > 0], minlength=len(table.ranks))
    found = []
    for row in np.flatnonzero(groups):
        mine = np.flatnonzero((table.row == row) & (lag > 0))
        best = int(mine[np.argmin(progress.depth[table.group[mine]])])
        found.append(
            HangCulprit(
                rank=int(table.ranks[row]), stall=StallKind.FROZEN, group=int(table.group[best]),
                behind_entered=float(table.max_enqueued[best] - table.enqueued[best]),
                behind_completed=float(lag[best]), waiting=0, sure=bool(groups[row] > 1),
            )
        )  # fmt: skip
    return found


_CIRCLE = HangLocalization(stall=StallKind.CIRCLE)


class _Table:
    """The relation of waiting, as one array an entry, a group or a rank."""

    def __init__(self, p: GroupProgress, silent: Ints, *, known_only: bool = False) -> None:
        order = np.argsort(p.group, kind="stable")
        if known_only:
            known = np.isfinite(p.enqueued) & np.isfinite(p.completed) | np.isin(p.rank, silent)
            order = order[known[order]] if known.any() else order
        self.p = p
        self.group = p.group[order]
        self.ranks, row = np.unique(p.rank, return_inverse=True)
        self.row = row.reshape(-1)[order].astype(np.intp)
        self.is_silent = np.isin(self.ranks, silent)
        enqueued, completed = p.enqueued[order], p.completed[order]
        self.unknown = ~(np.isfinite(enqueued) & np.isfinite(completed)) | self.is_silent[self.row]
        self.heard = self._any(~self.unknown)
        self.starts = np.flatnonzero(np.diff(self.group, prepend=-1))
        self.present = self.group[self.starts]
        self.span = np.diff(self.starts, append=len(self.group))
        self.since = None if p.since is None else p.since[order]
        self.role = None if p.role is None else p.role[order]
        # Who is not known has entered nothing: whoever is inside a call may be waiting for it.
        self.enqueued = np.where(self.unknown, -np.inf, enqueued)
        self.completed = np.where(self.unknown, -np.inf, completed)
        self._relate()

    def _spread(self, of_group: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.repeat(of_group, self.span)

    def _any(self, entries: Bools) -> Bools:
        """[R] whether any entry of a rank holds."""
        found = np.zeros(len(self.ranks), np.bool_)
        found[self.row[entries]] = True
        return found

    def _relate(self) -> None:
        starts = self.starts
        pair = self._spread(self.p.pairwise[self.present])
        several = self._spread(self.span) > 1
        call = self.completed + 1.0
        self.max_enqueued = self._spread(np.maximum.reduceat(self.enqueued, starts))
        self.max_completed = self._spread(np.maximum.reduceat(self.completed, starts))
        least = self._spread(np.minimum.reduceat(self.enqueued, starts))
        inside = (self.enqueued >= call) & ~self.unknown & several
        # A call that any member completed was entered by all: who still shows it open only reports late.
        self.open = inside & (pair | (self.max_completed < call))
        wanted = self._spread(np.maximum.reduceat(np.where(self.open, call, -np.inf), starts))
        pending = self._spread(np.logical_or.reduceat(self.open, starts))
        idle = self._spread(np.logical_or.reduceat(~self.open & several, starts))
        self.waiting = self.open & np.where(pair, idle, least < call)
        self.awaited = np.where(pair, pending & ~self.open & several, self.enqueued < wanted)
        stuck = self.open & ~self.waiting
        self.whole = np.logical_and.reduceat(stuck, starts)  # [G] all ranks inside, none missing
        self.pending_rank, self.waits = self._any(self.open), self._any(self.waiting)
        self.awaited_rank, self.stuck_rank = self._any(self.awaited), self._any(stuck)
        self.stuck_collective = self._any(stuck & ~pair)

    def culprits(self, inside: Ints | None) -> Bools:
        """[R] ranks that others wait for and that wait for no rank."""
        free = self.awaited_rank & ~self.waits & self.heard & ~self.is_silent
        held = free & ~self.stuck_rank
        if inside is not None:
            outside = ~np.isin(self.ranks, inside)
            idle = ~self.pending_rank & self.heard & outside
            waited = self.pending_rank.any() or not outside.all()
            return (held & outside) | (idle if waited else np.zeros_like(idle))
        if held.any():
            return held
        # A transfer may stay open beside what the rank does next. If moreover its peers completed what it did not, its
        # own counters stopped: it is no victim, whose calls end when those of its peers end.
        return free & ~self.stuck_collective & self._any(self.lag_completed() > 0)

    def _behind(self, most: Floats, own: Floats) -> Floats:
        """[M] by how much a member's count is behind; 0 where nothing is known or counts cannot be compared."""
        comparable = ~self.unknown & ~self._spread(self.p.pairwise[self.present])
        with np.errstate(invalid="ignore"):
            return np.where(comparable, most - own, 0.0)

    def lag_completed(self) -> Floats:
        """[M] calls that others of the group completed and this member did not."""
        return self._behind(self.max_completed, self.completed)

    def lag(self) -> Floats:
        """[M] the larger of both lags."""
        return np.maximum(self._behind(self.max_enqueued, self.enqueued), self.lag_completed())

    def blame(self, held: Bools) -> HangLocalization:
        lost = self.is_silent
        culprits = [self._culprit(int(row), StallKind.SILENT) for row in np.flatnonzero(lost)]
        culprits += [self._culprit(int(row), StallKind.BEHIND) for row in np.flatnonzero(held & ~lost)]
        stall = StallKind.BEHIND if held.any() else StallKind.SILENT
        return HangLocalization(stall=stall, culprits=_ordered(culprits))

    def _culprit(self, row: int, stall: StallKind, *, sure: bool = True) -> HangCulprit:
        mine = np.flatnonzero(self.row == row)
        # The innermost group in which a rank waits for it; where none does, its innermost.
        depth = self.p.depth[self.group[mine]]
        best = int(mine[np.lexsort((depth, ~self.awaited[mine]))[0]])
        of_group = self.group == self.group[best]
        waiting = of_group & self.open & (self.completed + 1.0 > self.enqueued[best])
        if self.p.pairwise[self.group[best]]:
            waiting = of_group & self.open
        comparable = not self.p.pairwise[self.group[best]] and not self.unknown[best]
        entered = self.max_enqueued[best] - self.enqueued[best] if comparable else np.nan
        done = self.max_completed[best] - self.completed[best] if comparable else np.nan
        return HangCulprit(
            rank=int(self.ranks[row]),
            stall=stall,
            group=int(self.group[best]),
            behind_entered=float(entered),
            behind_completed=float(done),
            waiting=int(np.count_nonzero(waiting)),
            sure=sure,
        )

    def without_sinks(self, *, synchronous: bool) -> HangLocalization:
        """No rank is both waited for and free: all entered, or they wait in a circle, or a report is missing."""
        unheard = ~self.heard & self.awaited_rank
        if unheard.any():
            rows = np.flatnonzero(unheard)
            culprits = [self._culprit(int(row), StallKind.SILENT, sure=False) for row in rows]
            return HangLocalization(stall=StallKind.SILENT, culprits=_ordered(culprits))
        groups = self._stuck_groups()
        if groups:
            flagged = [] if synchronous else self._flagged(groups[:1])
            if flagged:
                return HangLocalization(stall=StallKind.BEHIND, culprits=_ordered(flagged), groups=tuple(groups))
            return HangLocalization(stall=StallKind.TRANSPORT, groups=tuple(groups))
        if not self.waits.any():
            return HangLocalization(stall=StallKind.UNCLEAR)
        if synchronous:
            behind = self._behind_its_role()
            return HangLocalization(stall=StallKind.TRANSPORT, groups=(behind,)) if behind is not None else _CIRCLE
        by_depth = [int(g) for g in self.present[np.argsort(self.p.depth[self.present], kind="stable")]]
        return HangLocalization(stall=StallKind.BEHIND, culprits=_ordered(self._flagged(by_depth)))

    def _stuck_groups(self) -> list[int]:
        """Groups with all ranks in one call: first those whose members wait for no other rank, oldest, innermost."""
        if not self.whole.any():
            return []
        elsewhere = np.logical_or.reduceat(self.waits[self.row], self.starts)
        since = np.zeros(len(self.starts))
        if self.since is not None:
            known = np.where(self.open & np.isfinite(self.since), self.since, np.inf)
            since = np.minimum.reduceat(known, self.starts)
        places = np.flatnonzero(self.whole)
        free = places[~elsewhere[places]]
        places = free if len(free) else places
        depth = self.p.depth[self.present[places]]
        return [int(g) for g in self.present[places[np.lexsort((self.present[places], depth, since[places]))]]]

    def _behind_its_role(self) -> int | None:
        """The group of transfers in which a member waits for what its role's mates long received."""
        pair = self._spread(self.p.pairwise[self.present]) & ~self.unknown
        if self.role is None or not pair.any():
            return None
        roles, number = np.unique(self.role, return_inverse=True)
        most = np.full(len(roles), -np.inf)
        np.maximum.at(most, number.reshape(-1)[pair], self.completed[pair])
        lag = np.where(pair & self.open, most[number.reshape(-1)] - self.completed, 0.0)
        return int(self.group[int(np.argmax(lag))]) if lag.max() > 0 else None

    def _flagged(self, groups: list[int]) -> list[HangCulprit]:
        """The lag rule over groups in the order given; the first depth that has a lag decides."""
        lag = self.lag()
        chosen = np.isin(self.group, groups)
        if not (lag[chosen] > 0).any():
            return []
        depth = self.p.depth[self.group]
        level = int(depth[chosen & (lag > 0)].min())
        largest = self._spread(np.maximum.reduceat(lag, self.starts))
        hit = chosen & (depth == level) & (lag > 0) & (lag >= FLAG_SHARE * largest)
        return [self._culprit(int(row), StallKind.BEHIND, sure=False) for row in np.unique(self.row[hit])]


def _ordered(culprits: list[HangCulprit]) -> tuple[HangCulprit, ...]:
    def key(c: HangCulprit) -> tuple[int, float, int]:
        behind = [v for v in (c.behind_entered, c.behind_completed) if v == v]  # noqa: PLR0124 - not NaN
        return (-c.waiting, -max(behind, default=0.0), c.rank)

    return tuple(sorted(culprits, key=key))
