"""From a score to alarms, and from alarms to what they were worth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.lib_vus import Ranges
from mainstay.detectors.base import Floats

NEEDED, OF_LAST = 2, 3
COOL_DOWN = 30
"""Samples after an alarm before the next: one that stands is raised again and again, so a long false one costs."""
GRACE = 5
"""Samples after an event's end in which an alarm still belongs to it: smoothing lags."""


def alarms(score: Floats, threshold: float) -> npt.NDArray[np.intp]:
    """Samples at which an alarm is raised: two of the last three reach the threshold, none within the cool-down."""
    over = np.concatenate([np.zeros(OF_LAST - 1, np.int64), (score >= threshold).astype(np.int64)])
    loud = np.convolve(over, np.ones(OF_LAST, np.int64), mode="valid") >= NEEDED
    raised: list[int] = []
    for at in np.flatnonzero(loud).tolist():
        if not raised or at - raised[-1] >= COOL_DOWN:
            raised.append(at)
    return np.array(raised, np.intp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What alarms were worth on one machine."""

    events: int
    delays: tuple[int, ...]
    """Of the events found: samples from onset to the first alarm within."""
    false: int
    """Alarms outside every event."""

    @property
    def recall(self) -> float:
        return len(self.delays) / self.events


def judge(raised: npt.NDArray[np.intp], events: Ranges) -> Verdict:
    """An alarm from an event's first sample to ``GRACE`` after its last finds it; what belongs to none is false."""
    first: dict[int, int] = {}
    false = 0
    for at in raised.tolist():
        mine = [i for i, (start, stop) in enumerate(events) if start <= at < stop + GRACE]
        false += not mine
        for i in mine:
            first.setdefault(i, at)
    delays = tuple(at - events[i][0] for i, at in sorted(first.items()))
    return Verdict(events=len(events), delays=delays, false=false)


def hit_rate(contributions: Floats, culprits: list[int], share: float) -> float:
    """HitRate@share (OmniAnomaly, KDD 2019): the share of an event's culprits that are named.

    Named are the first ``share`` times as many signals by mean contribution over the event; ``culprits`` from 0.
    """
    named = np.argsort(-contributions.mean(axis=0), kind="stable")[: int(np.ceil(share * len(culprits)))]
    return len(set(named.tolist()) & set(culprits)) / len(culprits)
