"""Control of false discoveries when very many streams are tested at once.

``discoveries`` is the step-up procedure of Benjamini and Hochberg (J. R. Stat. Soc. B 57, 1995). Over time the budget
is spent evenly: ``level_per_tick`` turns "so many false alarms a day" into the level of one tick. With no real fault,
the chance that a tick raises anything is then at most its level (all discoveries are false ones, so the rate is the
chance), and the expected number of false ticks a day at most the budget, for any dependence between ticks.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from mainstay.detectors.base import Bools, Floats

SECONDS_A_DAY = 86_400.0


def level_per_tick(false_alarms_a_day: float) -> float:
    """The level of one tick, a second apart from the next."""
    return false_alarms_a_day / SECONDS_A_DAY


def discoveries(p: Floats, level: float, *, tests: int) -> Bools:
    """Which of the smallest p-values are discoveries: the largest i with p(i) <= level i / tests.

    Args:
        p: [n] p-values of those worth a look. The other ``tests - n`` tests may be left out when their p exceeds
            ``level``: no threshold of the procedure lies above it.
        level: expected share of false ones among the discoveries, at most.
        tests: how many streams were tested, those left out included.
            They must be independent or depend positively, as signals of one card do.

    Raises:
        ValueError: fewer tests than p-values.
    """
    if len(p) > tests:
        raise ValueError(f"{len(p)} p-values of {tests} tests")
    if not len(p):
        return np.zeros(0, np.bool_)
    ordered = np.sort(p)
    passed = np.flatnonzero(ordered <= level * np.arange(1, len(p) + 1) / tests)
    threshold = ordered[passed[-1]] if len(passed) else -1.0
    return p <= threshold


def normal_tail(z: Floats) -> Floats:
    """P(Z >= z) of the standard normal. For few values: one call each."""
    return np.array([0.5 * math.erfc(value / math.sqrt(2.0)) for value in z.tolist()])


class Tails:
    """How heavy the upper tails of robust z really are, one for each of several signals, learned as data pass.

    Peaks over a threshold with an exponential excess: of ``seen`` samples, ``clusters`` runs went over ``threshold``,
    with a mean excess that is censored at ``censor``. A run counts once, so that one odd card, which stays odd, is one
    observation (declustering; Coles 2001, section 5.3). Everything fades with a half-life of ``memory`` ticks.
    """

    def __init__(self, signals: int, *, threshold: float, censor: float, memory: float = 3600.0) -> None:
        self.threshold, self.censor = threshold, censor
        self._keep = 0.5 ** (1.0 / memory)
        self.counts = np.zeros((4, signals))
        """All that it learned."""
        self._seen, self._clusters, self._below, self._excess = self.counts

    def note(self, signal: int, seen: int, onsets: npt.NDArray[np.float32]) -> None:
        """``onsets``: z of those samples over the threshold whose predecessor was not."""
        excess = np.sort(np.minimum(onsets, self.censor).astype(np.float64)) - self.threshold  # sorted: one sum
        keep = self._keep
        self._seen[signal] = self._seen[signal] * keep + seen
        self._clusters[signal] = self._clusters[signal] * keep + len(excess)
        self._below[signal] = self._below[signal] * keep + np.count_nonzero(onsets < self.censor)
        self._excess[signal] = self._excess[signal] * keep + excess.sum()

    def p(self, signal: npt.NDArray[np.intp], z: Floats) -> Floats:
        """Chance of a sample beyond ``z``: the normal's, or the observed tail's where that is heavier.

        The observed tail is asked from 30 clusters on: below, its mean excess is known to 20 % at best.
        """
        normal = normal_tail(z)
        asked = self._below[signal] >= 30
        scale = self._excess[signal] / np.maximum(self._below[signal], 1.0)
        rate = self._clusters[signal] / np.maximum(self._seen[signal], 1.0)
        over = (z - self.threshold) / np.maximum(scale, 1e-3)
        return np.where(asked, np.maximum(normal, rate * np.exp(-np.maximum(over, 0.0))), normal)

    @property
    def scale(self) -> Floats:
        """Mean excess of each signal; the normal's beyond 3 is 0.28."""
        scale: Floats = self._excess / np.maximum(self._below, 1.0)
        return scale
