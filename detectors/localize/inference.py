"""Sequential Bayesian inference of faulty components from measurements of pairs.

The speed of a pair is that of the slowest piece on its way, so in logarithms

    y = usual(group) + min over pieces (level) + noise,    level = 0 for what is healthy,

where ``group`` are transfers of the same length (``topology.Way``). What is usual and how much healthy pairs scatter is
read off the cohort itself: faults only slow, so the upper end of the measurements is healthy. A measurement may for
once mean nothing (``STRANGE``), so that no single one names a component. The smallest set of bad pieces that explains
what was measured is found greedily; a piece is *named* when the best story without it is worse by ``ENOUGH``, *cleared*
when a slowdown worth naming is unlikely by ``CLEAR``; all others stay unknown. A slow pair whose one end is named says
nothing of its other end, which is why two bad nodes that meet blame no other node.

Sources: the pairwise check of DLRover (dlrover 7c3e964, which compares with twice the median), parsimony as in
``mainstay.detectors.network.fabric``, the sparse prior of Bayesian group testing (Aldridge, Johnson, Scarlett 2019, ch.
3).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from mainstay.detectors.base import Bools, Floats
from mainstay.detectors.localize.cohort import Cohort, usual
from mainstay.detectors.localize.model import LocalizationConfig, PairOutcome, PairResult
from mainstay.detectors.localize.topology import OWN, Component, FabricComponentKind, TopologyMap
from mainstay.detectors.network.fabric import Ints

ENOUGH = 10.0
"""Odds to name a piece, in nats, as for the fabric's suspects: 20,000 to 1 against every other story."""
CLEAR = float(np.log(1000.0))
"""Odds to clear one: of a fleet of a thousand nodes, one bad one would be missed in a thousand such runs or more."""
TOLD = float(np.log(10.0))
"""And of that so much from measurements, in nats: an unmeasured component is not good, however rare its faults are."""
STRANGE = 0.005
"""Share of measurements that mean nothing: a burst of other traffic, a process that was in the way."""
RANGE = 6.0
"""Width of what such a measurement may say, in nats of speed."""
HUNG = -6.0
"""Level of a transfer that does not end: slower by more than any that does (400 times)."""
UNEVEN = 0.1
"""A fault slows what passes it alike within this share of its effect."""
HANGS_ALIKE = 0.1
"""Except that what hangs hangs alike: the width of that level."""
STEP = 1.15
"""Ratio of neighbouring levels that are tried: finer than ``UNEVEN`` lets them be told apart."""
PRIOR = {
    FabricComponentKind.NODE: 1e-2,
    FabricComponentKind.NIC: 1e-2,
    FabricComponentKind.GPU: 1e-2,
    FabricComponentKind.UPLINK: 1e-3,
    FabricComponentKind.CABLE: 1e-3,
    FabricComponentKind.SWITCH: 1e-3,
}
"""Chance that a piece is bad before anything was measured: delivery checks find 1-2 % of hosts (Aegis); switches and
cables between them fail an order less."""
PRIOR_PATH = 1e-4
"""What only one pair passes is hardly anything: a hash that meets an unlisted bad cable."""
PRIOR_GOOD = 1e-4
"""A node that passed a check of its own."""
MOST_FAULTS = 12
"""Pieces that one story may hold; where more are bad, the cohort itself is no measure."""
TURNS = 3
"""Times that the usual speed is estimated again from the pairs which no fault explains."""


@dataclass(slots=True)
class SizePosterior:
    """One message size, judged."""

    size: str
    cohort: Cohort
    residual: Floats
    """[M] log-speed against what is usual; NaN: not measured at this size."""
    odds: dict[Component, float] = field(default_factory=dict)
    """Of the named pieces."""
    level: dict[Component, float] = field(default_factory=dict)
    classes: dict[Component, tuple[Component, ...]] = field(default_factory=dict)
    """Named piece → those that passed exactly the same measurements."""
    suspects: set[Component] = field(default_factory=set)
    """Of the unnamed: those of which one is bad, or a measurement was strange."""
    cleared: set[Component] = field(default_factory=set)


class PathMatrix:
    """Which measurement passed which pieces, for all sizes."""

    def __init__(self, chart: TopologyMap, results: Sequence[PairResult], good: Collection[str]) -> None:
        self.results = [r for r in results if r.outcome is not PairOutcome.MISSING]
        index: dict[Component, int] = {}
        who: list[int] = []
        rows: list[int] = []
        groups: list[tuple[int, bool]] = []
        for row, result in enumerate(self.results):
            way = chart.way(result.a, result.b, result.via)
            groups.append(way.group)
            for piece in dict.fromkeys(way.pieces):
                who.append(index.setdefault(piece, len(index)))
                rows.append(row)
        self.groups = groups
        self.pieces = tuple(index)
        order = np.argsort(np.array(who, np.intp), kind="stable")
        self.rows: Ints = np.array(rows, np.intp)[order]
        """[E] measurements, sorted by the piece they passed."""
        counts = np.bincount(np.array(who, np.intp), minlength=len(index)) if who else np.zeros(0, np.intp)
        self.starts: Ints = np.concatenate([np.zeros(1, np.intp), np.cumsum(counts)[:-1]]).astype(np.intp)
        self.ends = self.starts + counts
        self.prior: Floats = np.log([_prior(piece, good) for piece in self.pieces])
        """[P]"""

    def rows_through(self, piece: int) -> Ints:
        """Measurements that passed a piece."""
        return self.rows[self.starts[piece] : self.ends[piece]]

    def total(self, per_row: Floats) -> Floats:
        """[P, K] sums of [M, K] over the measurements of each piece."""
        return np.add.reduceat(per_row[self.rows], self.starts, axis=0)

    def alike(self, piece: int) -> tuple[int, ...]:
        """Pieces that passed exactly the same measurements, itself among them."""
        own = self.rows_through(piece)
        count = self.ends - self.starts
        weight = np.add.reduceat(self.rows + 1.0, self.starts)
        same = np.flatnonzero((count == len(own)) & (weight == float((own + 1.0).sum())))
        return tuple(int(other) for other in same if np.array_equal(self.rows_through(int(other)), own))


def _prior(piece: Component, good: Collection[str]) -> float:
    if piece.kind is FabricComponentKind.PATH:
        return PRIOR_PATH
    if piece.kind in OWN and piece.name[0] in good:
        return PRIOR_GOOD
    return PRIOR[piece.kind]


def infer_faults(
    chart: TopologyMap, results: Sequence[PairResult], settings: LocalizationConfig, good: Collection[str] = ()
) -> list[SizePosterior]:
    """Judge each message size alone: small packets may pass where large ones are lost.

    Args:
        chart: the topology.
        results: of all rounds.
        settings: what slowdown is worth a name.
        good: nodes that a check of their own passed.
    """
    ways = PathMatrix(chart, results, good)
    if not ways.results:
        return []
    sizes = sorted({size for result in ways.results for size in result.bandwidth}, key=int) or ["0"]
    return [_size(ways, size, settings) for size in sizes]


def _size(ways: PathMatrix, size: str, settings: LocalizationConfig) -> SizePosterior:
    hung: Bools = np.array([r.outcome is PairOutcome.HUNG for r in ways.results], dtype=np.bool_)
    speed = np.log([r.bandwidth.get(size, math.nan) for r in ways.results])
    speed[hung] = math.nan
    own: Floats = np.array([r.scatter.get(size, 0.0) for r in ways.results])
    cohort = usual(speed, ways.groups, settings.noise)
    for _ in range(TURNS):
        residual = np.where(hung, HUNG, cohort.residual(speed))
        story = LocalizationHypothesis(ways, residual, np.hypot(cohort.noise, own), settings.slower)
        story.grow()
        renewed = cohort.renewed(speed, story.level == 0, settings.noise)
        if renewed.near(cohort):
            break
        cohort = renewed
    return story.seen(SizePosterior(size=size, cohort=cohort, residual=residual))


class LocalizationHypothesis:
    """A set of bad pieces, each with a level, that explains the measurements of one size."""

    def __init__(self, ways: PathMatrix, residual: Floats, noise: Floats, slower: float) -> None:
        self.ways = ways
        least = -math.log1p(-slower)
        mild = least * np.array([0.125, 0.25, 0.375, 0.5])
        steps = math.ceil(math.log(-HUNG / least) / math.log(STEP))
        self.levels: Floats = -np.concatenate([[0.0], mild, np.geomspace(least, -HUNG, steps + 1)])
        """[K] healthy, within tolerance, and bad, from the mildest to the worst."""
        self.bad = 1 + len(mild)
        self.fit = _fit(residual, self.levels, noise)
        """[M, K] log-likelihood of each measurement at each level."""
        self.level: Ints = np.zeros(len(residual), np.intp)
        """[M] index of the level that the story gives each."""
        self.members: dict[int, int] = {}
        """Bad pieces → index of level."""

    def _gain(self, members: dict[int, int]) -> Floats:
        """[P, K] how much better a piece at this level explains the measurements, in addition to ``members``."""
        return self.ways.total(self._better(self.fit, self._levels(members)))

    def _better(self, fit: Floats, level: Ints) -> Floats:
        """[M, K] how much better each measurement is explained if one more piece on its way has this level."""
        wide = np.maximum(np.arange(len(self.levels))[None, :], level[:, None])
        return np.take_along_axis(fit, wide, axis=1) - np.take_along_axis(fit, level[:, None], axis=1)

    def _levels(self, members: dict[int, int]) -> Ints:
        level: Ints = np.zeros(len(self.fit), np.intp)
        for piece, at in members.items():
            rows = self.ways.rows_through(piece)
            level[rows] = np.maximum(level[rows], at)
        return level

    def _worth(self, members: dict[int, int]) -> float:
        level = self._levels(members)
        likely = float(np.take_along_axis(self.fit, level[:, None], axis=1).sum())
        return likely + sum(self._cost(piece) for piece in members)

    def _cost(self, piece: int) -> float:
        return float(self.ways.prior[piece]) - math.log(len(self.levels) - self.bad)

    def grow(self) -> None:
        """Find the best story greedily."""
        self.members = self._grown({}, ())
        self.level = self._levels(self.members)

    def _grown(self, members: dict[int, int], without: Collection[int]) -> dict[int, int]:
        members = dict(members)
        barred = np.zeros(len(self.ways.pieces), dtype=np.bool_)
        barred[list(without)] = True
        cost = self.ways.prior - math.log(len(self.levels) - self.bad)
        while len(members) < MOST_FAULTS:
            gain = self._gain(members)[:, self.bad :]
            score = gain.max(axis=1) + cost
            score[barred] = -np.inf
            score[list(members)] = -np.inf
            best = int(np.argmax(score))
            if not score[best] > 1e-9:
                break
            members[best] = self.bad + int(np.argmax(gain[best]))
            members = self._refitted(members)
        return members

    def _refitted(self, members: dict[int, int]) -> dict[int, int]:
        """Fit the levels again, one by one; what is no longer worth its cost is dropped."""
        for piece in list(members):
            others = {other: at for other, at in members.items() if other != piece}
            gain = self._of(piece, others)
            at = self.bad + int(np.argmax(gain[self.bad :]))
            members = others | {piece: at} if gain[at] + self._cost(piece) > 0 else others
        return members

    def _of(self, piece: int, others: dict[int, int]) -> Floats:
        """[K] gain of one piece alone."""
        rows = self.ways.rows_through(piece)
        return np.asarray(self._better(self.fit[rows], self._levels(others)[rows]).sum(axis=0))

    def seen(self, seen: SizePosterior) -> SizePosterior:
        """Name, suspect and clear."""
        pieces = self.ways.pieces
        worth = self._worth(self.members)
        for piece, at in self.members.items():
            alike = self.ways.alike(piece)
            others = {other: level for other, level in self.members.items() if other != piece}
            rival = self._grown(others, alike)
            mild = self._worth(others) + float(self._of(piece, others)[: self.bad].max())
            odds = worth - max(self._worth(rival), mild)
            if odds >= ENOUGH and _one_thing([pieces[p] for p in alike]) and self._witnessed(piece):
                seen.odds[pieces[piece]] = odds
                seen.level[pieces[piece]] = float(self.levels[at])
                seen.classes[pieces[piece]] = tuple(pieces[p] for p in alike)
            elif mild < worth:
                seen.suspects |= {pieces[p] for p in (*alike, *(rival.keys() - others.keys()))}
        self._clear(seen)
        return seen

    def _witnessed(self, piece: int) -> bool:
        """Whether the fault between nodes shows in pairs that have no node in common: else it may be that node."""
        if self.ways.pieces[piece].kind in OWN | {FabricComponentKind.PATH}:
            return True
        slow = [row for row in self.ways.rows_through(piece) if self.level[row] == self.members[piece]]
        ends = [{r.a.node, r.b.node} for r in (self.ways.results[row] for row in slow)]
        return bool(ends) and not set.intersection(*ends)

    def _clear(self, seen: SizePosterior) -> None:
        gain = self._gain(self.members)
        top = gain[:, self.bad :].max(axis=1)
        bad = top + np.log(np.exp(gain[:, self.bad :] - top[:, None]).mean(axis=1))
        told = bad - gain[:, : self.bad].max(axis=1)
        clear = (told + self.ways.prior <= -CLEAR) & (told <= -TOLD)
        taken = {piece for found in seen.classes.values() for piece in found} | seen.suspects
        seen.cleared = {p for p, good in zip(self.ways.pieces, clear, strict=True) if good and p not in taken}


def _one_thing(pieces: Sequence[Component]) -> bool:
    """Whether pieces that cannot be told apart belong together, so that naming them blames no bystander."""
    own = [piece for piece in pieces if piece.kind in OWN]
    if own:
        return len({piece.name[0] for piece in own}) == 1 and len(own) == len(pieces)
    return all(set(piece.name) & set(pieces[0].name) for piece in pieces)


def _fit(residual: Floats, levels: Floats, noise: Floats) -> Floats:
    """[M, K] log-likelihood: normal around the level, or anything once in a while; 0 for what is unknown.

    Args:
        residual: [M] log-speed against what is usual.
        levels: [K]
        noise: [M] of the cohort and of the measurement itself.
    """
    wide = np.sqrt(noise[:, None] ** 2 + (UNEVEN * levels) ** 2)
    wide[:, -1] = HANGS_ALIKE
    unknown = np.isnan(residual)
    normal = -(((np.where(unknown, 0.0, residual)[:, None] - levels) / wide) ** 2) / 2 - np.log(
        wide * math.sqrt(2 * math.pi)
    )
    fit: Floats = np.logaddexp(math.log1p(-STRANGE) + normal, math.log(STRANGE / RANGE))
    fit[unknown] = 0.0
    return fit
