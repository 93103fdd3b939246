"""Axes of a plot: round marks, places of values, labels that tell neighbors apart. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

STEPS = (1.0, 2.0, 5.0, 10.0)
"""What a person counts by, times a power of ten."""


@dataclass(frozen=True, slots=True)
class PlotAxis:
    """From values to places along a line."""

    low: float
    high: float
    start: float
    """Where ``low`` lies, in pixels."""
    stop: float
    """Where ``high`` lies; less than ``start`` if the axis points up."""
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """Place of a value, in pixels; on a logarithmic axis the value is above 0."""
        scale: Callable[[float], float] = math.log10 if self.logarithmic else float
        low, high = scale(self.low), scale(self.high)
        share = (scale(value) - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.stop - self.start)


def around(values: Sequence[float], *, least_span: float, most: float | None = None) -> tuple[float, float]:
    """Bounds a little wider than the values, at least ``least_span`` apart, and not beyond ``most``."""
    low, high = min(values), max(values)
    missing = max(0.0, least_span - (high - low)) / 2.0
    margin = 0.05 * (high - low)
    low, high = low - missing - margin, high + missing + margin
    if most is not None and high > most:
        low, high = low - (high - most) * (missing > 0.0), most
    return low, high


def marks(low: float, high: float, most: int) -> list[float]:
    """At most ``most`` + 1 round values from ``low`` to ``high``."""
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * next(factor for factor in STEPS if factor * power >= raw * (1.0 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def labels(values: Sequence[float]) -> list[str]:
    """The shortest numbers that tell all values apart."""
    for decimals in range(7):
        told = [f"{value:,.{decimals}f}" for value in values]
        exact = all(math.isclose(float(f"{v:.{decimals}f}"), v, rel_tol=1e-6, abs_tol=1e-9) for v in values)
        if exact and len(set(told)) == len(told):
            return told
    return [f"{value:g}" for value in values]


def spread(values: Sequence[float], axis: PlotAxis, apart: float) -> list[float]:
    """Of values on an axis those that can carry a label: each at least ``apart`` pixels from the one before."""
    kept: list[float] = []
    for value in sorted(values):
        if not kept or abs(axis.at(value) - axis.at(kept[-1])) >= apart:
            kept.append(value)
    return kept
