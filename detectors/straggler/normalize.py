"""What a rank's own compute should have been, judged by others: three ways, each with its own noise.

All work on ``x`` = log(own seconds of a step), one value a rank, NaN = unknown, and answer a residual in log
units: positive = slower than it should be. Each rank is compared with the *others*: it never weakens its own
accusation, and in small roles no residual is zero by construction.

- **role**: against ranks of the same role (pipeline stage), where all have the same work.
- **cross**: against the other ranks of the same replica (other stages; tensor-parallel peers), which work on the same
  sequences: ``y(rank) = b(role) * y(others of its replica) + residual``, y = t / median of the role - 1. A stage takes
  ``c0 + c1 * work``, so relative deviations of two stages of one replica are proportional, and ``b`` is one only where
  both spend the same share of their time on what varies (attention, not the vocabulary head).
- **covariate**: against the time expected for its tokens and squared sequence lengths: ``t = a + b tokens + c squares``
  for each role, then against the role.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mainstay.detectors.base import Bools, Floats
from mainstay.detectors.entity_state import median
from mainstay.detectors.job.mesh import JobMesh

Rows = npt.NDArray[np.intp]
NORMALISERS = ("role", "cross", "covariate")

_WITHIN_REPLICA = ("pp", "tp")
"""Axes along which ranks work on the same sequences."""
_FEW = 4
"""Up to so many others their mean is taken: a median of so few throws half of them away."""
_FIT_ROWS = 4096
"""Rank-steps that one fit looks at: three coefficients are then good to a few per cent of the noise."""
_FIT_STEPS, _FIT_SIZE = 5, 65536
"""Newest steps that a fit looks at: all rank-steps of a small job, a few steps of a large one."""
_ROUNDS = 6
"""Rounds of re-weighting: each leaves out what the round before found beyond three deviations."""
_TRIM = 3.0


class PeerTable:
    """Groups of rows of unequal size as one padded table, for order statistics over all groups at once.

    Values are ``[..., E]``; a row in no group has no others.
    """

    def __init__(self, groups: Sequence[Rows], size: int) -> None:
        self.size = size
        longest = max((len(rows) for rows in groups), default=1)
        self.table = np.full((len(groups), longest), size, np.intp)
        """[G, N] rows; ``size`` where a group is shorter."""
        for line, rows in zip(self.table, groups, strict=True):
            line[: len(rows)] = rows
        self.there: Bools = self.table < size
        self.count = np.zeros(size, np.intp)
        """[E] members of the row's group, itself included; 0 for a row in no group."""
        self.count[self.table[self.there]] = np.repeat(self.there.sum(axis=1), self.there.sum(axis=1))
        self._place = np.full(size, self.table.size, np.intp)
        self._place[self.table[self.there]] = np.flatnonzero(self.there)

    @property
    def lines(self) -> list[Rows]:
        """The groups' rows."""
        return [rows[there] for rows, there in zip(self.table, self.there, strict=True)]

    def median_of_others(self, x: Floats) -> tuple[Floats, Floats]:
        """Median of the other known members, and how many these are; NaN for a row that is itself unknown or alone."""
        values = self.gather(x)
        known = np.isfinite(values)
        ordered = np.sort(values, axis=-1)  # NaN last
        count = np.count_nonzero(known, axis=-1)[..., None]
        half, last = count // 2, values.shape[-1] - 1
        below, middle, above = (
            np.take_along_axis(ordered, np.clip(half + shift, 0, last), axis=-1) for shift in (-1, 0, 1)
        )
        lower, higher = values < middle, values > middle
        low = np.where(lower, middle, below)  # the two middle ones among the others, by where the row itself stands
        high = np.where(higher, middle, above)
        median_of = np.where(count % 2 == 1, (low + high) / 2, low)
        median_of[np.broadcast_to(count < 2, median_of.shape) | ~known] = np.nan
        return self._scatter(median_of), self._scatter(count - known.astype(np.float64))

    def mean_of_others(self, x: Floats) -> Floats:
        """The same with a mean."""
        values = self.gather(x)
        known = np.isfinite(values)
        values[~known] = 0.0
        count = np.count_nonzero(known, axis=-1)[..., None] - 1
        mean = (values.sum(axis=-1, keepdims=True) - values) / np.maximum(count, 1)
        mean[np.broadcast_to(count < 1, mean.shape) | ~known] = np.nan
        return self._scatter(mean)

    def gather(self, x: Floats) -> Floats:
        """[..., G, N] the values of each group's rows; NaN where a group is shorter."""
        padded = np.concatenate((x, np.full((*x.shape[:-1], 1), np.nan)), axis=-1)
        return padded[..., self.table]

    def _scatter(self, values: Floats) -> Floats:
        flat = values.reshape(*values.shape[:-2], -1)
        padded = np.concatenate((flat, np.full((*flat.shape[:-1], 1), np.nan)), axis=-1)
        return padded[..., self._place]


def scale_of(count: npt.NDArray[np.intp]) -> Floats:
    """How much a residual against the median of ``count - 1`` others spreads, in deviations of one rank.

    Variance of a median of m normal values: 1 / (1 + 2/pi (m - 1)), within a tenth from m = 1 on.
    """
    others = np.maximum(count - 1, 1)
    return np.sqrt(1.0 + 1.0 / (1.0 + 2.0 / np.pi * (others - 1)))


@dataclass(eq=False)
class PeerLayout:
    """Who is compared with whom: fixed while the job keeps its ranks."""

    roles: PeerTable
    replicas: PeerTable | None
    """None where no rank shares its sequences with another."""

    @property
    def scale(self) -> Floats:
        return scale_of(self.roles.count)


def layout_of(members: Sequence[Rows], ranks: npt.NDArray[np.int64], mesh: JobMesh | None) -> PeerLayout:
    """Members of groups stand in order of their rank numbers, so that sums do not depend on the order of the rows."""
    size = len(ranks)
    roles = PeerTable([rows[np.argsort(ranks[rows], kind="stable")] for rows in members], size)
    if mesh is None or size == 0:
        return PeerLayout(roles, None)
    rows = mesh.rows([int(rank) for rank in ranks])
    place = np.where(
        rows >= 0, mesh.labels(*_WITHIN_REPLICA)[rows], -1 - np.arange(size)
    )  # a rank outside the mesh shares with none
    order = np.lexsort((ranks, place))
    groups = np.split(order, np.flatnonzero(np.diff(place[order])) + 1)
    shared = [group for group in groups if len(group) > 1]
    return PeerLayout(roles, PeerTable(shared, size) if shared else None)


class Normalizer:
    """The three residuals of a job's steps; fitted on what is remembered, and again now and then."""

    def __init__(self) -> None:
        self.slopes: dict[int, float] = {}
        """Role (line of the table) to b of the cross-stage relation."""
        self.costs: dict[int, Floats] = {}
        """Role to seconds (fixed, a token, a square)."""
        self.most: dict[int, Floats] = {}
        """Role to the most tokens and squares that were fitted: beyond them a fit says nothing."""

    def residuals(self, layout: PeerLayout, x: Floats, work: Floats) -> Floats:
        """[3, ..., E] role, cross, covariate; ``work`` is [2, ..., E] tokens and squares. NaN: nothing can be said."""
        out = np.full((len(NORMALISERS), *x.shape), np.nan)
        out[0] = role = _against_others(layout.roles, x)
        if self.slopes and layout.replicas is not None:
            slope = _spread_over(layout.roles, self.slopes)
            shared = np.log1p(np.maximum(slope * _shared(layout.replicas, role), -0.9))
            out[1] = _against_others(layout.roles, role - shared)
        if self.costs:
            out[2] = _against_others(layout.roles, x - self._expected(layout.roles, work))
        return out / layout.scale

    @property
    def ways(self) -> int:
        """How many ways are fitted."""
        return 1 + bool(self.slopes) + bool(self.costs)

    def _expected(self, roles: PeerTable, work: Floats) -> Floats:
        expected = np.full(work.shape[1:], np.nan)
        for line, cost in self.costs.items():
            rows, most = roles.lines[line], self.most[line]
            seconds = cost[0] + cost[1] * work[0][..., rows] + cost[2] * work[1][..., rows]
            fitted = (seconds > 0.0) & (work[0][..., rows] <= most[0]) & (work[1][..., rows] <= most[1])
            expected[..., rows] = np.log(np.where(fitted, seconds, np.nan))
        return expected

    def fit(self, layout: PeerLayout, x: Floats, work: Floats, calm: Bools) -> None:
        """Learn slopes and costs from remembered steps; ``x`` is [T, E], ``work`` [2, T, E]; only ``calm`` ranks teach.

        Of very many rank-steps the newest are taken.
        """
        last = max(_FIT_STEPS, -(-_FIT_SIZE // max(x.shape[1], 1)))
        x, work = np.where(calm, x[-last:], np.nan), work[:, -last:]
        lines = layout.roles.lines
        if layout.replicas is not None:
            role = _against_others(layout.roles, x)
            own, others = np.expm1(role), _shared(layout.replicas, role)
            for line, rows in enumerate(lines):
                pairs = _some(np.stack((own[:, rows], others[:, rows])))
                slope = _slope(pairs[0], pairs[1])
                if slope is not None:
                    self.slopes[line] = slope
        if np.isfinite(work).any():
            for line, rows in enumerate(lines):
                kept = _some(np.stack((x[:, rows], work[0][:, rows], work[1][:, rows])))
                cost = fit_cost(np.exp(kept[0]), kept[1:])
                if cost is not None:
                    self.costs[line], self.most[line] = cost, 1.001 * kept[1:].max(axis=1)


def _against_others(roles: PeerTable, x: Floats) -> Floats:
    middle, others = roles.median_of_others(x)
    # Of three and more, two others must have reported: one alone could be the one at fault.
    return np.where(others >= np.minimum(roles.count - 1, 2), x - middle, np.nan)


def _spread_over(roles: PeerTable, values: dict[int, float]) -> Floats:
    result = np.full(roles.size, np.nan)
    for line, rows in enumerate(roles.lines):
        result[rows] = values.get(line, np.nan)
    return result


def _shared(replicas: PeerTable, role: Floats) -> Floats:
    """How far the other ranks of the replica are above their roles, relative."""
    y = np.expm1(role)
    few = replicas.count <= _FEW + 1
    return np.where(few, replicas.mean_of_others(y), replicas.median_of_others(y)[0])


def _some(columns: Floats) -> Floats:
    """[C, n] of [C, T, R]: complete rank-steps only, evenly thinned to what a fit needs."""
    flat = columns.reshape(len(columns), -1)
    flat = flat[:, np.isfinite(flat).all(axis=0)]
    return flat[:, :: max(1, -(-flat.shape[1] // _FIT_ROWS))]


_FIT_LEAST = 16
"""Rank-steps below which nothing is fitted: five a coefficient."""


def _slope(y: Floats, u: Floats) -> float | None:
    """Robust b of ``y = b u``; a role whose replicas do not differ gets a small b, since noise does not repeat."""
    if len(y) < _FIT_LEAST:
        return None
    keep = np.ones(len(y), np.bool_)
    slope = 0.0
    for _ in range(_ROUNDS):
        power = float((u[keep] ** 2).sum())
        if power <= 0.0:
            return 0.0
        slope = float((u[keep] * y[keep]).sum()) / power
        keep = _inliers(y - slope * u)
    return float(np.clip(slope, 0.0, 4.0))  # a stage four times as sensitive as the others is no pipeline stage


def fit_cost(seconds: Floats, work: Floats) -> Floats | None:
    """Seconds fixed and for a unit of each kind of ``work`` [C, n]; least relative error, robust.

    None where there is too little.
    """
    if len(seconds) < _FIT_LEAST:
        return None
    columns = np.stack((np.ones_like(seconds), *work))
    size = np.maximum(np.abs(columns).mean(axis=1), 1e-300)[:, None]
    design = (columns / size / seconds).T
    keep = np.ones(len(seconds), np.bool_)
    cost = np.zeros(len(columns))
    # Tokens that never vary are no different from the fixed part: share it, do not explode.
    ridge = 1e-6 * np.eye(len(columns))
    for _ in range(_ROUNDS):
        part = design[keep]
        scale = float((part**2).mean())
        cost = np.linalg.solve(part.T @ part / len(part) + scale * ridge, part.mean(axis=0))
        keep = _inliers(1.0 - design @ cost)
    return np.asarray(cost / size[:, 0])


def _inliers(residual: Floats) -> Bools:
    limit = _TRIM * 1.4826 * float(median(np.abs(residual - median(residual))))
    kept: Bools = np.abs(residual) <= limit
    return kept if np.count_nonzero(kept) >= len(residual) // 2 else np.ones_like(kept)
