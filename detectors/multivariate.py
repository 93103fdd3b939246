"""How unusual is this machine, against its own healthy past, and which signals make it so.

One model a machine (or a cohort that does the same), fitted to a healthy stretch of many signals; then samples are
scored as they come. Four views, each blind where another sees:

- **window**: Mahalanobis distance of the last three samples together: levels, and how signals go with each other;
- **change**: the same of first differences: restlessness at usual levels;
- **others**: each signal's residual from all others (the precision matrix gives the ridge regressions), clipped;
- **nearest**: distance to the nearest of the healthy samples: states that were rare, and not wrong.

Covariances are shrunk (Ledoit and Wolf, J. Multivariate Anal. 88, 2004). A view's distances become comparable by the
median and the 99th percentile of their logarithm over blocks of the healthy stretch that the view was not fitted to.
Each is taken as it is, for what is short, and smoothed by an EWMA, for what lasts; the score is the mean of all. Only
fitting needs scikit-learn. Views and spans were chosen on the ASD data set and on faults planted into SMD's training
parts; what that is worth on SMD's test parts, ``bench/smd.py`` says.

A library, not a registered detector: at an allowance of half a false alarm a machine-day it finds a third of SMD's
events, and 10,000 hosts would raise 5,000 false alarms a day. It ranks stretches of time and names signals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from detectors.base import Floats
from detectors.rows import median
from detectors.spot import Tail, tail

CLIP = 10.0
"""Deviations beyond which a signal is no more unusual: one that breaks must not hide the others."""
LEAST_DEVIATION = 1e-3
"""Share of its range below which a signal is constant: ratios and shares are recorded to 1e-3 or 1e-6."""
WINDOW = 3
NEAREST, EVERY = 5, 4
"""Neighbours, and every fourth healthy sample is remembered: 6,000 of a fortnight of minutes."""
RIDGE = 0.1
"""Added to the diagonal of the correlation matrix: signals that say the same explain each other, not perfectly."""
RESIDUAL_CLIP = 5.0
WHITEN = 0.05
"""Added to each variance before whitening: directions that never vary are not stretched without limit."""


@dataclass(frozen=True, slots=True)
class Scale:
    """What healthy logarithms of a distance look like."""

    middle: float
    width: float

    def __call__(self, logs: Floats) -> Floats:
        scaled: Floats = np.maximum((logs - self.middle) / self.width, 0.0)
        return scaled


def _scale_of(logs: Floats) -> Scale:
    middle = float(np.median(logs))
    return Scale(middle, float(np.quantile(logs, 0.99)) - middle + 0.1)  # 0.1: a tenth is no difference in a distance


class Mahalanobis:
    """Squared distance from the mean of the healthy rows, in their shrunk covariance."""

    def fit(self, x: Floats) -> Mahalanobis:
        from sklearn.covariance import LedoitWolf  # noqa: PLC0415 - two seconds, and only where models are fitted

        model = LedoitWolf().fit(x)
        self._mean, self._precision = model.location_, model.precision_
        return self

    def score(self, x: Floats) -> Floats:
        away = x - self._mean
        squared: Floats = np.einsum("ti,ti->t", away @ self._precision, away)
        return squared


class Others:
    """Sum of the squared residuals of each signal given all others, in units of their healthy 99th percentile."""

    def fit(self, x: Floats) -> Others:
        gram = x.T @ x / len(x)
        precision = np.linalg.inv(gram + RIDGE * np.eye(len(gram)))
        self._to_residual = precision / np.diag(precision)
        self._usual = np.quantile(np.abs(x @ self._to_residual), 0.99, axis=0) + LEAST_DEVIATION
        return self

    def score(self, x: Floats) -> Floats:
        residual = np.minimum(np.abs(x @ self._to_residual) / self._usual, RESIDUAL_CLIP)
        squared: Floats = np.einsum("ti,ti->t", residual, residual)
        return squared


class Nearest:
    """Mean squared distance to the nearest remembered healthy rows, whitened."""

    def fit(self, x: Floats) -> Nearest:
        self._mean = x.mean(axis=0)
        values, vectors = np.linalg.eigh(np.cov(x.T).reshape(x.shape[1], -1))
        self._whiten = vectors / np.sqrt(np.maximum(values, 0.0) + WHITEN)
        self._known = (x[::EVERY] - self._mean) @ self._whiten
        self._squares = np.einsum("ti,ti->t", self._known, self._known)
        return self

    def score(self, x: Floats) -> Floats:
        rows = (x - self._mean) @ self._whiten
        found = np.empty(len(rows))
        near = min(NEAREST, len(self._known))
        for start in range(0, len(rows), 256):  # a distance matrix of a few megabytes at a time
            part = rows[start : start + 256]
            squares = self._squares - 2 * part @ self._known.T + np.einsum("ti,ti->t", part, part)[:, None]
            found[start : start + 256] = np.partition(squares, near - 1, axis=1)[:, :near].mean(axis=1)
        return np.maximum(found, 0.0)


View = Mahalanobis | Others | Nearest
_VIEWS: dict[str, Callable[[], View]] = {
    "window": Mahalanobis,
    "change": Mahalanobis,
    "others": Others,
    "nearest": Nearest,
}


class MachineModel:
    """The model of one machine, in the manner of an estimator: ``fit``, then ``score_samples`` or a ``stream``."""

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config:
        span: float = 15.0
        """Samples of the EWMA: a quarter of an hour of minutes."""
        blocks: int = 5
        """Parts of the healthy stretch, each scored by views fitted to the others."""
        false_alarms: float = 0.5
        """Clusters of high scores that may pass the threshold in a day of healthy data. Fitted to the first half (three
        quarters) of SMD's training parts, the rest of them raised 0.49 (0.12) false alarms a day at this setting."""
        samples_a_day: float = 1440.0

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or self.Config()

    def fit(self, x: Floats) -> MachineModel:
        """Learn from a healthy stretch.

        Args:
            x: [T, M] samples at an even pace; NaN = missing, taken as its last known value.

        Raises:
            ValueError: fewer than ten samples a signal: a covariance of noise.
        """
        if len(x) < 10 * x.shape[1]:
            raise ValueError(f"{len(x)} samples of {x.shape[1]} signals are too few to learn from")
        x = filled(x, np.nan_to_num(median(x.T)))
        self.mean_ = x.mean(axis=0)
        self.deviation_ = np.maximum(x.std(axis=0), LEAST_DEVIATION)
        self.last_ = x[-WINDOW:]
        rows = self._rows(x, x[:1].repeat(WINDOW, axis=0))
        self.views_ = {name: make().fit(rows[name]) for name, make in _VIEWS.items()}
        held_out = self._held_out(rows)
        self.scales_ = {
            name: (_scale_of(_log(d)), _scale_of(_log(ewma(d, self.config.span, d[0])))) for name, d in held_out.items()
        }
        self.start_ = {name: float(d.mean()) for name, d in held_out.items()}
        self.healthy_ = self._combine(held_out, dict(self.start_))[0]
        self.tail_: Tail = tail(self.healthy_)
        self.threshold_ = self.tail_.threshold(self.config.false_alarms / self.config.samples_a_day)
        return self

    def score_samples(self, x: Floats) -> Floats:
        """[T] scores of what follows the healthy stretch; higher = more unusual. Each from its past alone."""
        return self.stream().update(x)

    def stream(self) -> Stream:
        """A fresh scorer for samples as they come."""
        return Stream(self)

    def contributions(self, x: Floats) -> Floats:
        """[T, M] how far each signal is from its healthy mean: squared deviations, clipped. Ranks culprits.

        What lies beyond the clip is told apart by a thousandth of its logarithm.
        """
        away = (filled(x, self.mean_) - self.mean_) / self.deviation_
        share: Floats = np.square(np.clip(away, -CLIP, CLIP)) + 1e-3 * np.log1p(np.abs(away))
        return share

    def _standard(self, x: Floats) -> Floats:
        standard: Floats = np.clip((x - self.mean_) / self.deviation_, -CLIP, CLIP)
        return standard

    def _rows(self, x: Floats, before: Floats) -> dict[str, Floats]:
        """What each view looks at; ``before`` holds the ``WINDOW`` samples ahead of ``x``."""
        x = self._standard(np.concatenate([before, x]))
        now = x[WINDOW:]
        return {
            "window": np.hstack([x[WINDOW - lag : len(x) - lag] for lag in range(WINDOW)]),
            "change": now - x[WINDOW - 1 : -1],
            "others": now,
            "nearest": now,
        }

    def _held_out(self, rows: dict[str, Floats]) -> dict[str, Floats]:
        """Distances of each block to what was learned from the others."""
        length = len(rows["window"])
        distances = {name: np.empty(length) for name in rows}
        edges = np.linspace(0, length, self.config.blocks + 1).astype(int)
        for start, stop in pairwise(edges.tolist()):
            rest = np.r_[0:start, stop:length]
            for name, values in rows.items():
                distances[name][start:stop] = _VIEWS[name]().fit(values[rest]).score(values[start:stop])
        return distances

    def _combine(self, distances: dict[str, Floats], smooth: dict[str, float]) -> tuple[Floats, dict[str, float]]:
        """The score, and where each view's EWMA has got to."""
        total, after = np.zeros(len(distances["window"])), {}
        for name, distance in distances.items():
            slow = ewma(distance, self.config.span, smooth[name])
            after[name] = float(slow[-1]) if len(slow) else smooth[name]
            raw_scale, slow_scale = self.scales_[name]
            total += raw_scale(_log(distance)) + slow_scale(_log(slow))
        return total / (2 * len(distances)), after


class Stream:
    """Scores samples in whatever chunks they come: what it needs of the past is three samples and four averages."""

    def __init__(self, model: MachineModel) -> None:
        self._model = model
        self._before = model.last_
        self._smooth = dict(model.start_)

    def update(self, x: Floats) -> Floats:
        """[T] scores of the next [T, M] samples; a missing value is taken as its last known one."""
        if not len(x):
            return np.zeros(0)
        x = filled(x, self._before[-1])
        rows = self._model._rows(x, self._before)  # noqa: SLF001 - the other half of one thing
        distances = {name: view.score(rows[name]) for name, view in self._model.views_.items()}
        score, self._smooth = self._model._combine(distances, self._smooth)  # noqa: SLF001
        self._before = np.concatenate([self._before, x])[-WINDOW:]
        return score


def filled(x: Floats, first: Floats) -> Floats:
    """Every missing value as the last known one of its signal; ``first`` before any is known."""
    missing = ~np.isfinite(x)
    if not missing.any():
        return x
    padded = np.concatenate([first[None], x])
    known = np.where(np.concatenate([np.zeros((1, x.shape[1]), np.bool_), missing]), 0, np.arange(len(padded))[:, None])
    latest = np.maximum.accumulate(known, axis=0)[1:]
    values: Floats = np.take_along_axis(padded, latest, axis=0)
    return values


def ewma(x: Floats, span: float, before: float) -> Floats:
    """Exponentially weighted mean of the past, weight 2 / (span + 1) for the newest, from ``before`` on."""
    weight = 2.0 / (span + 1.0)
    smooth = np.empty(len(x))
    level = before
    for k, value in enumerate(x.tolist()):
        level += weight * (value - level)
        smooth[k] = level
    return smooth


def _log(distance: Floats) -> Floats:
    logs: Floats = np.log(np.maximum(distance, 1e-9))
    return logs
