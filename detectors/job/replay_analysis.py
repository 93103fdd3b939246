"""What came out of replays: which ranks compute other bits than their replicas from the same state and data.

Every rank of a place (pipeline stage, tensor shard) is given the same state, the same data and the same random numbers,
so that healthy ones agree bit for bit, and one that differs even once has computed wrongly. Ranks replay in *groups*
that talk only among themselves: a rank alone where a job is data parallel only, else a whole replica. A wrong number
spreads within its group, so the job is cut again, across the replicas
(``mainstay.detectors.job.replay_bisection.mesh_plan``), and who was in an odd group of each cut is the culprit.

Only a strict majority says what is right. Where there is none (two replicas that each repeat their own bits, sums in
an order that changes from run to run) no rank is blamed, and the outcome records it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class ReplayOutcome(StrEnum):
    """How a round of replays ended. The enumeration may grow, never change meaning."""

    FOUND = "found"  # culprits are named
    CLEAN = "clean"  # all replays agreed: no rank reproduces the fault
    NO_MAJORITY = "no_majority"  # replays differ, and nothing says which are right
    FAILED = "failed"  # they could not be carried out


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTrace:
    """What one rank computed in one replay of its group."""

    rank: int
    place: int
    """Index within a replica: ranks of one place do the same work."""
    cut: int
    """Of ``mainstay.detectors.job.replay_bisection.MeshPlan.cuts``."""
    group: str
    """Name of its group, of one cut only."""
    role: int
    """The replica whose data were used; only traces of one role can be compared."""
    repeat: int
    digests: tuple[int, ...]
    """One number a step or more, in order; of gradients and parameters. Equal bits, equal numbers."""
    first_step: int = 0
    per_step: int = 1
    """Numbers a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayMismatch:
    """What speaks against one rank."""

    rank: int
    replays: int
    """Replays that it took part in."""
    shown: int
    """How many of them came out odd in it."""
    steps: tuple[int, ...]
    """The first odd step of each, sorted, each once."""
    groups: tuple[str, ...]
    """The odd groups that it was in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """What the replays say."""

    outcome: ReplayOutcome
    culprits: tuple[ReplayMismatch, ...] = ()
    replays: int = 0
    """Of groups, in all."""
    sentence: str = ""
    """For a tired human."""
    undecided: tuple[int, ...] = field(default=())
    """Ranks between which nothing decides."""


def analyze_replays(traces: Iterable[ReplayTrace]) -> ReplayResult:
    """Compare traces of all ranks, in any order, and name the culprits.

    Raises:
        ValueError: two traces that should be compared are of different length.
    """
    told = list(traces)
    replays = len({(t.group, t.repeat, t.role) for t in told})
    if not told:
        return ReplayResult(outcome=ReplayOutcome.FAILED, sentence="No rank has replayed anything.")
    right, torn = _majorities(told)
    if torn:
        return _without_majority(torn, replays)
    first_odd = {id(t): at for t in told if (at := _first_odd(t, right)) is not None}
    size = len({t.rank for t in told})
    if not first_odd:
        sentence = f"All {replays} replays of {size} ranks agree bit for bit: no rank reproduces the fault."
        return ReplayResult(outcome=ReplayOutcome.CLEAN, replays=replays, sentence=sentence)
    odd = [t for t in told if id(t) in first_odd]
    culprits = tuple(_against(rank, told, first_odd) for rank in _crossing(odd))
    if 2 * len(culprits) > size:
        sentence = f"{len(culprits)} ranks differ from the rest, too many to be culprits: no rank is blamed."
        ranks = tuple(c.rank for c in culprits)
        return ReplayResult(outcome=ReplayOutcome.NO_MAJORITY, replays=replays, sentence=sentence, undecided=ranks)
    return ReplayResult(
        outcome=ReplayOutcome.FOUND,
        culprits=culprits,
        replays=replays,
        sentence=_sentence(culprits, replays, cut=max(t.cut for t in told) > 0),
    )


def _majorities(traces: Sequence[ReplayTrace]) -> tuple[dict[tuple[int, int], tuple[int, ...]], dict[int, set[int]]]:
    """(role, place) -> the digests of a strict majority; and places that have none -> their ranks.

    Whole traces are counted and not single numbers: after its first odd step a rank computes with other parameters.
    Each rank has one vote, for what it computed most often: one that is merely asked more often is not more right.
    """
    by_work: dict[tuple[int, int], list[ReplayTrace]] = defaultdict(list)
    for trace in traces:
        by_work[trace.role, trace.place].append(trace)
    right, torn = {}, defaultdict[int, set[int]](set)
    for work, same in by_work.items():
        if len({len(t.digests) for t in same}) > 1:
            raise ValueError(f"traces of place {work[1]} have different lengths: they cannot be compared")
        best = _majority(same)
        if best is None:
            torn[work[1]] |= {t.rank for t in same}
        else:
            right[work] = best
    return right, torn


def _majority(same: Sequence[ReplayTrace]) -> tuple[int, ...] | None:
    counts = Counter(t.digests for t in same)
    own: dict[int, Counter[tuple[int, ...]]] = defaultdict(Counter)
    whose: dict[tuple[int, ...], set[int]] = defaultdict(set)
    for trace in same:
        own[trace.rank][trace.digests] += 1
        whose[trace.digests].add(trace.rank)
    votes = Counter(max(mine, key=lambda digests: (mine[digests], counts[digests], digests)) for mine in own.values())
    (best, most), *rest = votes.most_common()
    if 2 * most > votes.total():
        return best
    # Split evenly. Bits that two ranks came to are right: wrong ones do not agree by chance. Else those that a rank
    # comes to every time, if no other rank comes to its own every time.
    shared = [digests for digests, ranks in whose.items() if len(ranks) > 1]
    if shared:
        return shared[0] if len(shared) == 1 else None
    steady = [digests for digests, times in counts.items() if times > 1]
    return steady[0] if rest and len(steady) == 1 else None


def _first_odd(trace: ReplayTrace, right: dict[tuple[int, int], tuple[int, ...]]) -> int | None:
    """The step in which ``trace`` leaves what is right."""
    expected = right[trace.role, trace.place]
    for at, (mine, other) in enumerate(zip(trace.digests, expected, strict=True)):
        if mine != other:
            return trace.first_step + at // trace.per_step
    return None


def _crossing(odd: Sequence[ReplayTrace]) -> list[int]:
    """Who was in an odd group of every cut. A cut in which nothing was odd says nothing: the fault is fickle."""
    by_cut: dict[int, set[int]] = defaultdict(set)
    for trace in odd:
        by_cut[trace.cut].add(trace.rank)
    crossing = set.intersection(*by_cut.values())
    return sorted(crossing or set.union(*by_cut.values()))


def _against(rank: int, traces: Sequence[ReplayTrace], first_odd: dict[int, int]) -> ReplayMismatch:
    mine = [t for t in traces if t.rank == rank]
    odd = [t for t in mine if id(t) in first_odd]
    return ReplayMismatch(
        rank=rank,
        replays=len(mine),
        shown=len(odd),
        steps=tuple(sorted({first_odd[id(t)] for t in odd})),
        groups=tuple(sorted({t.group for t in odd})),
    )


def _without_majority(torn: dict[int, set[int]], replays: int) -> ReplayResult:
    ranks = tuple(sorted(set().union(*torn.values())))
    sentence = (
        f"Replays of ranks {', '.join(map(str, ranks))} differ and no majority says which are right: two replicas, "
        f"or a script that computes other bits every time (its data do not follow mesh.dp_rank and the step, or it "
        f"uses operations that are not deterministic)."
    )
    return ReplayResult(outcome=ReplayOutcome.NO_MAJORITY, replays=replays, sentence=sentence, undecided=ranks)


def _sentence(culprits: Sequence[ReplayMismatch], replays: int, *, cut: bool) -> str:
    who = "; ".join(
        f"rank {c.rank} computed other bits in {c.shown} of {c.replays} replays "
        f"(first at step {', '.join(map(str, c.steps[:4]))})"
        for c in culprits
    )
    odd = f" The odd groups were {', '.join(sorted({g for c in culprits for g in c.groups}))}." if cut else ""
    several = " One of them at least is the culprit." if cut and len(culprits) > 1 else ""
    return f"From the same state, data and seeds {who}; the rest of {replays} replays agree.{odd}{several}"
