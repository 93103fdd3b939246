"""Rules bound to results: which columns a rule judges, against which baselines, and what it names that is missing."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mainstay.detectors.base import Floats
from mainstay.detectors.cli_errors import naming
from mainstay.detectors.superbench.baseline import Baseline, look_up, why_unusable
from mainstay.detectors.superbench.names import Selection, select
from mainstay.detectors.superbench.results import Results
from mainstay.detectors.superbench.rules import Function, RuleFile, SuperBenchRule


@dataclass(frozen=True, slots=True)
class Bound:
    """A rule and what it means for these results."""

    rule: SuperBenchRule
    selection: Selection
    baselines: Floats
    """(columns,): NaN where there is none that can be used."""
    unusable: dict[int, str]
    """Place of a metric -> why it has no usable baseline; empty for rules that need none."""

    @property
    def columns(self) -> list[int]:
        """Places of the rule's metrics in the results."""
        return list(self.selection.columns)


def bind(results: Results, rules: RuleFile, baseline: Baseline) -> tuple[Bound, ...]:
    """Every rule with its metrics and baselines, in the order of judging.

    Raises:
        InputError: an entry is no regular expression; the message names rule and entry.
    """
    benchmarks = results.benchmarks()
    bound = []
    for rule in rules.rules:
        with naming(f"rule {rule.name!r}"):
            selection = select(rule.metrics, results.metrics, benchmarks)
        bound.append(_with_baselines(rule, selection, results, baseline))
    return tuple(bound)


def _with_baselines(rule: SuperBenchRule, selection: Selection, results: Results, baseline: Baseline) -> Bound:
    values = np.full(len(selection.columns), math.nan)
    unusable: dict[int, str] = {}
    for number, place in enumerate(selection.columns):
        found = look_up(baseline, results.metrics[place])
        why = why_unusable(found, results.metrics[place])
        if why is None:
            assert isinstance(found, int | float)  # what why_unusable lets through
            values[number] = float(found)
        elif rule.function is Function.VARIANCE:
            unusable[place] = why
    return Bound(rule, selection, values, unusable)
