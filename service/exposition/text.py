"""Prometheus text, written in columns: one family at a time, a line a device, the labels made once for all families.

A client library makes objects for every sample, which at 600,000 of them costs seconds; this costs a format each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mainstay.probes.signals import WIDE_MISSING
from mainstay.service.exposition.table import Exposed

_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def labels(pairs: Mapping[str, str]) -> str:
    """``{name="value",…}`` with values escaped."""
    return "{" + ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in pairs.items()) + "}"


def head(name: str, kind: str, about: str) -> str:
    return f"# HELP {name} {about.translate(_ESCAPES)}\n# TYPE {name} {kind}\n"


def family(name: str, kind: str, about: str, lines: Iterable[tuple[str, float]]) -> str:
    """A family of few series: labels and value each; empty when there are none."""
    told = "".join([f"{name}{where} {_number(value)}\n" for where, value in lines])
    return head(name, kind, about) + told if told else ""


def _number(value: float) -> str:
    return repr(value) if value % 1 else str(int(value))


def gauges(metric: Exposed, where: Sequence[str], values: NDArray[np.float32]) -> str:
    """A family with a line for every device whose value is known.

    Args:
        metric: what it is.
        where: [device] labels.
        values: [device] NaN where unknown.
    """
    known = np.flatnonzero(np.isfinite(values))
    pairs = zip(known.tolist(), values[known].tolist(), strict=True)
    # Seven digits are what a float32 holds.
    told = "".join([f"{metric.name}{where[i]} {value:.7g}\n" for i, value in pairs])
    return head(metric.name, metric.kind, metric.about) + told if told else ""


def counters(metric: Exposed, where: Sequence[str], values: NDArray[np.int64]) -> str:
    """The same for totals: ``values`` is [device], ``WIDE_MISSING`` where unknown; lines are in the metric's unit."""
    known = np.flatnonzero(values != WIDE_MISSING)
    totals: list[float] = values[known].tolist() if metric.divisor == 1 else (values[known] / metric.divisor).tolist()
    pairs = zip(known.tolist(), totals, strict=True)
    told = "".join([f"{metric.name}{where[i]} {value}\n" for i, value in pairs])
    return head(metric.name, metric.kind, metric.about) + told if told else ""
