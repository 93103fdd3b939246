"""The diagnosis: rules over a fleet's results, labels and categories as SuperBench gives them, plus UNKNOWN.

Algorithm: SuperBench 0.12, ``analyzer/data_diagnosis.py`` and ``diagnosis_rule_op.py``, a numpy pass for each rule
instead of a Python call for each node and metric. A node that SuperBench accepts is UNKNOWN if anything that a rule
asks of it could not be judged: a metric or baseline is missing, an entry matches nothing, a criterion has no answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from mainstay.detectors.base import Bools, Floats
from mainstay.detectors.superbench.baseline import Baseline, variances
from mainstay.detectors.superbench.binding import Bound, bind
from mainstay.detectors.superbench.interpret import Unjudgeable
from mainstay.detectors.superbench.names import compiled, quoted
from mainstay.detectors.superbench.results import Results
from mainstay.detectors.superbench.rules import Function, RuleFile
from mainstay.probes.core_types import Verdict

MISSED: Final = "FailedTest"
"""SuperBench's category of what was not measured."""
_BARE: Final = "a bare comparison of stored values, which SuperBench takes for no answer: wrap it in bool(...)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SuperBenchDiagnosis:
    """The diagnosis of each node of ``results``; all tuples are in the order of its nodes."""

    results: Results
    bound: tuple[Bound, ...]
    verdicts: tuple[Verdict, ...]
    """FAIL where SuperBench labels the node defective, UNKNOWN where something could not be judged, else PASS."""
    categories: tuple[str, ...]
    details: tuple[str, ...]
    """SuperBench's text; of nodes that are not FAIL too, where a stored rule or a missing metric left one."""
    unknown: tuple[tuple[str, ...], ...]
    """What of this node could not be judged."""
    unknown_of_all: tuple[str, ...]
    """What could be judged of no node."""
    metrics: tuple[str, ...]
    """What rules name, sorted."""
    cells: Floats
    """(nodes, metrics): variance or value, as the last rule wrote it; NaN where none did."""
    kinds: Mapping[str, Function]
    """Metric -> the function that wrote its cells last."""
    unanswered: Mapping[str, tuple[int, str]]
    """multi_rules without an answer -> for how many nodes, and why of one."""

    def nodes(self, verdict: Verdict) -> list[int]:
        """Places of the nodes with a verdict."""
        return [place for place, one in enumerate(self.verdicts) if one is verdict]


def diagnose(results: Results, rules: RuleFile, baseline: Baseline) -> SuperBenchDiagnosis:
    """Judge every node by every rule.

    Raises:
        InputError: an entry of a rule is no regular expression.
    """
    bound = bind(results, rules, baseline)
    run = _Run(results, bound)
    for one in bound:
        run.judge(one)
    run.unknown_of_all += [f"the rule file has {key} twice: the first is lost" for key in rules.twice]
    return run.diagnosis()


class _Run:
    """The state of one diagnosis."""

    def __init__(self, results: Results, bound: tuple[Bound, ...]) -> None:
        self.results, self.bound = results, bound
        count = len(results.nodes)
        self.present = results.present
        self.labeled: Bools = np.zeros(count, np.bool_)
        self.details: list[list[str]] = [[] for _ in range(count)]
        self.categories: list[set[str]] = [set() for _ in range(count)]
        self.unknown: list[dict[str, None]] = [{} for _ in range(count)]
        self.unknown_of_all: list[str] = []
        self.unanswered: dict[str, tuple[int, str]] = {}
        self.counts: dict[str, list[int]] = {}
        self.kept: dict[str, Bound] = {}
        """Rules whose values are stored."""
        self.odd: dict[int, dict[int, Any]] = {}
        """Node -> place of a metric -> what it has there instead of a number."""
        for (node, place), other in results.others.items():
            self.odd.setdefault(node, {})[place] = other
        enabled = sorted({place for one in bound for place in one.columns}, key=lambda place: results.metrics[place])
        self.metrics = tuple(results.metrics[place] for place in enabled)
        self.cell_of = {place: number for number, place in enumerate(enabled)}
        self.cells: Floats = np.full((count, len(enabled)), np.nan)
        self.kinds: dict[str, Function] = {}

    def judge(self, one: Bound) -> None:
        rule = one.rule
        if rule.function is not Function.FAILURE_CHECK:  # which labels the nodes instead
            self.unknown_of_all += [
                f"rule {quoted(rule.name)}: {quoted(entry)} selects nothing, {why}"
                for entry, why in one.selection.dead.items()
            ]
        if rule.function is None:
            self.kept[rule.name] = one
            self._without(one)
            return
        counts = {
            Function.VARIANCE: self._variance,
            Function.VALUE: self._value,
            Function.MULTI_RULES: self._multi_rules,
            Function.FAILURE_CHECK: self._failure_check,
        }[rule.function](one)
        if rule.store:
            self.counts[rule.name] = counts.tolist()
        else:
            self.labeled |= counts > 0

    def _without(self, one: Bound) -> Bools:
        """Where the rule's metrics were measured: (nodes, columns). The rest is unknown of its node."""
        present = self.present[:, one.columns]
        for node, number in np.argwhere(~present).tolist():
            self.unknown[node][f"{self.results.metrics[one.columns[number]]}_miss"] = None
        return present

    def _missed(self, one: Bound) -> Bools:
        """As :meth:`_without`, and written in SuperBench's way, which labels no node."""
        present = self._without(one)
        for node, number in np.argwhere(~present).tolist():
            self.details[node].append(f"{self.results.metrics[one.columns[number]]}_miss")
            self.categories[node].add(MISSED)
        return present

    def _variance(self, one: Bound) -> npt.NDArray[np.int64]:
        present = self._missed(one)
        usable = ~np.isnan(one.baselines)
        for place, why in one.unusable.items():
            reason = f"{self.results.metrics[place]} {why}"
            for node in np.flatnonzero(self.present[:, place]).tolist():
                self.unknown[node][reason] = None
        varied = np.full(present.shape, np.nan)
        values = self.results.values[:, one.columns]
        for number in np.flatnonzero(usable).tolist():
            varied[:, number] = variances(values[:, number], float(one.baselines[number]))
        return self._violations(one, varied, present & usable)

    def _value(self, one: Bound) -> npt.NDArray[np.int64]:
        present = self._missed(one)
        return self._violations(one, self.results.values[:, one.columns], present)

    def _violations(self, one: Bound, judged: Floats, where: Bools) -> npt.NDArray[np.int64]:
        """How many of a node's metrics violate the criterion; writes cells and details."""
        rule, criterion = one.rule, one.rule.criterion
        assert criterion is not None  # every rule that judges has one
        assert rule.function is not None
        self._write(one, judged, where)
        violated = np.zeros(where.shape, np.bool_)
        known = np.ones(where.shape, np.bool_)
        violated[where], known[where] = criterion.judge(judged[where])
        for node, number in np.argwhere(~known).tolist():
            metric = self.results.metrics[one.columns[number]]
            self.unknown[node][f"{metric}: the criteria of rule {rule.name!r} has no answer"] = None
        category = "" if rule.store else rule.category
        for node, number in np.argwhere(violated).tolist():
            self.details[node].append(self._detail(one, node, number, float(judged[node, number])))
            if category:
                self.categories[node].add(category)
        return np.asarray(violated.sum(axis=1), np.int64)

    def _write(self, one: Bound, judged: Floats, where: Bools) -> None:
        assert one.rule.function is not None
        at = [self.cell_of[place] for place in one.columns]
        self.cells[:, at] = np.where(where, judged, self.cells[:, at])
        self.kinds |= {self.results.metrics[place]: one.rule.function for place in one.columns}

    def _detail(self, one: Bound, node: int, number: int, judged: float) -> str:
        assert one.rule.criterion is not None
        place = one.columns[number]
        name, value = self.results.metrics[place], float(self.results.values[node, place])
        rule = one.rule.criterion.text
        if one.rule.function is not Function.VARIANCE:
            return f"{name}(VAL: {value:.4f} Rule:{rule})"
        return f"{name}(B/L: {one.baselines[number]:.4f} VAL: {value:.4f} VAR: {judged * 100:.2f}% Rule:{rule})"

    def _failure_check(self, one: Bound) -> npt.NDArray[np.int64]:
        counts = np.zeros(len(self.results.nodes), np.int64)
        for entry in one.rule.metrics:
            pattern = compiled(entry) if one.columns else None
            found = [place for place in one.columns if pattern and pattern.search(self.results.metrics[place])]
            if found:
                counts += ~self.present[:, found].all(axis=1)
                continue
            counts += 1
            for details, categories in zip(self.details, self.categories, strict=True):
                details.append(f"{entry}_miss")
                categories.update({one.rule.category} - {""})
        counts += self._value(one)
        for node, details in enumerate(self.details):
            self.details[node] = list(dict.fromkeys(details))
        return counts

    def _multi_rules(self, one: Bound) -> npt.NDArray[np.int64]:
        criterion, name = one.rule.criterion, one.rule.name
        assert criterion is not None  # every rule that judges has one
        counts = np.zeros(len(self.results.nodes), np.int64)
        for node in range(len(counts)):
            try:
                answer = criterion.answer(self._stored(node))
                why = "" if isinstance(answer, bool) else _not_an_answer(answer)
            except Unjudgeable as error:
                answer, why = False, str(error)
            if why:
                self.unknown[node][f"rule {name!r} has no answer: {why}"] = None
                self.unanswered[name] = (self.unanswered.get(name, (0, ""))[0] + 1, why)
            elif answer:
                counts[node] = 1
                self.details[node].append(f"{name}:{criterion.text}")
                self.categories[node].update({one.rule.category} - {""})
        return counts

    def _stored(self, node: int) -> dict[str, Any]:
        """What earlier rules stored of a node. Values stay numpy's: SuperBench's answers depend on it."""
        stored: dict[str, Any] = {name: counts[node] for name, counts in self.counts.items()}
        odd = self.odd.get(node, {})
        for name, one in self.kept.items():
            values = zip(one.columns, self.results.values[node, one.columns], strict=True)
            stored[name] = {self.results.metrics[place]: odd.get(place, value) for place, value in values}
        return stored

    def diagnosis(self) -> SuperBenchDiagnosis:
        return SuperBenchDiagnosis(
            results=self.results,
            bound=self.bound,
            verdicts=tuple(map(self._verdict, range(len(self.results.nodes)))),
            categories=tuple(",".join(sorted(categories)) for categories in self.categories),
            details=tuple(",".join(sorted(details)) for details in self.details),
            unknown=tuple(map(tuple, self.unknown)),
            unknown_of_all=tuple(self.unknown_of_all),
            metrics=self.metrics,
            cells=self.cells,
            kinds=self.kinds,
            unanswered=self.unanswered,
        )

    def _verdict(self, node: int) -> Verdict:
        if self.labeled[node]:
            return Verdict.FAIL
        return Verdict.UNKNOWN if self.unknown[node] or self.unknown_of_all else Verdict.PASS


def _not_an_answer(answer: object) -> str:
    return _BARE if isinstance(answer, np.bool_) else f"it gives {type(answer).__name__} instead of True or False"
