"""What all pairs that use the same kind of link share: the network's own ups and downs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mainstay.detectors.base import Floats
from mainstay.detectors.entity_state import median, robust_sigma

POOLS = 2
"""Pairs that cross the network, pairs within a node: they shift together, and never with the other kind."""
_REMEMBERED = 64
"""Steps of common shift: their MAD is good to a tenth."""
_LEARN = 20
_FLOOR = 0.03
_FOLLOW = 0.02
"""Share by which the usual level of a pool follows, a step: minutes, so that a day's ups and downs are no fault."""
_QUARTILE = 0.6745
"""A normal's quartile, in deviations."""
_CLIP, _BEGIN, _END, _CAP = 4.0, 12.0, 3.0, 15.0
"""The CUSUM of one series: four steps at the clip begin it; false alarms exp(2k(h + 1.17k)) / 2k^2 (Siegmund)."""


class LinkPools:
    """Common shift of each pool, and whether it departs from its own past.

    Args:
        least: log-ratio that must be shown; half of it is drift.
        peers: from so many pairs on the faster quarter sets the shift, so that three in four may be slow; below, the
            lower median.
    """

    def __init__(self, least: float, peers: int) -> None:
        self._least, self._peers = least, peers
        self._past = np.full((POOLS, _REMEMBERED), np.nan)
        self._usual = np.full(POOLS, np.nan)
        self._score = np.zeros(POOLS)
        self.on = np.zeros(POOLS, dtype=np.bool_)
        """[pool] whether all its pairs are slow now."""

    def shift(self, y: Floats, pool: npt.NDArray[np.intp], noise: Floats) -> Floats:
        """[pool] log-ratio that its pairs share at this step; NaN where too few were heard of."""
        shift = np.full(POOLS, np.nan)
        for number in range(POOLS):
            inside = np.sort(y[(pool == number) & np.isfinite(y)])
            if len(inside) >= self._peers:
                spread = float(median(noise[pool == number]))
                quarter = inside[len(inside) // 4] + (_QUARTILE * spread if np.isfinite(spread) else 0.0)
                shift[number] = min(quarter, inside[len(inside) // 2])
            elif len(inside) > 1:
                shift[number] = inside[(len(inside) - 1) // 2]
        return shift

    def judge(self, shift: Floats) -> list[tuple[int, float]]:
        """Pools that became slow or cease to be, with their log-ratio to before."""
        changed = []
        for pool in np.flatnonzero(np.isfinite(shift)).tolist():
            if not np.isfinite(self._usual[pool]):
                self._usual[pool] = shift[pool]
            departure = float(shift[pool] - self._usual[pool])
            if np.isfinite(self._past[pool][-_LEARN:]).all():
                sigma = max(float(robust_sigma(self._past[pool])), _FLOOR)
                step = min(departure / sigma, _CLIP) - max(1.0, self._least / 2 / sigma)
                self._score[pool] = min(max(0.0, self._score[pool] + step), _CAP)
            if self._score[pool] < _BEGIN / 2:
                self._usual[pool] += _FOLLOW * departure
                self._past[pool] = np.append(self._past[pool][1:], departure)
            on = bool(self._score[pool] >= (_END if self.on[pool] else _BEGIN))
            if on != self.on[pool]:
                self.on[pool] = on
                changed.append((int(pool), departure))
        return changed
