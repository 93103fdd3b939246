"""From the dumps of a job's ranks to the ones that hold it up. Dumps in, a diagnosis out.

First whether members of a group disagree at an open call (that cannot be served: ``collective_mismatch``); then who
has not entered what others wait in (``noncomm_hang``); then which group entered and does not leave (``comm_hang``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from mainstay.detectors.finding import FindingKind
from mainstay.detectors.hang.collective_match import IMPOSSIBLE, CollectiveMismatch, compare, is_shifted
from mainstay.detectors.hang.dump_checks import DumpDoubts, check_dumps, name_ranks
from mainstay.detectors.hang.flight_recorder import Call, Dump, Group
from mainstay.detectors.hang.wait_graph import (
    GroupProgress,
    HangCulprit,
    HangLocalization,
    StallKind,
    find_frozen,
    localize_hang,
)

_REASONS = {
    StallKind.SILENT: "left no usable dump, and others wait for it",
    StallKind.BEHIND: "has not entered what others wait in",
    StallKind.FROZEN: "entered what others completed, and did not complete it",
}
_INNER = ("TENSOR", "EXPERT", "CONTEXT", "PIPELINE", "DATA")
"""Megatron's words in descriptions, innermost first; other groups are ordered by size."""


class BlockingRank(msgspec.Struct, frozen=True, kw_only=True, rename={"reason": "why"}):
    """A rank, and why."""

    rank: int
    group: str
    members: tuple[int, ...]
    reason: str
    behind_entered: float = float("nan")
    behind_completed: float = float("nan")
    waiting: int = 0
    last_call: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HangDiagnosis:
    """What the dumps tell."""

    kind: FindingKind | None = None
    """None: nothing can be said."""
    summary: str = "No open call in these dumps: nothing can be said of who holds up whom."
    culprits: tuple[BlockingRank, ...] = ()
    stuck: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """comm_hang: groups whose members are all inside one call, likeliest first."""
    odd: tuple[tuple[str, CollectiveMismatch], ...] = ()
    """Calls at which members of a group disagree."""
    matches: Mapping[str, int] = field(default_factory=dict)
    """Match state -> how many open calls, aligned by group and number, are in it."""
    ranks: tuple[int, ...] = ()
    doubts: DumpDoubts = field(default_factory=DumpDoubts)
    """What the dumps cannot prove."""
    sure: bool = True
    """Whether each member that the answer rests on was read, and all dumps are of one time and agree."""


def diagnose(dumps: Mapping[int, Dump]) -> HangDiagnosis:
    """Name who holds up the job that these dumps were taken from."""
    table = _Groups(dumps)
    missing = tuple(sorted({rank for group in table.groups for rank in group.ranks} - set(dumps)))
    odd, matches = _align(dumps, table)
    doubts = check_dumps(dumps, table.progress(missing), missing)
    sure = not doubts.texts()
    seen = HangDiagnosis(matches=matches, ranks=tuple(sorted(dumps)), odd=tuple(odd), doubts=doubts, sure=sure)
    grave = [(label, one) for label, one in odd if one.match in IMPOSSIBLE]
    if grave:
        label, one = grave[0]
        return _mismatch(label, one, replace(seen, sure=seen.sure and one.sure))
    progress = table.progress(doubts.unread)
    place = localize_hang(progress)
    if place.culprits:
        return _blame(place, progress, dumps, seen)
    return _nobody(place, progress, seen)


class _Groups:
    """All groups that any dump knows, numbered; which local id of which rank is which."""

    def __init__(self, dumps: Mapping[int, Dump]) -> None:
        self.dumps = dumps
        self.groups: list[Group] = []
        self.number: dict[tuple[object, ...], int] = {}
        self.of: dict[tuple[int, str], int] = {}
        everywhere = _agreed(dumps)
        for rank, dump in sorted(dumps.items()):
            for group in dump.listed:
                self._enter(group)
            for pg in dump.status:
                known = dump.groups.get(pg) or everywhere.get(pg)
                if known is not None:
                    self.of[rank, pg] = self._enter(known)
        self.p2p = {
            self.of[rank, call.pg]
            for rank, dump in dumps.items()
            for call in dump.calls
            if call.p2p and (rank, call.pg) in self.of
        }

    def _enter(self, group: Group) -> int:
        if group.key not in self.number:
            self.number[group.key] = len(self.groups)
            self.groups.append(group)
        return self.number[group.key]

    def progress(self, missing: tuple[int, ...]) -> GroupProgress:
        """Counters of all members; of ranks ``missing`` nothing is known."""
        rows = [
            (rank, number, float(self.dumps[rank].status[pg].enqueued), float(self.dumps[rank].status[pg].completed))
            for (rank, pg), number in sorted(self.of.items())
        ]
        rows = [(r, g, e if e >= 0 else 0.0, c if c >= 0 else 0.0) for r, g, e, c in rows]
        absent, counted = set(missing), {(r, g) for r, g, _, _ in rows if r not in missing}
        rows = [row for row in rows if row[0] not in absent]
        rows += [
            (rank, number, np.nan, np.nan)
            for number, group in enumerate(self.groups)
            for rank in group.ranks
            if (rank, number) not in counted
        ]
        since = self._since()
        table = np.array(rows, np.float64).reshape(-1, 4)
        return GroupProgress(
            rank=table[:, 0].astype(np.int64),
            group=table[:, 1].astype(np.int64),
            enqueued=table[:, 2],
            completed=table[:, 3],
            kinds=tuple(group.label for group in self.groups),
            pairwise=np.array([self._pairwise(n, group) for n, group in enumerate(self.groups)], np.bool_),
            depth=np.array([_depth(group) for group in self.groups], np.int64),
            since=np.array([since.get((int(r), int(g)), np.nan) for r, g in table[:, :2]]),
        )

    def _since(self) -> dict[tuple[int, int], float]:
        """When the oldest open call of a rank in a group was made."""
        since: dict[tuple[int, int], float] = {}
        for rank, dump in self.dumps.items():
            for call in dump.calls:
                if not call.done and (rank, call.pg) in self.of:
                    since.setdefault((rank, self.of[rank, call.pg]), call.time)
        return since

    def _pairwise(self, number: int, group: Group) -> bool:
        """Transfers of more than two ranks: counts of different members cannot be compared."""
        return (number in self.p2p or "PIPELINE" in group.desc.upper()) and len(group.ranks) != 2


def _agreed(dumps: Mapping[int, Dump]) -> dict[str, Group]:
    """Local id -> group where all ranks whose entries tell agree: how gloo's dumps without members are read."""
    told: dict[str, set[Group]] = {}
    for dump in dumps.values():
        for pg, group in dump.groups.items():
            told.setdefault(pg, set()).add(group)
    return {pg: next(iter(groups)) for pg, groups in told.items() if len(groups) == 1}


def _depth(group: Group) -> int:
    """0 = innermost."""
    desc = group.desc.upper()
    place = next((n for n, word in enumerate(_INNER) if desc.startswith(word)), len(_INNER))
    return place * 100_000 + min(len(group.ranks), 99_999)


def _align(dumps: Mapping[int, Dump], table: _Groups) -> tuple[list[tuple[str, CollectiveMismatch]], dict[str, int]]:
    """Lay open collectives of each group side by side by number."""
    calls: dict[tuple[int, int], dict[int, Call]] = {}
    open_calls: set[tuple[int, int]] = set()
    for rank, dump in dumps.items():
        for call in dump.calls:
            if call.p2p or (rank, call.pg) not in table.of:
                continue
            key = (table.of[rank, call.pg], call.seq)
            calls.setdefault(key, {})[rank] = call
            if not call.done:
                open_calls.add(key)
    odd, matches = [], Counter[str]()
    for number, seq in sorted(open_calls):
        match, one = compare(calls[number, seq], seq)
        matches[match.value] += 1
        if one is not None:
            of_group = {at: made for (group, at), made in calls.items() if group == number}
            one = replace(one, sure=one.sure and not any(is_shifted(of_group, rank, seq) for rank in one.others))
            odd.append((table.groups[number].label, one))
    return odd, dict(sorted(matches.items()))


def _mismatch(label: str, one: CollectiveMismatch, seen: HangDiagnosis) -> HangDiagnosis:
    """The first call that cannot be served; later ones follow from it."""
    culprits = tuple(
        BlockingRank(
            rank=rank,
            group=label,
            members=(),
            reason=f"rank {rank} calls {what} where others call {one.said} (call {one.seq} of "
            f"{label}: {one.match.value})",
            last_call=what,
        )
        for rank, what in one.others.items()
    )
    who = _ranks_text([c.rank for c in culprits])
    verb = "disagrees" if len(culprits) == 1 else "disagree"
    doubt = "" if seen.sure else " (likely, not proven)"
    summary = f"{who} {verb} with the others at call {one.seq} of {label}: the program is wrong{doubt}."
    return replace(seen, kind=FindingKind.COLLECTIVE_MISMATCH, summary=summary, culprits=culprits)


def _members(progress: GroupProgress, number: int) -> tuple[int, ...]:
    return tuple(sorted({int(rank) for rank in progress.rank[progress.group == number]}))


def _blame(
    place: HangLocalization, progress: GroupProgress, dumps: Mapping[int, Dump], seen: HangDiagnosis
) -> HangDiagnosis:
    held = (*place.culprits, *find_frozen(progress, [c.rank for c in place.culprits]))
    culprits = tuple(_blamed(c, progress, dumps.get(c.rank)) for c in held)
    sure = seen.sure and all(c.sure for c in held)
    verb = "holds" if len(culprits) == 1 else "hold"
    doubt = "" if sure else " (likely, not proven)"
    summary = f"{_ranks_text(sorted(c.rank for c in culprits))} {verb} up the job{doubt}."
    return replace(seen, kind=FindingKind.NONCOMM_HANG, summary=summary, culprits=culprits, sure=sure)


def _blamed(c: HangCulprit, progress: GroupProgress, dump: Dump | None) -> BlockingRank:
    return BlockingRank(
        rank=c.rank,
        group=progress.kinds[c.group] if c.group is not None else "",
        members=_members(progress, c.group) if c.group is not None else (),
        reason=_REASONS[c.stall],
        behind_entered=c.behind_entered,
        behind_completed=c.behind_completed,
        waiting=c.waiting,
        last_call=_last_call(dump),
    )


def _nobody(place: HangLocalization, progress: GroupProgress, seen: HangDiagnosis) -> HangDiagnosis:
    if place.stall is StallKind.TRANSPORT:
        stuck = tuple((progress.kinds[number], _members(progress, number)) for number in place.groups)
        label, inside = stuck[0]
        summary = f"{_ranks_text(list(inside))} of {label} all entered the same call and none left it."
        return replace(
            seen, kind=FindingKind.COMM_HANG, summary=summary, stuck=stuck, sure=seen.sure and len(stuck) == 1
        )
    if place.stall is StallKind.CIRCLE:
        summary = "Ranks wait for one another in a circle: their order of collectives differs."
        return replace(seen, kind=FindingKind.COLLECTIVE_MISMATCH, summary=summary, sure=False)
    return seen


def _last_call(dump: Dump | None) -> str:
    if dump is None or not dump.calls:
        return ""
    call = dump.calls[-1]
    return f"{call.name} #{call.p2p_seq if call.p2p else call.seq}"


def _ranks_text(ranks: list[int]) -> str:
    return name_ranks(ranks).capitalize()
