"""How unusual a node is for itself: many signals together, many nodes at once, learned and scored as samples come.

Two views, of which each is blind where the other sees:

- **level**: Mahalanobis distance from the node's usual state: signals far from usual, or unlike each other. The
  correlation matrix is shrunk by OAS (Chen et al., IEEE Trans. Signal Process. 58, 2010): closed form, so that a
  thousand nodes cost one inversion of a stack of matrices.
- **unrest**: how much more than usual each signal moves. A level that stays comes to rest; a broken node often does
  not.

A sample is scored by what came before it, so that scores are those of data that the model was not fitted to. Means,
deviations, and correlations are plain averages of a first stretch, the reference (phase I of a control chart; Woodall,
J. Qual. Technol. 32, 2000). After it each sample counts thirty times less than in an average that long: a slow drift is
learned, while anomalies that come again hardly are. ``node_anomalies`` makes the two views comparable.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mainstay.detectors.entity_state import EntityState

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

CLIP = 10.0
"""Deviations that one signal shows at most, and that a sample teaches at most."""
SPAN = 8.0
"""Samples of the average of movement."""
LEAST_UNREST = 0.05
"""A twentieth more or less movement is no difference, however even a signal was."""
LEAST_SPREAD = 0.1
"""The same of the cube root of a squared distance."""
REFRESH = 10
"""Samples between two inversions of a node's correlations; each sample has its share of the nodes."""
SLOWER = 30.0
"""After its reference, how many times longer a node's memory is: 10 to 30 do alike on ASD."""
VIEWS = ("level", "unrest")


class NodeModels:
    """One model a node in ``rows``, whose last axis is the nodes."""

    def __init__(self, least: Floats, *, memory: float, learned: int) -> None:
        """``least`` [S]: deviation below which a signal is constant.

        ``memory``: samples of the reference; ``learned``: of them before the first score.
        """
        self.least, self.memory, self.learned = least[:, None], memory, learned
        self.samples = 0

    def declare(self, rows: EntityState) -> EntityState:
        signals = (len(self.least),)
        rows.field("age", 0, np.int32).field("before", np.nan, lead=signals).field("moving", np.nan, lead=signals)
        for name in ("mean", "variance", "log_mean", "log_variance"):
            rows.field(name, 0.0, lead=signals)
        for name in ("correlation", "precision"):
            rows.field(name, 0.0, lead=signals * 2)
        views = (len(VIEWS),)
        return rows.field("view_mean", 0.0, lead=views).field("view_variance", 0.0, lead=views)

    def update(self, rows: EntityState, x: Floats, stays: Bools | bool = False) -> Floats:
        """Score a sample of all nodes by their past, and learn from it.

        Args:
            rows: the state, declared here.
            x: [S, E]; NaN = missing: no evidence, it counts as usual. A node without any signal learns nothing.
            stays: [E] nodes whose change has come to stay: they learn no slower than in their reference.

        Returns:
            [view, E] deviations of each view's squared distance above the node's usual one, of cube roots (Wilson and
            Hilferty, PNAS 17, 1931: those of chi-square are nearly normal); NaN where a node is unknown or young.
        """
        seen = np.isfinite(x).any(axis=0)
        last = np.where(stays, 1.0, 1.0 / SLOWER) / self.memory
        rate = np.where(rows["age"] < self.memory, 1.0 / (rows["age"] + 1.0), last) * seen
        rows["precision"][..., rows["age"] == 0] = np.eye(len(self.least))[..., None]
        turn = np.arange(self.samples % REFRESH, len(rows.entities), REFRESH)
        self._invert(rows, turn[rows["age"][turn] >= REFRESH])
        self.samples += 1
        z = self._level(rows, x, rate)
        up = self._unrest(rows, x, rate)
        distances = np.stack([self._squared(rows, z), np.square(up).sum(axis=0) / _known(rows)])
        rows["correlation"] += rate * (z[:, None] * z[None] - rows["correlation"])
        scores = self._scaled(rows, np.cbrt(distances), rate)
        scores[:, ~seen | (rows["age"] < self.learned)] = np.nan
        rows["age"] = np.minimum(rows["age"] + seen, 2**30)
        return scores

    def culprits(self, rows: EntityState, x: Floats, row: int) -> Floats:
        """[S] what each signal of a node adds to both views in ``x`` [S], the latest sample.

        For the level: the squared deviation of a signal from what all others let expect of it.
        """
        deviation, precision = self._deviation(rows)[:, row], rows["precision"][:, :, row]
        z = np.clip(np.nan_to_num((x - rows["mean"][:, row]) / deviation), -CLIP, CLIP)
        moved = np.log(rows["moving"][:, row] + self.least[:, 0]) - rows["log_mean"][:, row]
        up = np.nan_to_num(moved) / np.maximum(np.sqrt(rows["log_variance"][:, row]), LEAST_UNREST)
        parts: Floats = np.square(precision @ z) / np.diag(precision) + np.square(np.clip(up, 0.0, CLIP))
        return parts

    def _deviation(self, rows: EntityState) -> Floats:
        deviation: Floats = np.maximum(np.sqrt(rows["variance"]), self.least)
        return deviation

    def _level(self, rows: EntityState, x: Floats, rate: Floats) -> Floats:
        """[S, E] clipped deviations from the usual level, which learns."""
        young = rows["age"] == 0
        rows["mean"][:, young] = np.nan_to_num(x[:, young])
        away, deviation = np.nan_to_num(x - rows["mean"]), self._deviation(rows)
        _learn(
            rows["mean"], rows["variance"], away, deviation, rate=np.where(np.isfinite(x), rate, 0.0), age=rows["age"]
        )
        return np.asarray(np.clip(away / deviation, -CLIP, CLIP))

    def _unrest(self, rows: EntityState, x: Floats, rate: Floats) -> Floats:
        """[S, E] deviations above the usual logarithm of movement, which learns; less movement is none."""
        moved = np.abs(x - rows["before"])
        known = np.isfinite(moved)
        moving = np.where(np.isfinite(rows["moving"]), rows["moving"], moved)
        moving = np.where(known, moving + 2.0 / (SPAN + 1.0) * (moved - moving), moving)
        rows["moving"] = moving
        rows["before"] = np.where(np.isfinite(x), x, rows["before"])
        away = np.nan_to_num(np.log(moving + self.least) - rows["log_mean"])
        first = known & (rows["log_variance"] == 0.0) & (rows["log_mean"] == 0.0)
        rows["log_mean"] = np.where(first, away, rows["log_mean"])
        away = np.where(first | ~known, 0.0, away)
        deviation = np.maximum(np.sqrt(rows["log_variance"]), LEAST_UNREST)
        _learn(
            rows["log_mean"], rows["log_variance"], away, deviation, rate=np.where(known, rate, 0.0), age=rows["age"]
        )
        return np.asarray(np.clip(away / deviation, 0.0, CLIP))

    def _invert(self, rows: EntityState, which: npt.NDArray[np.intp]) -> None:
        """Precision of the correlations, shrunk by OAS; [S, S, E]."""
        size = _known(rows)[which]
        sample = np.moveaxis(rows["correlation"][..., which], -1, 0)
        mean = np.trace(sample, axis1=1, axis2=2) / size
        square = np.square(sample).sum(axis=(1, 2)) / size**2
        n = np.minimum(rows["age"][which], self.memory)
        with np.errstate(invalid="ignore", divide="ignore"):
            shrink = (square + mean**2) / ((n + 1.0) * (square - mean**2 / size))
        shrink = np.where(np.isfinite(shrink), np.clip(shrink, 0.0, 1.0), 1.0)[:, None, None]
        target = (mean + (mean == 0.0))[:, None, None] * np.eye(len(self.least))
        inverse = np.linalg.inv((1.0 - shrink) * sample + shrink * target + 1e-6 * target)
        rows["precision"][..., which] = np.moveaxis(inverse, 0, -1)

    def _squared(self, rows: EntityState, z: Floats) -> Floats:
        return np.asarray((z * np.einsum("ije,je->ie", rows["precision"], z)).sum(axis=0))

    def _scaled(self, rows: EntityState, roots: Floats, rate: Floats) -> Floats:
        """[view, E] in the node's own deviations, which are those of its reference: later ones hold anomalies."""
        away = roots - rows["view_mean"]
        deviation = np.maximum(np.sqrt(rows["view_variance"]), LEAST_SPREAD)
        first = np.where(rows["age"] < self.memory, rate, 0.0)
        _learn(rows["view_mean"], rows["view_variance"], away, deviation, rate=first, age=rows["age"])
        return np.asarray(away / deviation)


def _known(rows: EntityState) -> Floats:
    """[E] signals that a node ever had: one that it lacks, as those of GPUs, makes it neither calmer nor more alike."""
    known: Floats = np.maximum(np.isfinite(rows["before"]).sum(axis=0), 1).astype(np.float64)
    return known


def _learn(mean: Floats, variance: Floats, away: Floats, deviation: Floats, *, rate: Floats, age: Floats) -> None:
    """Move mean and variance towards a sample, in place; once a deviation is known, a far one counts as a near one."""
    limit = np.where(age < 30, np.inf, CLIP) * deviation  # thirty samples: a deviation within a fifth
    near = np.clip(away, -limit, limit)
    mean += rate * near
    variance += rate * ((1.0 - rate) * near * near - variance)
