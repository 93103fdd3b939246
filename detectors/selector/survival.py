"""Time to a node's next incident: Cox proportional hazards, and the two models that know nothing of the node.

All three have one manner: ``fit(x, durations, observed, entry)`` on times at risk, and
``conditional(x, survived, horizon)``, the chance of an incident within the coming hours given survival so far.

Sources: Cox (1972); partial likelihood with left truncation as in Klein & Moeschberger, "Survival Analysis", §8 and §9;
ties by Efron (1977); Kaplan & Meier (1958).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt

from mainstay.detectors.selector.hazard import CumulativeHazard, Floats, RiskSets, Spells, cumulative, spells


@dataclass
class SurvivalModel(ABC):
    """What the Selector asks of a model. ``x`` is [row, covariate], times are hours on the row's own clock."""

    hazard_: CumulativeHazard | None = field(default=None, init=False, repr=False)

    def fit(
        self, x: npt.ArrayLike, durations: npt.ArrayLike, observed: npt.ArrayLike, entry: npt.ArrayLike | None = None
    ) -> Self:
        """Learn.

        Raises:
            ValueError: the rows are not of one shape, or hold what is no number or no time.
            NotEnoughError: there is nothing to learn from.
        """
        self.hazard_ = self._learn(x, spells(durations, observed, entry))
        return self

    @abstractmethod
    def _learn(self, x: npt.ArrayLike, data: Spells) -> CumulativeHazard:
        """The hazard of a row of relative hazard 1."""

    def relative(self, x: npt.ArrayLike) -> Floats:
        """Hazard of each row relative to the baseline."""
        return np.ones(len(np.asarray(x)))

    def _hazard(self) -> CumulativeHazard:
        if self.hazard_ is None:
            raise ValueError(f"{type(self).__name__} was not fitted")
        return self.hazard_

    def conditional(self, x: npt.ArrayLike, survived: npt.ArrayLike, horizon: npt.ArrayLike) -> Floats:
        """P(incident within the next ``horizon`` hours | none in the first ``survived``), one a row of ``x``."""
        start = np.asarray(survived, np.float64)
        grown = self._hazard().at(start + np.asarray(horizon, np.float64)) - self._hazard().at(start)
        return np.asarray(-np.expm1(-grown * self.relative(x)), np.float64)


class Exponential(SurvivalModel):
    """One constant hazard for all: incidents per hour at risk."""

    def _learn(self, _x: npt.ArrayLike, data: Spells) -> CumulativeHazard:
        rate = data.events / float(np.sum(data.stop - data.entry))
        return CumulativeHazard(np.zeros(1), np.zeros(1), rate)


class KaplanMeier(SurvivalModel):
    """One survival curve for all, by product limit; exact at every incident.

    Where all that were left failed at once the curve would fall to zero for ever; the step counts as Nelson-Aalen's.
    """

    def _learn(self, _x: npt.ArrayLike, data: Spells) -> CumulativeHazard:
        weights = np.ones(len(data.stop))
        times, deaths = np.unique(data.stop[data.observed], return_counts=True)
        share = deaths / RiskSets(data, times).sums(weights)
        steps = np.where(share < 1, -np.log1p(-np.minimum(share, 1 - 1e-12)), share)
        return cumulative(data, times, steps, weights, piece=1)


@dataclass
class Cox(SurvivalModel):
    """Proportional hazards: a baseline of any shape, multiplied by exp(x · beta).

    Newton-Raphson on the log partial likelihood with a Gaussian prior on the coefficients of standardized covariates,
    which keeps them finite when a covariate separates the incidents and when two say the same. Values beyond those
    seen in training count as the last one seen.
    """

    penalty: float = 1.0
    """Weight of the prior: 1 is one standard deviation of hazard ratio e per standard deviation of a covariate. It
    weighs as much as a few incidents."""
    piece: int = 10
    """Incidents between two knots of the baseline; 1: a knot at every one."""
    iterations: int = 50
    coef_: Floats | None = field(default=None, init=False, repr=False)
    """[covariate] log hazard ratio per unit."""
    log_likelihood_: float = field(default=float("nan"), init=False)
    """Log partial likelihood, without the prior."""
    _range: Floats | None = field(default=None, init=False, repr=False)
    _mean: Floats | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.penalty >= 0 or self.piece < 1 or self.iterations < 1:
            raise ValueError("penalty must be at least 0, piece and iterations at least 1")

    def _learn(self, x: npt.ArrayLike, data: Spells) -> CumulativeHazard:
        rows = _matrix(x, len(data.stop))
        mean, spread = rows.mean(axis=0), rows.std(axis=0)
        spread = np.where(spread > 1e-9 * (1 + np.abs(mean)), spread, np.inf)  # a constant says nothing
        likelihood = _Partial(data, (rows - mean) / spread)
        beta = self._climb(likelihood, rows.shape[1])
        self.log_likelihood_ = likelihood.value(beta)
        self.coef_, self._mean = beta / spread, mean
        self._range = np.stack([rows.min(axis=0), rows.max(axis=0)])
        weights = likelihood.relative(beta)
        return cumulative(data, likelihood.times, 1.0 / likelihood.at_risk(weights), weights, self.piece)

    def _climb(self, likelihood: _Partial, p: int) -> Floats:
        beta = np.zeros(p)
        best = likelihood.value(beta)
        for _ in range(self.iterations):
            gradient, information = likelihood.slopes(beta)
            gradient -= self.penalty * beta
            step = np.linalg.lstsq(information + self.penalty * np.eye(p), gradient, rcond=None)[0]
            for _ in range(30):  # halve until it climbs
                value = likelihood.value(beta + step) - 0.5 * self.penalty * float(np.sum((beta + step) ** 2))
                if value >= best - 1e-12 * abs(best):
                    break
                step /= 2
            else:
                break
            beta, gained, best = beta + step, value - best, value
            if gained < 1e-10 * (1 + abs(best)):
                break
        return beta

    def relative(self, x: npt.ArrayLike) -> Floats:
        """Hazard of each row relative to that of the mean covariates of the training rows."""
        if self.coef_ is None or self._range is None or self._mean is None:
            raise ValueError("Cox was not fitted")
        given = _matrix(x, None)
        if given.shape[1] != len(self.coef_):
            raise ValueError(f"x has {given.shape[1]} covariates, the model was fitted on {len(self.coef_)}")
        inside = np.clip(given, self._range[0], self._range[1])
        return np.asarray(np.exp((inside - self._mean) @ self.coef_), np.float64)


class _Partial:
    """Log partial likelihood of standardized covariates z [row, covariate], its slope and information.

    Sums over risk sets are differences of two running sums, by stop and by entry, so each costs one pass. With Efron's
    ties the k-th of d incidents at one time sees (k-1)/d of their weight gone.
    """

    def __init__(self, data: Spells, z: Floats) -> None:
        order = np.argsort(data.stop[data.observed], kind="stable")
        self.z = z
        self.dead = np.flatnonzero(data.observed)[order]
        self.times = data.stop[self.dead]
        _, self.first, inverse, deaths = np.unique(
            self.times, return_index=True, return_inverse=True, return_counts=True
        )
        self.group = inverse.reshape(-1)
        self.sets = RiskSets(data, self.times[self.first])
        rank = np.arange(len(self.times)) - self.first[self.group]
        self.gone = rank / deaths[self.group]

    def relative(self, beta: Floats) -> Floats:
        return np.asarray(np.exp(np.clip(self.z @ beta, -50.0, 50.0)), np.float64)

    def at_risk(self, weights: Floats) -> Floats:
        """Weight at risk at each incident [event], after Efron's share of its ties."""
        tied = np.add.reduceat(weights[self.dead], self.first)
        whole = self.sets.sums(weights)
        return np.asarray(whole[self.group] - self.gone * tied[self.group], np.float64)

    def value(self, beta: Floats) -> float:
        weights = self.relative(beta)
        return float(np.sum(np.log(weights[self.dead]) - np.log(self.at_risk(weights))))

    def slopes(self, beta: Floats) -> tuple[Floats, Floats]:
        """Gradient [covariate] and information [covariate, covariate]."""
        weights = self.relative(beta)
        p = self.z.shape[1]
        total = self.at_risk(weights)
        means = np.stack([self.at_risk(weights * self.z[:, j]) / total for j in range(p)], axis=1)
        gradient = np.sum(self.z[self.dead] - means, axis=0)
        information = -means.T @ means
        for j in range(p):
            for k in range(j, p):
                second = float(np.sum(self.at_risk(weights * self.z[:, j] * self.z[:, k]) / total))
                information[j, k] += second
                information[k, j] = information[j, k]
        return np.asarray(gradient, np.float64), np.asarray(information, np.float64)


def _matrix(x: npt.ArrayLike, rows: int | None) -> Floats:
    found = np.asarray(x, np.float64)
    if found.ndim != 2 or found.shape[1] == 0 or (rows is not None and len(found) != rows):
        wanted = "[row, covariate]" if rows is None else f"[{rows}, covariate]"
        raise ValueError(f"x has shape {found.shape}, wanted {wanted} with at least one covariate")
    bad = np.argwhere(~np.isfinite(found))
    if bad.size:
        raise ValueError(f"x[{bad[0][0]}, {bad[0][1]}] is not a finite number")
    return found
