"""How unusual is this machine, against its own healthy past, and which signals make it so.

One model a machine (or a cohort that does the same), fitted to a healthy stretch of many signals, each a share of its
range (0 to 1 or about); then samples are scored as they come. Six views, each blind where another sees:

- **window**: Mahalanobis distance of the last three samples together: levels, and how signals go with each other;
- **change**: the same of first differences;
- **others**: each signal's residual from all others (the precision matrix gives the ridge regressions), clipped;
- **nearest**: distance to the nearest of the healthy samples: states that were rare, and not wrong;
- **level**: mean clipped square of the standardized signals: large shifts that keep the usual proportions;
- **unrest**: how much more than usual each signal moves, by the logarithm of an EWMA of its absolute differences.

Covariances are shrunk (Ledoit and Wolf, J. Multivariate Anal. 88, 2004). A view's distances become comparable by the
median and the 99th percentile of their logarithm over blocks of the healthy stretch that the view was not fitted to.
Each is taken as it is, for what is short, and smoothed by an EWMA, for what lasts; the mean of all is the **score**,
which ranks stretches of time. **Alarms** listen to unrest alone: a level that drifts for days outlasts every
threshold that half a false alarm a day allows, while unrest comes back to rest at the new level. Only fitting needs
scikit-learn. ``bench/machines.py`` compares it with simpler scores on machines that had no part in the choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from bench.lib_multivariate_views import LEAST_DEVIATION, VIEWS, Unrest
from mainstay.detectors.base import Floats
from mainstay.detectors.entity_state import median
from mainstay.detectors.statistics.spot import tail

CLIP = 10.0
"""Deviations beyond which a signal is no more unusual: one that breaks must not hide the others."""
WINDOW = 3
LEAST_MOVE = 3e-3
"""Movement a sample that is none: three steps of the coarsest recording."""


def status(score: Floats) -> Floats:
    """[T] the second largest of the last three: at or over a threshold exactly where two of three samples are.

    Its tail, not that of the score, says how often an alarm that waits for the second sample is raised.
    """
    padded = np.concatenate([np.full(2, -np.inf), score])
    middle: Floats = np.median(np.stack([padded[:-2], padded[1:-1], padded[2:]]), axis=0)
    if len(middle) > 1:
        middle[0] = middle[1]  # one sample never stands; the next says as much
    return middle


@dataclass(frozen=True, slots=True)
class DistanceScale:
    """What healthy logarithms of a distance look like."""

    middle: float
    width: float

    def __call__(self, logs: Floats) -> Floats:
        scaled: Floats = np.maximum((logs - self.middle) / self.width, 0.0)
        return scaled


def _scale_of(logs: Floats) -> DistanceScale:
    middle = float(np.median(logs))
    return DistanceScale(
        middle, float(np.quantile(logs, 0.99)) - middle + 0.1
    )  # 0.1: a tenth is no difference in a distance


@dataclass(frozen=True, slots=True)
class MachineScores:
    """What a machine's samples amount to, [T] each."""

    rank: Floats
    """Mean of all views, in healthy 99th percentiles: which stretches of time are the most unusual."""
    unrest: Floats
    """Mean square of movement above the usual: two of three samples at ``alarm_threshold_`` are an alarm."""


@dataclass(frozen=True, slots=True)
class _Past:
    """All that scoring needs of what came before."""

    before: Floats
    """[WINDOW, M] the latest samples."""
    moving: Floats
    """[M] EWMA of absolute differences."""
    smooth: dict[str, float]
    """EWMA of each view's distance."""


class MachineModel:
    """The model of one machine, in the manner of an estimator: ``fit``, then ``score_samples`` or a ``stream``."""

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config:
        span: float = 15.0
        """Samples of the EWMA of distances: a quarter of an hour of minutes."""
        unrest_span: float = 8.0
        """Samples of the EWMA of movement; 5 to 15 do alike on ASD."""
        blocks: int = 5
        """Parts of the healthy stretch, each scored by views fitted to the others."""
        false_alarms: float = 0.5
        """Alarms that a day of healthy data may raise, counted as they would be: clusters of two in three samples."""
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
        usual = np.abs(np.diff(x, axis=0)).mean(axis=0)
        rows, moving = self._rows(x, _Past(x[:1].repeat(WINDOW, axis=0), usual, {}))
        self.views_ = {name: make().fit(rows[name]) for name, make in VIEWS.items()}
        self.unrest_ = Unrest().fit(rows["unrest"])
        held_out = self._held_out(rows)
        self.scales_ = {
            name: (_scale_of(_log(d)), _scale_of(_log(ewma(d, self.config.span, d[0])))) for name, d in held_out.items()
        }
        self.past_ = _Past(x[-WINDOW:], moving, {name: float(d.mean()) for name, d in held_out.items()})
        self.healthy_ = MachineScores(self._combine(held_out, self.past_.smooth)[0], held_out["unrest"])
        self.threshold_ = self._threshold(self.healthy_.rank)
        self.alarm_threshold_ = self._threshold(self.healthy_.unrest)
        return self

    def score_samples(self, x: Floats) -> Floats:
        """[T] scores of what follows the healthy stretch; higher = more unusual. Each from its past alone."""
        return self.stream().update(x).rank

    def stream(self) -> ScoreStream:
        """A fresh scorer for samples as they come."""
        return ScoreStream(self)

    def contributions(self, x: Floats) -> Floats:
        """[T, M] what each signal adds: squared deviations of its level, clipped, and of its movement. Ranks culprits.

        ``x`` follows the healthy stretch. Values beyond the clip differ by a thousandth of its logarithm.
        """
        x = filled(x, self.past_.before[-1])
        away = (x - self.mean_) / self.deviation_
        level = np.square(np.clip(away, -CLIP, CLIP)) + 1e-3 * np.log1p(np.abs(away))
        share: Floats = level + np.square(self.unrest_.of_each(self._rows(x, self.past_)[0]["unrest"]))
        return share

    def _threshold(self, healthy: Floats) -> float:
        return tail(status(healthy)).threshold(self.config.false_alarms / self.config.samples_a_day)

    def _standard(self, x: Floats) -> Floats:
        standard: Floats = np.clip((x - self.mean_) / self.deviation_, -CLIP, CLIP)
        return standard

    def _rows(self, x: Floats, past: _Past) -> tuple[dict[str, Floats], Floats]:
        """What each view looks at, and the last movement."""
        x = np.concatenate([past.before, x])
        moving = ewma(np.abs(np.diff(x[WINDOW - 1 :], axis=0)), self.config.unrest_span, past.moving)
        x = self._standard(x)
        now = x[WINDOW:]
        rows = {
            "window": np.hstack([x[WINDOW - lag : len(x) - lag] for lag in range(WINDOW)]),
            "change": now - x[WINDOW - 1 : -1],
            "others": now,
            "nearest": now,
            "level": now,
            "unrest": np.log(moving + LEAST_MOVE),
        }
        return rows, moving[-1]

    def _held_out(self, rows: dict[str, Floats]) -> dict[str, Floats]:
        """Distances of each block to what was learned from the others."""
        length = len(rows["window"])
        distances = {name: np.empty(length) for name in rows}
        edges = np.linspace(0, length, self.config.blocks + 1).astype(int)
        for start, stop in pairwise(edges.tolist()):
            rest = np.r_[0:start, stop:length]
            for name, values in rows.items():
                distances[name][start:stop] = VIEWS[name]().fit(values[rest]).score(values[start:stop])
        return distances

    def _combine(self, distances: dict[str, Floats], smooth: dict[str, float]) -> tuple[Floats, dict[str, float]]:
        """The rank, and where each view's EWMA has got to."""
        total, after = np.zeros(len(distances["window"])), {}
        for name, distance in distances.items():
            slow = ewma(distance, self.config.span, smooth[name])
            after[name] = float(slow[-1])
            raw_scale, slow_scale = self.scales_[name]
            total += raw_scale(_log(distance)) + slow_scale(_log(slow))
        return total / (2 * len(distances)), after


class ScoreStream:
    """Scores samples in chunks of any size: of the past it keeps three samples and some averages."""

    def __init__(self, model: MachineModel) -> None:
        self._model = model
        self._past = model.past_

    def update(self, x: Floats) -> MachineScores:
        """Scores of the next [T, M] samples; a missing value is taken as its last known one."""
        if not len(x):
            return MachineScores(np.zeros(0), np.zeros(0))
        model, past = self._model, self._past
        x = filled(x, past.before[-1])
        rows, moving = model._rows(x, past)  # noqa: SLF001 - the other half of one thing
        distances = {name: view.score(rows[name]) for name, view in model.views_.items()}
        rank, smooth = model._combine(distances, past.smooth)  # noqa: SLF001
        self._past = _Past(np.concatenate([past.before, x])[-WINDOW:], moving, smooth)
        return MachineScores(rank, distances["unrest"])


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


def ewma(x: Floats, span: float, before: Floats | float) -> Floats:
    """Exponentially weighted mean of the past along the first axis, weight 2 / (span + 1) for the newest."""
    weight = 2.0 / (span + 1.0)
    smooth = np.empty_like(x)
    level = before
    for k, value in enumerate(x.tolist() if x.ndim == 1 else x):
        level = level + weight * (value - level)
        smooth[k] = level
    return smooth


def _log(distance: Floats) -> Floats:
    logs: Floats = np.log(np.maximum(distance, 1e-9))
    return logs
