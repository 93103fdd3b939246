"""Six views of one machine: what each looks at, and how far from the healthy past it finds a sample.

Each view is fitted to rows [T, K] of a healthy stretch and gives one distance a row; ``MachineModel`` makes the rows
and makes the distances comparable.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mainstay.detectors.base import Floats

LEAST_DEVIATION = 1e-3
"""Share of its range below which a signal is constant: ratios and shares are recorded to 1e-3 or 1e-6."""
NEAREST, EVERY = 5, 4
"""Nearest samples, and every fourth healthy sample is remembered: 6,000 of a fortnight of minutes."""
RIDGE = 0.1
"""Added to the diagonal of the correlation matrix: signals that say the same explain each other, not perfectly."""
RESIDUAL_CLIP = 5.0
WHITEN = 0.05
"""Added to each variance before whitening: directions that never vary are not stretched without limit."""
LEAST_UNREST = 0.05
"""A twentieth more or less movement is no difference, however even a signal was."""
UNREST_CLIP = 10.0


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


class Level:
    """Mean square of the standardized signals: what is far from its usual value, alone or not."""

    def fit(self, x: Floats) -> Level:  # noqa: ARG002 - the rows come standardized
        return self

    def score(self, x: Floats) -> Floats:
        squared: Floats = np.square(x).mean(axis=1)
        return squared


class Unrest:
    """Mean square of how much more than usual each signal moves, in deviations of its log movement.

    Less movement than usual counts as none: an idle machine is not broken, and what freezes the other views see.
    """

    def fit(self, x: Floats) -> Unrest:
        self._mean = x.mean(axis=0)
        self._deviation = np.maximum(x.std(axis=0), LEAST_UNREST)
        return self

    def of_each(self, x: Floats) -> Floats:
        """[T, M] deviations above the usual movement."""
        above: Floats = np.clip((x - self._mean) / self._deviation, 0.0, UNREST_CLIP)
        return above

    def score(self, x: Floats) -> Floats:
        squared: Floats = np.square(self.of_each(x)).mean(axis=1)
        return squared


View = Mahalanobis | Others | Nearest | Level | Unrest
VIEWS: dict[str, Callable[[], View]] = {
    "window": Mahalanobis,
    "change": Mahalanobis,
    "others": Others,
    "nearest": Nearest,
    "level": Level,
    "unrest": Unrest,
}
