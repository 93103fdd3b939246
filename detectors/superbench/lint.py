"""What is wrong with a rule file, said when it is loaded: rules that pass nodes because they can see nothing.

A finding is a fault of the file, the baseline or the results: a dead entry, a limit that cannot fire, a missing
baseline. What :func:`coverage` tells is worth knowing and no fault. A clean file has no finding.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from mainstay.detectors.base import Bools, Floats
from mainstay.detectors.cli_errors import InputError
from mainstay.detectors.finding import join_names
from mainstay.detectors.superbench.baseline import EXACT
from mainstay.detectors.superbench.binding import Bound
from mainstay.detectors.superbench.diagnose import SuperBenchDiagnosis
from mainstay.detectors.superbench.names import SHOWN, benchmark_of, counted, direction, quoted, select, without_rank
from mainstay.detectors.superbench.results import Results
from mainstay.detectors.superbench.rules import FIELDS, Function, RuleFile
from mainstay.probes.benchmarks.result import Better

_FACTORS: Final = np.array([0.1, 0.2, 0.3, 0.5, 0.8, 1.25, 2.0, 3.0, 5.0, 10.0])
"""An absolute limit must fire somewhere within a tenth and ten times the typical value, or it is not a limit."""
_CHANGES: Final = np.array([-0.5, -0.4, -0.3, -0.2, -0.1, -0.05, -0.02, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0])
"""A relative limit must fire somewhere between half and twice the baseline."""
_FEWEST: Final = 3
"""Nodes from which a median tells what is typical."""
_RANK: Final = re.compile(r":\\d[*+]?$")
_GLOB: Final = re.compile(r"(?<![.\])}\\\w])\*")
"""A star with an unintended repetition: the author thought of a shell's pattern."""


@dataclass(frozen=True, slots=True)
class LintIssue:
    """One fault."""

    code: str
    rule: str
    """Empty if it is the file's."""
    message: str


def lint(rules: RuleFile, diagnosis: SuperBenchDiagnosis) -> tuple[LintIssue, ...]:
    """All findings of a rule file over the results that it judged."""
    found = [*_of_file(rules)]
    for one in diagnosis.bound:
        found += [LintIssue(code, one.rule.name, message) for code, message in _of_rule(one, diagnosis.results)]
    for name, (count, why) in diagnosis.unanswered.items():
        found.append(LintIssue("no-answer", name, f"no answer for {counted(count, 'node')}: {why}"))
    return tuple(found)


def coverage(diagnosis: SuperBenchDiagnosis) -> str:
    """A note: how much of what was measured is judged, and what no rule looks at."""
    metrics = diagnosis.results.metrics
    judged = set(diagnosis.metrics)
    left = sorted({without_rank(metric) for metric in metrics if metric not in judged})
    text = f"{len(judged)} of {len(metrics)} measured metrics are judged"
    return f"{text}; no rule looks at {join_names(left, SHOWN)}" if left else text


def _of_file(rules: RuleFile) -> Iterator[LintIssue]:
    for key in rules.twice:
        yield LintIssue("defined-twice", "", f"{key} stands twice in one mapping: YAML loses the first")
    for name in rules.late:
        yield LintIssue("late-reference", name, "reads a rule that comes later in the file: SuperBench aborts on it")
    read = {name for rule in rules.rules if rule.criterion for name in rule.criterion.references()}
    for rule in rules.rules:
        if rule.store and rule.name not in read:
            yield LintIssue(
                "unread-store", rule.name, "is stored, and no multi_rules criteria reads it: it labels no node"
            )
        for field in rule.unknown_fields:
            near = difflib.get_close_matches(field, FIELDS, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            yield LintIssue("unknown-field", rule.name, f"{field!r} means nothing here and is ignored{hint}")


def _of_rule(one: Bound, results: Results) -> Iterator[tuple[str, str]]:
    """(code, message) of each finding of one rule."""
    if one.rule.function is Function.MULTI_RULES:
        return
    if not one.rule.metrics:
        yield "dead-entry", "lists no metrics: it can label no node"
    for entry, why in one.selection.dead.items():
        yield "dead-entry", f"{quoted(entry)} selects nothing: {why}{_hint(entry, results)}"
    yield from _missing(one, results)
    yield from _baselines(one, results)
    if one.rule.function is Function.VARIANCE:
        yield from _relative(one, results)
    elif one.rule.function is not None:
        yield from _absolute(one, results)


def _hint(entry: str, results: Results) -> str:
    meant = _GLOB.sub(".*", entry)
    try:
        if meant != entry and select((meant,), results.metrics, results.benchmarks()).columns:
            return f"; did you mean {quoted(meant)}? (in a regular expression * repeats the character before it)"
    except InputError:
        return ""
    benchmarks = results.benchmarks()
    benchmark = benchmark_of(entry) or entry
    if benchmark not in benchmarks:
        near = difflib.get_close_matches(benchmark, benchmarks, 1, 0.8)
        return f"; did you mean {quoted(near[0])}?" if near else ""
    names = {without_rank(results.metrics[place]) for place in benchmarks[benchmark]}
    near = difflib.get_close_matches(_RANK.sub("", entry), names, 1, 0.75)
    return f"; the nearest one is {quoted(near[0])}" if near else ""


def _missing(one: Bound, results: Results) -> Iterator[tuple[str, str]]:
    lacking = ~results.present[:, one.columns]
    nodes = np.flatnonzero(lacking.any(axis=1)).tolist()
    if nodes:
        metrics = [results.metrics[place] for place in np.array(one.columns)[lacking.any(axis=0)].tolist()]
        where = join_names([results.nodes[node] for node in nodes], SHOWN)
        yield "missing-metric", f"{counted(len(nodes), 'node')} ({where}) without {join_names(metrics, SHOWN)}"


def _baselines(one: Bound, results: Results) -> Iterator[tuple[str, str]]:
    by_reason: dict[str, list[str]] = {}
    for place, why in one.unusable.items():
        by_reason.setdefault(why, []).append(results.metrics[place])
    for why, metrics in by_reason.items():
        code = "missing-baseline" if why == "has no baseline" else "invalid-baseline"
        yield code, f"{counted(len(metrics), 'metric')} {why.replace('has', 'have', 1)}: {join_names(metrics, SHOWN)}"


def _relative(one: Bound, results: Results) -> Iterator[tuple[str, str]]:
    criterion = one.rule.criterion
    assert criterion is not None  # every rule that judges has one
    fires, _known = criterion.judge(_CHANGES)
    at_baseline, _known = criterion.judge(np.zeros(1))
    names = [without_rank(results.metrics[place]) for place in one.columns]
    if not fires.any():
        yield "never-fires", f"{quoted(criterion.text)} does not fire where a metric halves or doubles"
    elif at_baseline.any():
        yield "always-fires", f"{quoted(criterion.text)} fires where a metric equals its baseline"
    elif not fires[_worse(names)].any():
        yield (
            "wrong-side",
            f"{quoted(criterion.text)} fires only where {join_names(sorted(set(names)), SHOWN)} gets better",
        )


def _worse(names: Sequence[str]) -> Bools:
    """Which changes are for the worse, by the names of the metrics; all of them where names do not tell."""
    found = set(map(direction, names))
    if found == {Better.HIGHER}:
        return np.asarray(_CHANGES < 0)
    if found == {Better.LOWER}:
        return np.asarray(_CHANGES > 0)
    return np.ones(_CHANGES.shape, np.bool_)


def _absolute(one: Bound, results: Results) -> Iterator[tuple[str, str]]:
    criterion = one.rule.criterion
    assert criterion is not None  # every rule that judges has one
    never: list[str] = []
    always: list[str] = []
    for number, place in enumerate(one.columns):
        metric = results.metrics[place]
        if without_rank(metric).endswith("return_code"):
            if not criterion.judge(np.ones(1))[0].any():
                never.append(f"{metric} (return code 1 passes)")
            continue
        typical = _typical(float(one.baselines[number]), results.values[:, place])
        if typical is None or EXACT in metric:
            continue
        if criterion.judge(np.array([typical]))[0].any():
            always.append(f"{metric} (typically {typical:.4g})")
        elif not criterion.judge(typical * _FACTORS)[0].any():
            never.append(f"{metric} (typically {typical:.4g})")
    if never:
        why = "cannot fire within a tenth and ten times what is typical"
        yield "never-fires", f"{quoted(criterion.text)} {why}: {join_names(never, SHOWN)}"
    if always:
        yield "always-fires", f"{quoted(criterion.text)} fires at what is typical: {join_names(always, SHOWN)}"


def _typical(baseline: float, values: Floats) -> float | None:
    """The baseline, or the median of enough nodes; None where there is neither or it is zero."""
    if np.isfinite(baseline) and baseline != 0:
        return baseline
    known = values[np.isfinite(values)]
    if len(known) < _FEWEST:
        return None
    median = float(np.median(known))
    return median if median != 0 else None
