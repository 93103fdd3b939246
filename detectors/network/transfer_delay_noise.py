"""Limits of a CUSUM from the noise itself, heavy tails and all, rather than from a normal distribution.

For independent steps, a CUSUM of increments ``clip(r / sigma) - k`` reaches h by chance about once in ``exp(theta h)``
steps, where theta > 0 solves ``E[exp(theta increment)] = 1`` (Wald; Siegmund 1985). The quiet samples give the
expectation, so each scale sigma has its own h for one and the same rate of false alarms; the scale is taken that would
show the wanted shift soonest. Narrow scales suit light tails, wide ones let rare large values say little.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mainstay.detectors.base import Floats
from mainstay.detectors.entity_state import NORMAL_MAD, median

_SCALES = (1.0, 1.3, 1.6, 2.0, 2.5, 3.2, 4.5)
_UNSEEN = 3.0
"""Of n samples that never showed it, an event may yet have this share / n (95 % bound)."""
_MOST_SAMPLES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class CusumThreshold:
    """How samples are scored."""

    bulk: float
    """Noise of the middle of the distribution."""
    sigma: float
    """Scale of the score."""
    k: float
    h: float
    steps: float
    """Steps to h at the wanted shift; infinite where it never gets there."""


def calibrate(quiet: Floats, *, shift: float, least: float, clip: float, rare: float, floor: float) -> CusumThreshold:
    """Choose scale and limit.

    Args:
        quiet: [N] log-ratios without a fault, none missing.
        shift: log-ratio to be shown soonest.
        least: log-ratio of which half is no fault.
        clip: most that a sample may say, in sigma.
        rare: samples to a false alarm.
        floor: least noise.
    """
    bulk = max(NORMAL_MAD * float(median(np.abs(quiet))), floor)
    r = np.sort(quiet)
    if len(r) > _MOST_SAMPLES:  # evenly from the sorted ones: the tail keeps its share
        r = r[np.linspace(0, len(r) - 1, _MOST_SAMPLES).round().astype(np.intp)]
    best = CusumThreshold(bulk=bulk, sigma=bulk * _SCALES[-1], k=1.0, h=np.inf, steps=np.inf)
    for scale in _SCALES:
        sigma = bulk * scale
        k = max(1.0, least / 2 / sigma)
        gain = min(clip, shift / sigma) - k
        if gain <= 0.0:
            continue
        theta = _exponent(np.clip(r / sigma, -clip, clip) - k, clip - k, _UNSEEN / len(quiet))
        h = max(np.log(rare) / theta, 2.2 * (clip - k))  # 2.2: two steps are never enough
        if h / gain < best.steps:
            best = CusumThreshold(bulk=bulk, sigma=sigma, k=k, h=h, steps=h / gain)
    return best


def _exponent(increments: Floats, worst: float, unseen: float) -> float:
    """The positive root of E[exp(theta increment)] = 1, by halving; tiny where the mean increment is not negative."""
    low, high = 1e-3, 10.0
    for _ in range(24):
        theta = (low + high) / 2
        mean = (1 - unseen) * float(np.exp(theta * increments).mean()) + unseen * float(np.exp(theta * worst))
        low, high = (theta, high) if mean < 1.0 else (low, theta)
    return low
