"""Baselines: what is normal for each metric, looked up as SuperBench does, read, generated and written.

A value that is missing, zero or no number is no baseline: SuperBench aborts the whole fleet's diagnosis on it, here
the metric is UNKNOWN and the rest is judged. Generation: ``analyzer/baseline_generation.py``, algorithms ``mean`` and
``fix_threshold``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from mainstay.detectors.base import Floats
from mainstay.detectors.cli_errors import InputError
from mainstay.detectors.superbench.names import select, shown, stripped, without_rank
from mainstay.detectors.superbench.results import Results
from mainstay.detectors.superbench.rules import Function, RuleFile, SuperBenchRule

Baseline = Mapping[str, object]

EXACT: Final = "deterministic"
"""SuperBench's mark, in the name, of metrics that must agree to the last bit: fingerprints and their settings."""


def read_baseline(text: str | bytes) -> dict[str, object]:
    """A baseline file: metric -> number.

    Raises:
        InputError: no JSON object. Single bad values are kept: they are findings, see :func:`why_unusable`.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"no JSON ({error})") from error
    if not isinstance(data, dict):
        raise InputError(f"no JSON object but {type(data).__name__}")
    return data


def look_up(baseline: Baseline, metric: str) -> object:
    """The baseline of a metric: its own, or that of all ranks; None if there is none.

    A number in quotes is a number: SuperBench writes small ones so (``"1.2e-05"``), and then aborts on its own file.
    """
    for name in (metric, without_rank(metric), stripped(metric)):
        if name in baseline:
            value = baseline[name]
            return _unquoted(value) if isinstance(value, str) else value
    return None


def _unquoted(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def why_unusable(value: object, metric: str) -> str | None:
    """Why a baseline value is none for a variance, in words; None if it is one."""
    if value is None:
        return "has no baseline"
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return f"has the baseline {shown(value)}, which is no finite number"
    if value == 0 and EXACT not in metric:
        return "has the baseline 0, against which no variance can be computed"
    return None


def variances(values: Floats, baseline: float) -> Floats:
    """(value - baseline) / baseline; for a zero baseline 0 where equal and infinite where not (exact metrics alone)."""
    if baseline == 0:
        return np.where(values == 0, 0.0, np.copysign(np.inf, values))
    with np.errstate(all="ignore"):
        return np.asarray((values - baseline) / baseline)


@dataclass(frozen=True, slots=True)
class Generated:
    """A new baseline, and what did not become one."""

    values: dict[str, float]
    refused: dict[str, str] = field(default_factory=dict)
    """Metric, or entry of a rule, -> why it has no baseline."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Metric -> samples left out as outliers."""


def generate_mean(samples: Mapping[str, Floats], previous: Baseline) -> Generated:
    """The mean of all samples of each metric; metrics of a previous baseline keep their values."""
    made = Generated(_numbers(previous))
    for metric, values in samples.items():
        if metric not in made.values:
            _keep(made, metric, _mean(values[~np.isnan(values)]))
    return made


def generate_fixed(samples: Mapping[str, Floats], rules: RuleFile, previous: Baseline) -> Generated:
    """Algorithm ``fix_threshold``: mean of what is kept, drop what violates the rule against it, until nothing drops.

    Args:
        samples: metric -> its samples, aggregated, NaN where there is none.
        rules: only their ``variance`` and ``value`` rules take part.
        previous: its metrics keep their values.

    Raises:
        InputError: an entry of a rule is no regular expression.
    """
    names = tuple(samples)
    one_row = Results(("samples",), names, np.zeros((1, len(names))))
    kept = {metric: values[~np.isnan(values)] for metric, values in samples.items()}
    made = Generated(_numbers(previous))
    for rule in rules.rules:
        if rule.function not in (Function.VARIANCE, Function.VALUE, Function.FAILURE_CHECK):
            continue
        selection = select(rule.metrics, names, one_row.benchmarks())
        if rule.function is Function.VARIANCE:  # a value is judged without a baseline
            made.refused.update(selection.dead)
        for place in selection.columns:
            metric = names[place]
            if metric not in previous:
                made.refused.pop(metric, None)
                kept[metric] = _without_outliers(made, metric, kept[metric], rule)
    return made


def _without_outliers(made: Generated, metric: str, values: Floats, rule: SuperBenchRule) -> Floats:
    assert rule.criterion is not None  # every rule that judges has one
    while True:
        mean = _mean(values)
        if not math.isfinite(mean) or mean == 0:
            break
        judged = variances(values, mean) if rule.function is Function.VARIANCE else values
        violated, _known = rule.criterion.judge(judged)
        if not violated.any():
            break
        made.dropped[metric] = made.dropped.get(metric, 0) + int(violated.sum())
        values = values[~violated]
    _keep(made, metric, mean)
    return values


def _mean(values: Floats) -> float:
    return float(values.mean()) if values.size else math.nan


def _keep(made: Generated, metric: str, mean: float) -> None:
    if math.isfinite(mean):
        made.values[metric] = mean
        return
    lost = made.dropped.get(metric, 0)
    made.refused[metric] = f"all {lost} samples violate the rule" if lost else "there is no finite sample"
    made.values.pop(metric, None)


def _numbers(previous: Baseline) -> dict[str, float]:
    return {name: value for name, value in previous.items() if isinstance(value, int | float)}


def write_baseline(made: Generated, measured: Mapping[str, bool], *, digits: int = 2, kept: Baseline) -> str:
    """JSON of a baseline, formatted as SuperBench does.

    Args:
        made: the values.
        measured: metric -> whether all its samples are JSON integers (their mean is not rounded).
        digits: decimals; significant digits below 1.
        kept: the previous baseline, whose values stand as they were.
    """
    shown: dict[str, Any] = {}
    for metric, value in made.values.items():
        exact = metric in kept or measured.get(metric, False) or EXACT in metric
        shown[metric] = value if exact else rounded(value, digits)
    return json.dumps(shown, indent=2, sort_keys=True)


def rounded(value: float, digits: int) -> float:
    """``digits`` decimals, or as many significant digits where the value is below 1."""
    return float(f"{value:.{digits}g}" if abs(value) < 1 else f"{value:.{digits}f}")
