"""What each pair's steps count: by the noise of its kind, or of its like within a kind that is too loud as a whole."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from mainstay.detectors.base import Bools, Floats
from mainstay.detectors.entity_state import NORMAL_MAD, median
from mainstay.detectors.network.transfer_delay_config import DelaysConfig
from mainstay.detectors.network.transfer_delay_noise import CusumThreshold, calibrate
from mainstay.detectors.network.transfer_delay_plateau import WINDOWS, NoiseTail, evidence, tail_of

Ints = npt.NDArray[np.intp]

_CHANCE = 1.5
"""By how much chance widens the deviation of 32 samples."""


class DelayThresholds:
    """Noise and scoring of E pairs; NaN where nothing is known yet, weight NaN where no pair can be judged.

    Args:
        count: E.
        config: the detector's.
    """

    def __init__(self, count: int, config: DelaysConfig) -> None:
        self._config = config
        self.bulk, self.sigma, self.drift, self.weight, self._wider = (np.full(count, np.nan) for _ in range(5))
        self._rare = config.alarms * max(count, 1)
        self._tail = np.full(count, -1, np.intp)
        self._tails: list[NoiseTail] = []

    @property
    def is_known(self) -> bool:
        return bool(np.isfinite(self.bulk).any())

    @property
    def loud(self) -> int:
        """Pairs whose noise is known and too much."""
        return int(np.count_nonzero(np.isfinite(self.bulk) & ~np.isfinite(self.weight)))

    def forget(self) -> None:
        """The noise has to be measured again before any pair is judged by it."""
        self.bulk[:] = np.nan

    def measure(self, memory: Floats, kind: Ints, calm: Bools) -> list[Ints]:
        """Learn from the calm pairs: suspects raise no limit.

        Args:
            memory: [T, E] log-ratios of the last steps, NaN where there is none.
            kind: [E] pairs of one kind have like noise.
            calm: [E]

        Returns:
            The calm pairs of each kind.
        """
        self._tails, self._tail = [], np.full(len(kind), -1, np.intp)
        kinds = [np.flatnonzero(calm & (kind == one)) for one in np.unique(kind[calm])]
        for members in kinds:
            if not self._learn(members, memory[:, members]):
                self._part(members, memory[:, members])
        return kinds

    def _part(self, members: Ints, memory: Floats) -> None:
        """The kind is too loud as a whole: judge those who are not by themselves, in octaves of their own noise."""
        own = np.maximum(NORMAL_MAD * median(np.abs(memory.T)), self._config.floor)
        octave = np.round(np.log2(own / self._config.floor))
        if len(found := np.unique(octave[np.isfinite(octave)])) > 1:
            for one in found:
                self._learn(members[octave == one], memory[:, octave == one])

    def _learn(self, members: Ints, memory: Floats) -> bool:
        """Whether such pairs can be judged."""
        config = self._config
        least = math.log(config.least)
        limit = calibrate(
            memory[np.isfinite(memory)],
            shift=math.log(config.shift),
            least=least,
            clip=config.clip,
            rare=self._rare,
            floor=config.floor,
        )
        wider = np.maximum(NORMAL_MAD * median(np.abs(memory.T)) / (_CHANCE * limit.bulk), 1.0)
        judged = limit.steps <= config.limit
        self._set(members, wider, limit, config.h / limit.h if judged else math.nan)
        if judged:
            self._tail[members] = len(self._tails)
            self._tails.append(tail_of(memory / wider, least, limit.bulk))
        return judged

    def _set(self, members: Ints, wider: Floats, limit: CusumThreshold, weight: float) -> None:
        self._wider[members] = wider
        self.bulk[members], self.sigma[members] = limit.bulk * wider, limit.sigma * wider
        self.drift[members], self.weight[members] = limit.k, weight

    def lasting(self, memory: Floats, slow: npt.NDArray[np.int64]) -> Bools:
        """[E] pairs whose last transfers have one slow level (``mainstay.detectors.network.transfer_delay_plateau``).

        Args:
            memory: [T, E] log-ratios of the last steps.
            slow: [E] slow steps in a row, which bound how far back is looked.
        """
        found = np.zeros(len(slow), dtype=np.bool_)
        near = (self._tail >= 0) & (slow >= WINDOWS[0])
        for number in np.unique(self._tail[near]):
            rows = np.flatnonzero(near & (self._tail == number))
            tail, wider = self._tails[number], self._wider[rows]
            for n in WINDOWS:
                nats = evidence(memory[-n:, rows] / wider, np.full(len(rows), tail.bulk), tail)
                found[rows] |= (nats >= math.log(self._rare)) & (slow[rows] >= n)
        return found
