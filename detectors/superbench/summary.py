"""The result summary: statistics of metrics over a fleet, by rules, as ``sb result summary`` gives them.

Algorithm: SuperBench 0.12, ``analyzer/result_summary.py`` and ``data_analysis.aggregate``. Rules of one category are
all kept (there, the last one is all that is left), and a metric without a rank keeps its name when ranks are aggregated
(there, all such metrics become one without a name).
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from mainstay.detectors.base import Floats
from mainstay.detectors.cli_errors import InputError, naming
from mainstay.detectors.superbench.names import select, shown, without_rank
from mainstay.detectors.superbench.output import Table, html_of, markdown, short
from mainstay.detectors.superbench.results import Results
from mainstay.detectors.superbench.rules import category_of, load_mapping, metrics_of

_PERCENTILE: Final = re.compile(r"p([1-9]\d?)")
_STATISTICS: Final = ("mean", "min", "max", "std", "count")


@dataclass(frozen=True, slots=True)
class SummaryRule:
    """Which statistics of which metrics."""

    name: str
    category: str
    metrics: tuple[str, ...]
    statistics: tuple[str, ...]
    aggregate: bool | re.Pattern[str]
    """True: over ranks. A pattern: over all metrics that differ only in its groups."""


@dataclass(frozen=True, slots=True)
class SummaryLine:
    """One statistic; a rule that selects nothing has lines without metric and value."""

    metric: str
    statistic: str
    value: float | int | None
    """An integer where SuperBench writes one."""


def read_summary_rules(text: str) -> tuple[SummaryRule, ...]:
    """The summary rules of a file.

    Raises:
        InputError: the message names rule and field.
    """
    raw, _twice = load_mapping(text)
    return tuple(_rule(name, fields) for name, fields in raw.items())


def _rule(name: str, raw: Any) -> SummaryRule:
    if not isinstance(raw, dict):
        raise InputError(f"rule {name!r} must be a mapping, not {type(raw).__name__}")
    statistics = _statistics(name, raw.get("statistics"))
    return SummaryRule(
        name, category_of(name, raw), metrics_of(name, raw), statistics, _aggregate(name, raw.get("aggregate"))
    )


def _statistics(name: str, said: Any) -> tuple[str, ...]:
    listed: list[Any] = said if isinstance(said, list) else [said]
    for one in listed or [said]:
        if not isinstance(one, str) or not (one in _STATISTICS or _PERCENTILE.fullmatch(one)):
            known = ", ".join(_STATISTICS)
            raise InputError(f"rule {name!r}: statistics {shown(one)} is none of {known}, p1 to p99")
    return tuple(listed)


def _aggregate(name: str, said: Any) -> bool | re.Pattern[str]:
    if said is None or isinstance(said, bool):
        return bool(said)
    try:
        pattern = re.compile(said) if isinstance(said, str) else None
    except re.error as error:
        raise InputError(f"rule {name!r}: aggregate {shown(said)} is no regular expression: {error}") from error
    if pattern is None or pattern.groups == 0:
        raise InputError(f"rule {name!r}: aggregate must be true, false or a regular expression with a group")
    return pattern


def samples_of(results: Results, rule: SummaryRule) -> dict[str, list[int]]:
    """Name after aggregation -> places of the metrics whose samples go together.

    Raises:
        InputError: an entry is no regular expression; the message names the rule.
    """
    with naming(f"rule {rule.name!r}"):
        columns = select(rule.metrics, results.metrics, results.benchmarks()).columns
    groups: dict[str, list[int]] = {}
    for place in columns:
        groups.setdefault(_aggregated(results.metrics[place], rule.aggregate), []).append(place)
    return groups


def _aggregated(metric: str, aggregate: bool | re.Pattern[str]) -> str:
    if isinstance(aggregate, bool):
        return without_rank(metric) if aggregate else metric
    match = aggregate.search(metric)
    if match is None:
        return without_rank(metric)
    for number in range(len(match.groups()), 0, -1):  # from the right, so that places stay true
        if match.start(number) >= 0:
            metric = metric[: match.start(number)] + "*" + metric[match.end(number) :]
    return metric


def summarize(results: Results, rules: tuple[SummaryRule, ...], digits: int = 2) -> dict[str, list[SummaryLine]]:
    """Category -> its lines, rules in the order of the file, metrics sorted within."""
    summary: dict[str, list[SummaryLine]] = {}
    for rule in rules:
        lines = summary.setdefault(rule.category, [])
        groups = samples_of(results, rule)
        if not groups:
            lines += [SummaryLine("", one, None) for one in rule.statistics]
        whole = _gives_integers(results, rule, groups)
        for metric in sorted(groups):
            values = results.values[:, groups[metric]]
            found = [statistic(values[~np.isnan(values)], one) for one in rule.statistics]
            shown = _integers(found, digits) if whole else [short(one, digits) for one in found]
            lines += [SummaryLine(metric, one, value) for one, value in zip(rule.statistics, shown, strict=True)]
    return summary


def _gives_integers(results: Results, rule: SummaryRule, groups: Mapping[str, list[int]]) -> bool:
    """Whether all numbers of a rule are integers to pandas: counts, and extremes of columns that are nothing else."""
    alike = len({len(places) for places in groups.values()}) == 1
    whole = alike and all(results.whole[places].all() for places in groups.values())
    return all(one == "count" or (whole and one in {"min", "max"}) for one in rule.statistics)


def _integers(found: list[float], digits: int) -> list[float | int]:
    """As integers; but rounding makes a zero a float, and it the whole column."""
    if digits and any(abs(one) < 1 for one in found):
        return list(found)
    return [int(one) for one in found]


def statistic(values: Floats, name: str) -> float:
    """A statistic of samples without NaN; NaN where there is none. ``std`` has n - 1, percentiles are interpolated."""
    if name == "count":
        return float(len(values))
    if not len(values):
        return math.nan
    if name == "std":
        return float(values.std(ddof=1)) if len(values) > 1 else math.nan
    match = _PERCENTILE.fullmatch(name)
    if match:
        return float(np.percentile(values, int(match.group(1))))
    if name == "mean":
        return float(values.mean())
    return float(values.min() if name == "min" else values.max())


def samples_for_baseline(results: Results, rules: tuple[SummaryRule, ...]) -> tuple[dict[str, Floats], dict[str, bool]]:
    """What a baseline is generated from.

    Returns:
        metric -> its samples, and metric -> whether pandas would take them for integers: all are, and no other metric
        has more samples (there, the gap is filled with NaN, which is none). Samples that were aggregated by a
        pattern stand under the name of each metric of the group.
    """
    samples: dict[str, Floats] = {}
    whole: dict[str, bool] = {}
    for rule in rules:
        for name, places in samples_of(results, rule).items():
            by_pattern = isinstance(rule.aggregate, re.Pattern)
            for metric in [results.metrics[place] for place in places] if by_pattern else [name]:
                samples[metric] = results.values[:, places].T.ravel()
                whole[metric] = bool(results.whole[places].all())
    longest = max((len(values) for values in samples.values()), default=0)
    return samples, {metric: yes and len(samples[metric]) == longest for metric, yes in whole.items()}


def markdown_of(summary: Mapping[str, list[SummaryLine]]) -> str:
    """The summary as SuperBench's markdown: a heading and a table a category."""
    return "".join(f"## {category}\n{markdown(_table(lines))}\n" for category, lines in summary.items())


def html_of_summary(summary: Mapping[str, list[SummaryLine]]) -> str:
    """The summary as SuperBench's HTML; every cell is escaped."""
    parts = []
    for category, lines in summary.items():
        parts += [f"<h2>{html.escape(category, quote=False)}</h2>", html_of(_table(lines))]
    return "\n".join(parts)


def _table(lines: list[SummaryLine]) -> Table:
    rows = [(line.metric, line.statistic, text_of(line.value)) for line in lines]
    return Table(["metric", "statistics", "values"], rows)


def text_of(value: float | None) -> str:
    """A value as people read it."""
    return "" if value is None else str(value)
