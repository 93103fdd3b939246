"""Directions and limits of metrics that a SuperBench rule file states, for criteria from SuperBench results.

Read: ``variance`` and ``value`` rules whose criterion compares its argument with one number (``lambda x: x < -0.05``).
A rule that fires below a number says that more is better, one that fires above it that less is. Other criteria state
neither. The text is parsed by ``expression``, never run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

from mainstay.detectors.cli_errors import InputError, naming
from mainstay.detectors.superbench.conversion import COHORT, full_names
from mainstay.detectors.superbench.interpret import Unjudgeable, evaluate
from mainstay.detectors.superbench.names import benchmark_of, compiled
from mainstay.detectors.superbench.rules import Function, SuperBenchRule, read_rules
from mainstay.detectors.validation.verdict import Criteria, Criterion
from mainstay.probes.benchmarks.result import Better, SuiteResult


@dataclass(frozen=True, slots=True)
class RuleLimit:
    """What one rule states of the metrics that it selects."""

    rule: str
    better: Better
    number: float
    relative: bool
    """To the typical value (``variance``: -0.05 is 5% below it), or the limit itself (``value``)."""
    labels: bool
    """False for ``store: true``: the rule labels no node, so its number is no limit."""


class RuleLimits:
    """The limits of a rule file by metric.

    Args:
        file: YAML, as ``superbench.rules.read_rules`` reads it; None: no limits.

    Raises:
        InputError: names the file, and rule and field where there is one.
    """

    def __init__(self, file: Path | None) -> None:
        try:
            text = file.read_text() if file else ""
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read {file}: {error}") from error
        with naming(file):
            rules = read_rules(text).rules if file else ()
            stated = [(entry, limit) for rule in rules if (limit := _limit(rule)) for entry in rule.metrics]
            self._entries = [(benchmark_of(entry), entry, compiled(entry), limit) for entry, limit in stated]
        self._of = cache(self._select)

    def _select(self, name: str) -> frozenset[RuleLimit]:
        own = benchmark_of(name)
        return frozenset(
            limit
            for benchmark, entry, pattern, limit in self._entries
            if benchmark == own and (entry == name or pattern.search(name))
        )

    def direction(self, name: str) -> Better | None:
        """Which way a metric improves, by its full name; None if no rule has one, or rules disagree."""
        found = {limit.better for limit in self._of(name)}
        return found.pop() if len(found) == 1 else None

    def apply(self, learned: Criteria, runs: Iterable[SuiteResult]) -> Criteria:
        """The criteria with the limits of the rules that select a metric on all devices of ``runs``."""
        limits: dict[tuple[str, str, str], frozenset[RuleLimit]] = {}
        for benchmark, metric, name in (key for run in runs if run.cohort == COHORT for key in full_names(run)):
            limits[benchmark, metric, COHORT] = limits.get((benchmark, metric, COHORT), self._of(name)) & self._of(name)
        made = (_limited(c, limits.get((c.benchmark, c.metric, c.cohort), frozenset())) for c in learned.criteria)
        return msgspec.structs.replace(learned, criteria=tuple(made))


def _limit(rule: SuperBenchRule) -> RuleLimit | None:
    body = rule.criterion and rule.criterion.body
    if rule.function not in (Function.VARIANCE, Function.VALUE) or not isinstance(body, ast.Compare):
        return None
    below, above = (isinstance(body.ops[0], kinds) for kinds in (ast.Lt | ast.LtE, ast.Gt | ast.GtE))
    try:
        number = evaluate(body.comparators[0], {})
    except Unjudgeable:
        return None
    if len(body.ops) > 1 or not (below or above) or not isinstance(body.left, ast.Name):
        return None
    relative = rule.function is Function.VARIANCE
    if not isinstance(number, int | float) or (relative and (number >= 0) is below):  # it fires at the typical value
        return None
    return RuleLimit(rule.name, Better.HIGHER if below else Better.LOWER, float(number), relative, not rule.store)


def _limited(learned: Criterion, limits: Iterable[RuleLimit]) -> Criterion:
    """The criterion with the tightest limit in place of what was learned."""
    higher = learned.better is Better.HIGHER
    found = [
        ((1.0 + limit.number) * learned.center if limit.relative else limit.number, limit.rule)
        for limit in limits
        if limit.labels and limit.better is learned.better and learned.center is not None
    ]
    if not found:
        return learned
    number, rule = max(found) if higher else min(found)
    low, high = (number, None) if higher else (None, number)
    return msgspec.structs.replace(
        learned, low=low, high=high, warn=None, distribution=None, sessions=None, source=f"rule:{rule}"
    )
