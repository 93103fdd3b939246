"""One node before and after: a repair, an update, a week. Each metric against its own past.

How far a device may wander from its own past is learned from its cohort (``validator.OwnPast``). Invariant: without
devices to learn from a change is shown and its verdict is UNKNOWN; so is a metric that is missing on one side, and one
that is not slower where the cohort wanders so far that 5 % could hide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mainstay.detectors.validation.cohort_drift import MOST_HIDDEN
from mainstay.detectors.validation.criteria import worst
from mainstay.detectors.validation.criterion_learning import FALSE_ALARMS
from mainstay.detectors.validation.criterion_limits import NotAGateError, Run
from mainstay.detectors.validation.validator import OwnPast
from mainstay.probes.benchmarks.result import Better
from mainstay.probes.core_types import Verdict


@dataclass(frozen=True, slots=True, order=True)
class MetricKey:
    """What is compared."""

    benchmark: str
    metric: str
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    unit: str
    better: Better
    values: Run


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePair:
    """Another device of the cohort, measured twice."""

    node: str
    before: Run
    after: Run


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricChange:
    key: MetricKey
    unit: str
    better: Better
    before: float | None
    after: float | None
    worse: float | None
    """By what share it became worse (negative: better); None: nothing to compare, or a fingerprint."""
    verdict: Verdict
    reason: str


def compare(
    before: Mapping[MetricKey, Measured],
    after: Mapping[MetricKey, Measured],
    pasts: Mapping[tuple[str, str], Sequence[DevicePair]],
) -> tuple[MetricChange, ...]:
    """Every metric of either side, in order.

    Args:
        before: of the earlier validation.
        after: of the later one, of the same node.
        pasts: (benchmark, metric) -> devices of the cohort that were measured twice, this node's left out.
    """
    keys = sorted(before.keys() | after.keys())
    metrics = {(key.benchmark, key.metric) for key in keys}
    budget = FALSE_ALARMS / max(1, len(keys))
    learned = {metric: _learn(pasts.get(metric, ()), _better(metric, before, after), budget) for metric in metrics}
    return tuple(_change(key, before.get(key), after.get(key), learned[(key.benchmark, key.metric)]) for key in keys)


def verdict(changes: Sequence[MetricChange]) -> Verdict:
    """The worst of them."""
    return worst(change.verdict for change in changes)


def _better(metric: tuple[str, str], *sides: Mapping[MetricKey, Measured]) -> Better:
    return next(one.better for side in sides for key, one in side.items() if (key.benchmark, key.metric) == metric)


def _learn(pairs: Sequence[DevicePair], better: Better, budget: float) -> OwnPast | str:
    """What the cohort teaches, or why it teaches nothing."""
    if better is Better.EQUAL:
        return ""
    try:
        nodes = [pair.node for pair in pairs]
        return OwnPast(budget).fit([pair.before for pair in pairs], [pair.after for pair in pairs], better, nodes)
    except NotAGateError as error:
        return str(error)


def _change(key: MetricKey, before: Measured | None, after: Measured | None, learned: OwnPast | str) -> MetricChange:
    known = after or before
    assert known is not None
    if before is None or after is None:
        said, reason, worse = Verdict.UNKNOWN, f"not measured {'before' if before is None else 'after'}", None
    elif known.better is Better.EQUAL:
        same = set(before.values.tolist()) == set(after.values.tolist()) and len(set(after.values.tolist())) == 1
        said, worse = (Verdict.PASS if same else Verdict.FAIL), None
        reason = "the same answer" if same else "another answer than before"
    else:
        worse = _worse(before, after)
        said, reason = _judged(before, after, learned)
        reason = f"{-worse:+.1%} against its own past; {reason}"
    return MetricChange(
        key=key, unit=known.unit, better=known.better, before=_typical(before), after=_typical(after), worse=worse,
        verdict=said, reason=reason,
    )  # fmt: skip


def _judged(before: Measured, after: Measured, learned: OwnPast | str) -> tuple[Verdict, str]:
    if isinstance(learned, str):
        return Verdict.UNKNOWN, f"how far its cohort wanders is not known: {learned}"
    (said,) = learned.predict([before.values], [after.values])
    if said is Verdict.PASS and learned.thresholds_.detectable > MOST_HIDDEN:
        least = learned.thresholds_.detectable
        return Verdict.UNKNOWN, f"a slowdown of {MOST_HIDDEN:.0%} could hide: its cohort shows it from {least:.1%} on"
    return said, f"from similarity {learned.alpha_:.3f} to its past downwards a device fails"


def _worse(before: Measured, after: Measured) -> float:
    ratio = float(np.median(after.values) / np.median(before.values))
    return (1.0 / ratio if after.better is Better.HIGHER else ratio) - 1.0


def _typical(side: Measured | None) -> float | None:
    return None if side is None else float(np.median(side.values))
