"""Data types of verdicts: criterion, verdict on a metric, verdict on a run. JSON both ways."""

from __future__ import annotations

import math

import msgspec

from mainstay.detectors.validation.criterion_limits import Distribution
from mainstay.detectors.validation.sessions import Sessions
from mainstay.probes.benchmarks.defects import Defect
from mainstay.probes.benchmarks.result import Better, SuiteResult
from mainstay.probes.core_types import Verdict


class Criterion(msgspec.Struct, frozen=True, kw_only=True):
    """The healthy region of one metric in one cohort.

    A value beyond ``low`` (``higher`` is better) or ``high`` (``lower`` is better) fails, one beyond ``warn`` warns.
    For ``equal`` the ``allowed`` values are right, or, where a store kept only two columns, ``low`` and ``high``.
    Those are limits on the median. Where there is a ``distribution``, all repetitions of a run are compared with it as
    well, and the worse verdict counts.
    """

    benchmark: str
    metric: str
    cohort: str
    better: Better
    low: float | None
    high: float | None
    n: int
    """Runs it was learned from; 0 if a user stated it."""
    source: str
    unit: str = ""
    """Empty: not recorded."""
    warn: float | None = None
    center: float | None = None
    """The typical value."""
    allowed: tuple[float, ...] = ()
    learned_at: float | None = None
    """Unix seconds: when the last of its runs ended."""
    distribution: Distribution | None = None
    sessions: Sessions | None = None
    """What of sessions it was learned from; None: not recorded, or a fingerprint, which has none."""

    def __post_init__(self) -> None:
        numbers = (self.low, self.high, self.warn, self.center, *self.allowed)
        if not all(math.isfinite(number) for number in numbers if number is not None):
            raise ValueError(f"criterion {self.benchmark}/{self.metric}: limits must be finite")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"criterion {self.benchmark}/{self.metric}: low is above high")


class RefusedMetric(msgspec.Struct, frozen=True, kw_only=True):
    """A metric that gets no criterion, and why: its verdict stays UNKNOWN."""

    benchmark: str
    metric: str
    cohort: str
    reason: str


VERSION = 2
"""Of what ``mainstay criteria fit`` writes: 1 knew no sessions. Every earlier version is read."""


class Criteria(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ``mainstay criteria fit`` writes."""

    criteria: tuple[Criterion, ...]
    refused: tuple[RefusedMetric, ...] = ()
    false_alarms: float | None = None
    """The budget per run and machine, over all metrics."""
    judge_as: str | None = None
    """The cohort whose criteria judge, for any cohort in the result: for a control plane, which names its own."""
    version: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.version <= VERSION:
            raise ValueError(f"criteria of version {self.version}: this mainstay reads 1 to {VERSION}")


class MetricVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one metric on one device."""

    benchmark: str
    device: str
    metric: str
    unit: str
    value: float | None
    """The median of the repetitions."""
    verdict: Verdict
    criterion: Criterion | None
    reason: str


class RunVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on a run: the worst of its metrics, FAIL > UNKNOWN > WARN > PASS."""

    verdict: Verdict
    reason: str
    verdicts: tuple[MetricVerdict, ...]
    points_to: tuple[Defect, ...] = ()
    """The classes of defect that fit best (``blame``); none if nothing failed."""


class SuiteVerdict(SuiteResult, frozen=True, kw_only=True):
    """A suite's result with its verdicts: what ``mainstay validate --json`` prints."""

    verdict: Verdict
    reason: str
    verdicts: tuple[MetricVerdict, ...]
    points_to: tuple[Defect, ...] = ()
