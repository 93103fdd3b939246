"""How much equal ranks differ: from step to step, for how long, and for good.

A residual is ``offset of the rank + noise``. Healthy GPUs of one model differ for good by about a per cent (silicon,
cooling); their noise may stay for several steps (another process on the host, a warm spell). A CUSUM takes both for a
fault unless it is removed: the offset is estimated and taken off as far as it is credible, and the noise is measured in
the long run. All estimates are of differences, in which the offset falls out, and robust, so that a few sick ranks or
spikes in the pool change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mainstay.detectors.base import Floats
from mainstay.detectors.entity_state import NORMAL_MAD, median
from mainstay.detectors.job.mesh import rows_by_label

_BLOCK = 8
"""Steps whose means are compared to see noise that stays: as long as a CUSUM needs to decide."""
_BLOCK_KNOWN = 6
_TAIL = 4.0
"""Where a step's say is clipped; within it tails count as they are."""
_RHO_LIMIT = 0.9
_POOL = 512
"""Ranks that noise is learned from: with 16 steps each it is good to two per cent."""
_KNUTH = 2654435761
"""Multiplicative hash (Knuth): the pool must not depend on the order of ranks, nor miss a stage by its stride."""
_NODE_RANKS = 4
_NODE_GAP = 0.05
"""Healthy V100 nodes differ by less (pairs of Longhorn's under SGEMM, BERT, and PageRank: at most 4.9 %)."""
_SAME_WORK = 0.01


def pool_of(ranks: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """Rows of about 512 ranks, all of a smaller job, in order of their numbers."""
    part = ((ranks * _KNUTH) % 2**32) * len(ranks) < _POOL * 2**32
    return np.flatnonzero(part)[np.argsort(ranks[part], kind="stable")]


def drift_of(own: Floats) -> Floats:
    """How far the whole job moved, from own[..., rank]: known from three ranks on, else taken as none."""
    known = np.count_nonzero(np.isfinite(own), axis=-1) > 2
    return np.where(known, np.nan_to_num(median(own)), 0.0)


@dataclass(frozen=True, slots=True)
class RankNoise:
    """All in log units, i.e. relative."""

    sigma: float
    """Long-run deviation: what independent noise would need to have for sums over many steps to spread as they do."""
    offset: float
    """Deviation of the ranks' lasting offsets."""
    samples: int


def noise_of(residuals: Floats) -> RankNoise:
    """From [T, rank] in order of time, NaN = missing."""
    sigma = _from_lags(residuals)
    own = median(residuals.T) if len(residuals) else np.zeros(residuals.shape[1])
    reach = _TAIL * sigma if np.isfinite(sigma) else 0.0
    blocks = _blocks(np.clip(residuals, own - reach, own + reach))  # a spike of any size says as much as one of four
    if blocks is not None:
        steps = np.diff(blocks, axis=0)
        # Less its own error: the larger of two estimates would otherwise be too large in every quiet job.
        sure = 1.0 - 1.0 / np.sqrt(max(int(np.count_nonzero(np.isfinite(steps))), 1))
        sigma = max(sigma, sure * float(np.sqrt(_BLOCK / 2.0)) * _spread(steps))
    return RankNoise(
        sigma=sigma, offset=_offset(residuals, sigma), samples=int(np.count_nonzero(np.isfinite(residuals)))
    )


def _from_lags(residuals: Floats) -> float:
    """AR(1): differences over one step have variance 2 s^2 (1 - r), over two 2 s^2 (1 - r^2), so r needs no mean."""
    one, two = (_spread(residuals[lag:] - residuals[:-lag]) for lag in (1, 2))
    if not np.isfinite(one) or one <= 0.0:
        return one
    ratio = (two / one) ** 2 - 1.0 if np.isfinite(two) else 0.0
    known = int(np.count_nonzero(np.isfinite(residuals)))
    ratio -= 1.0 / float(np.sqrt(max(known, 1)))  # its own error, for the same reason as above
    rho = float(np.clip(ratio, 0.0, _RHO_LIMIT))
    own = one / np.sqrt(2.0 * (1.0 - rho))
    return float(own * np.sqrt((1.0 + rho) / (1.0 - rho)))


def _blocks(residuals: Floats) -> Floats | None:
    """[B, rank] means of consecutive blocks, the newest steps last; None for fewer than three."""
    count = len(residuals) // _BLOCK
    if count < 3:
        return None
    cut = residuals[len(residuals) - count * _BLOCK :].reshape(count, _BLOCK, -1)
    known = np.isfinite(cut)
    number = known.sum(axis=1)
    means: Floats = np.where(
        number >= _BLOCK_KNOWN, np.where(known, cut, 0.0).sum(axis=1) / np.maximum(number, 1), np.nan
    )
    return means if np.isfinite(np.diff(means, axis=0)).any() else None


def _offset(residuals: Floats, sigma: float) -> float:
    """Spread of the ranks' means beyond what the noise of a mean explains; widened where ranks are few."""
    known = np.isfinite(residuals)
    number = known.sum(axis=0)
    enough = number >= 3
    ranks = int(np.count_nonzero(enough))
    if not ranks or not np.isfinite(sigma):
        return 0.0
    centred = np.clip(residuals, -10 * sigma, 10 * sigma) if sigma > 0 else residuals
    means = np.where(known, centred, 0.0).sum(axis=0)[enough] / number[enough]
    spread = NORMAL_MAD * float(median(np.abs(means))) * (1.0 + 1.0 / np.sqrt(ranks))
    return float(np.sqrt(max(spread**2 - sigma**2 / float(median(number[enough].astype(np.float64))), 0.0)))


def most_offset_of_two_nodes(
    x: Floats, tokens: Floats, roles: Sequence[npt.NDArray[np.intp]], nodes: npt.NDArray[np.intp]
) -> float:
    """Deviation that lasting offsets may have at most where one of two nodes is slower than healthy ones differ.

    Of two nodes neither is the majority, so a node that is slow from the start would pass for a healthy difference. The
    ranks of one node show how much equal ranks differ. Infinite unless the nodes have equal work.

    Args:
        x: [T, rank] log seconds.
        tokens: [T, rank]; NaN: not reported.
        roles: rows of each role.
        nodes: [rank] number of its node.
    """
    parts = rows_by_label(nodes)
    if len(parts) != 2 or min(map(len, parts)) < _NODE_RANKS:
        return float("inf")
    work, own = np.log(median(tokens.T)), median(x.T)
    for rows in roles:
        own[rows] -= sum(median(own[np.intersect1d(rows, part)]) for part in parts) / 2
    middles = np.array([median(own[part]) for part in parts])
    if not abs(median(work[parts[0]]) - median(work[parts[1]])) <= _SAME_WORK or not np.ptp(middles) >= _NODE_GAP:
        return float("inf")
    return NORMAL_MAD * float(
        max(median(np.abs(own[part] - middle)) for part, middle in zip(parts, middles, strict=True))
    )


def _spread(values: Floats) -> float:
    """Deviation: the robust one, or that of the values clipped at four of it where tails are heavier than normal."""
    known = values[np.isfinite(values)]
    if not len(known):
        return float("inf")
    robust = NORMAL_MAD * float(median(np.abs(known)))
    clipped = float(np.sqrt(np.mean(np.clip(known, -_TAIL * robust, _TAIL * robust) ** 2)))
    return max(robust, clipped)
