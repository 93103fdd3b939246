"""Bayesian online change-point detection (Adams & MacKay 2007, arXiv 0710.3742), many series at once.

The posterior over the run length (samples since the last change) is kept for run lengths up to ``longest``; the mass of
longer ones stays in the last place. Within a run samples are normal with unknown mean and precision (Normal-Gamma), so
that the predictive is Student's t. In a long run that is nearly normal, so that one gross outlier begins a new run: the
caller drops spikes first, and standardizes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mainstay.detectors.base import Floats


def _log_gamma(x: Floats) -> Floats:
    return np.array([math.lgamma(value) for value in x.tolist()])


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """Of one run's mean and precision, in the caller's standard units."""

    mean: float = 0.0
    kappa: float = 0.01
    """Weight of the mean, in samples: a new level may lie ten deviations away."""
    alpha: float = 2.0
    beta: float = 2.0
    """Precision about alpha / beta = 1, worth four samples."""
    hazard: float = 1.0 / 500.0
    """Chance of a change at each sample: a healthy job changes its pace a few times a day."""


class Bocpd:
    """Run-length posteriors of ``series`` series.

    Args:
        series: how many.
        longest: run lengths told apart; 0 to ``longest - 1``, the last stands for all longer ones.
        prior: of each run.
    """

    def __init__(self, series: int = 1, longest: int = 200, prior: Prior | None = None) -> None:
        self.prior = prior or Prior()
        self.longest = longest
        shape = (series, longest)
        self._log_mass = np.full(shape, -np.inf)
        self._log_mass[:, 0] = 0.0
        self._mean = np.full(shape, self.prior.mean)
        self._beta = np.full(shape, self.prior.beta)
        count = np.arange(longest, dtype=np.float64)
        self._kappa, self._alpha = self.prior.kappa + count, self.prior.alpha + count / 2
        self._constant = _log_gamma(self._alpha + 0.5) - _log_gamma(self._alpha) - 0.5 * np.log(2 * np.pi * self._alpha)

    @property
    def mass(self) -> Floats:
        """[series, longest] posterior of the run length; rows sum to one."""
        value: Floats = np.exp(self._log_mass)
        return value

    def update(self, x: Floats) -> None:
        """Take one sample of each series; NaN leaves that series as it is.

        Args:
            x: [series]
        """
        known = np.isfinite(x)
        if not known.any():
            return
        value = x[known, None]
        mean, beta, mass = self._mean[known], self._beta[known], self._log_mass[known]
        grown = mass + self._predictive(value, mean, beta) + np.log1p(-self.prior.hazard)
        start = _log_sum(mass) + self._predictive(value, mean, beta)[:, 0] + np.log(self.prior.hazard)
        after = np.empty_like(grown)
        after[:, 0] = -np.inf  # a sample belongs to the run that it starts, so that a run holds one at least
        after[:, 1:] = grown[:, :-1]
        after[:, 1] = start  # place 0 holds the prior, whose density the first sample of a run has
        after[:, -1] = np.logaddexp(after[:, -1], grown[:, -1])
        self._log_mass[known] = after - _log_sum(after)[:, None]
        self._learn(known, value, mean, beta)

    def _predictive(self, value: Floats, mean: Floats, beta: Floats) -> Floats:
        alpha, kappa, constant = self._alpha, self._kappa, self._constant
        scale = beta * (kappa + 1) / (alpha * kappa)
        density: Floats = (
            constant - 0.5 * np.log(scale) - (alpha + 0.5) * np.log1p((value - mean) ** 2 / (2 * alpha * scale))
        )
        return density

    def _learn(self, known: np.ndarray, value: Floats, mean: Floats, beta: Floats) -> None:
        """Every run takes the sample in and grows by one; the longest forgets as slowly as it remembers."""
        grown_beta = beta + self._kappa * (value - mean) ** 2 / (2 * (self._kappa + 1))
        grown_mean = (self._kappa * mean + value) / (self._kappa + 1)
        last_mean, last_beta = grown_mean[:, -1].copy(), grown_beta[:, -1] * self._alpha[-1] / (self._alpha[-1] + 0.5)
        new_mean, new_beta = np.empty_like(mean), np.empty_like(beta)
        new_mean[:, 0], new_beta[:, 0] = self.prior.mean, self.prior.beta
        new_mean[:, 1:], new_beta[:, 1:] = grown_mean[:, :-1], grown_beta[:, :-1]
        new_mean[:, -1], new_beta[:, -1] = last_mean, last_beta
        self._mean[known], self._beta[known] = new_mean, new_beta

    def run_length(self) -> np.ndarray:
        """[series] most probable run length, in samples."""
        return np.asarray(np.argmax(self._log_mass, axis=1))

    def changed_within(self, samples: int) -> Floats:
        """[series] probability that the last change came within so many samples."""
        value: Floats = self.mass[:, : samples + 1].sum(axis=1)
        return value


def _log_sum(x: Floats) -> Floats:
    top = x.max(axis=1, keepdims=True)
    total: Floats = (top + np.log(np.exp(x - top).sum(axis=1, keepdims=True)))[:, 0]
    return total
