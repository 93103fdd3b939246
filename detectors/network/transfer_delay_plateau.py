"""A pair that became slow and stays as slow: its steps agree with each other, which chance's large values do not.

The CUSUM counts how far each step is out, and cannot tell a halved speed from rare large values of the same size but by
counting more of them. A lasting fault has one level. So beside it, over the last n = 3, 4, 5 transfers of a pair::

    evidence = log E_mu[ prod N(r_i; mu, s^2) ] - sum log f0(r_i),        mu - start ~ exponential

a likelihood ratio whose level mu is averaged out, so that its expectation without a fault is at most 1: it exceeds A by
chance at most once in A windows (Ville 1939; the mixture rule of Robbins 1970). f0 is what quiet transfers of the same
kind did beyond ``start``; where large values come in bursts, all but the first of a window count as little as they are
rare after another, or after one of the same level. Too few samples to know the tail make f0 large, so the test waits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mainstay.detectors.base import Bools, Floats

WINDOWS = (3, 4, 5)
"""Transfers that are looked at together; more are the CUSUM's."""
_BEYOND = 4.5
"""Deviations from which a value is no bulk noise any more, nor what a pair's slow wander adds to it."""
_LEVEL = 1.0
"""Mean log-ratio of a fault above ``start``, a priori: most links that fail are two to six times slower."""
_WIDTHS = (1.0, 2.0)
"""Noise of a slow pair, in noises of a healthy one."""
_REACH = 2.0
"""Deviations within which two values are of one level."""
_UNSEEN = 3.0
"""Of n samples that never showed it, an event may yet have this share / n (95 % bound)."""
_TINY = 1e-12
_SIGNIFICANT = 0.05
"""Large values that follow each other as often as one in twenty by chance are taken for chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseTail:
    """What quiet transfers of one kind do beyond the bulk of their noise."""

    start: float
    """Log-ratio from which on a value belongs to it."""
    share: float
    """Of all transfers."""
    mean: float
    """Mean excess over ``start``: an exponential tail in log-ratios is a Pareto tail in seconds."""
    again: float
    """Share among the transfers that follow one of the tail."""
    level: float
    """Density of those that follow one of the tail, at its level: of bursts that keep one."""
    values: Floats
    """Sorted, with some from below ``start``."""
    count: int
    """Transfers looked at."""
    bulk: float

    def log_density(self, r: Floats) -> Floats:
        """Of a healthy transfer at ``r`` >= ``start``: the largest of fit, adjacent values, and what may be unseen."""
        fitted = self.share / self.mean * np.exp(-(r - self.start) / self.mean)
        reach = _REACH * self.bulk
        near = np.searchsorted(self.values, r + reach) - np.searchsorted(self.values, r - reach)
        nearby = near / (self.count * 2.0 * reach)
        return np.log(np.maximum(np.maximum(fitted, nearby), _UNSEEN / self.count / _LEVEL))


def tail_of(memory: Floats, least: float, bulk: float) -> NoiseTail:
    """Learn the tail from quiet pairs.

    Args:
        memory: [T, E] log-ratios of each pair in order of time, NaN where there is none. The last ones are under test
            and teach nothing yet: else a fault's own first steps would make it usual.
        least: log-ratio that a fault must have.
        bulk: their usual noise.
    """
    start, memory = max(least, _BEYOND * bulk), memory[: -max(WINDOWS)]
    known = memory[np.isfinite(memory)]
    above = known[known > start]
    share = (len(above) + 1) / (len(known) + 1)
    followed = (memory[:-1] > start) & np.isfinite(memory[1:])
    first = int(np.count_nonzero(followed))
    both = followed & (memory[1:] > start)
    again = int(np.count_nonzero(both))
    kept = int(np.count_nonzero(both & (np.abs(memory[1:] - memory[:-1]) < _REACH * bulk)))
    bursty = min(_chance(again, first * share), _chance(kept, first * share / 4)) < _SIGNIFICANT
    return NoiseTail(
        start=start,
        share=share,
        mean=float(np.mean(above - start)) if len(above) else bulk,
        again=max(share, again / max(first, 1)) if bursty else share,
        level=kept / max(first, 1) / (2.0 * _REACH * bulk) if bursty else 0.0,
        values=np.sort(known[known > start - _REACH * bulk]),
        count=max(len(known), 1),
        bulk=bulk,
    )


def evidence(r: Floats, noise: Floats, tail: NoiseTail) -> Floats:
    """[E] nats for "one level from here on" against "healthy", of windows [n, E]; -inf where one is not in the tail."""
    n = len(r)
    inside: Bools = np.asarray((r > tail.start).all(axis=0), np.bool_)
    r = np.where(inside, r, tail.start)
    mean = r.mean(axis=0)
    scatter = ((r - mean) ** 2).sum(axis=0)
    density = tail.log_density(r)
    density[1:] = np.maximum(density[1:] + np.log(tail.again / tail.share), np.log(max(tail.level, _TINY)))
    healthy = density.sum(axis=0)
    likely = np.full(r.shape[1], -np.inf)
    for width in _WIDTHS:
        variance = (width * noise) ** 2
        one = -(n - 1) / 2 * np.log(2 * np.pi * variance) - np.log(n) / 2 - scatter / (2 * variance)
        likely = np.logaddexp(likely, one - np.log(len(_WIDTHS)))
    prior = -(mean - tail.start) / _LEVEL - np.log(_LEVEL)
    return np.where(inside, likely + prior - healthy, -np.inf)


def _chance(count: int, expected: float) -> float:
    """Of so many or more, where they come independently (Poisson)."""
    fewer = sum(math.exp(-expected) * expected**k / math.factorial(k) for k in range(min(count, 100)))
    return max(0.0, 1.0 - fewer)
