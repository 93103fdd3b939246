"""Suites, validations, criteria and sweeps on the wire."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from probes.words import Verdict
from service.kit.schemas import Count, Input, Name, Output, ShortText, Text, UnixSeconds
from service.validation.schedule import next_run

Better = Literal["higher", "lower", "equal"]
Label = Annotated[ShortText, Field(min_length=1)]


class ValidationState(StrEnum):
    QUEUED = "queued"
    TAKEN = "taken"
    RUNNING = "running"
    DONE = "done"
    EXPIRED = "expired"


class MetricRead(Output):
    name: str
    unit: str
    better: Better


class BenchmarkRead(Output):
    name: str
    metrics: list[MetricRead]


class SuiteRead(Output):
    name: str
    benchmarks: list[BenchmarkRead]
    expected_seconds: float


class ValidationCreate(Input):
    node: Name
    suite: Label


class ResultCriterion(Output):
    low: float | None
    high: float | None
    source: str
    n: int


class ValidationResult(Output):
    benchmark: str
    metric: str
    unit: str
    value: float | None
    verdict: Verdict
    criterion: ResultCriterion | None
    reason: str


class ValidationRead(Output):
    id: str
    node: str
    suite: str
    sweep: str | None
    state: ValidationState
    verdict: Verdict
    reason: str
    created_at: float
    started_at: float | None
    finished_at: float | None
    results: list[ValidationResult]


class OrderRead(Output):
    id: str
    kind: Literal["validate"]
    suite: str
    validation_id: str
    deadline_at: float


class OrdersRead(Output):
    items: list[OrderRead]


class MetricIn(Input):
    name: Label
    unit: Annotated[str, Field(max_length=32)]
    better: Better
    values: Annotated[list[float], Field(max_length=10_000)]


class BenchmarkResultIn(Input):
    """What ``probes.benchmarks`` measured, before anyone judged it."""

    benchmark: Label
    state: Literal["ok", "error", "timeout", "unsupported"]
    error: Text | None
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    device: Label
    metrics: Annotated[list[MetricIn], Field(max_length=256)]
    digest: Annotated[str, Field(max_length=128)] | None


class ResultsIn(Input):
    suite: Label
    started_at: UnixSeconds
    finished_at: UnixSeconds
    benchmarks: Annotated[list[BenchmarkResultIn], Field(max_length=256)]
    error: Text | None


class CriterionIn(Input):
    benchmark: Label
    metric: Label
    cohort: Label
    better: Better
    low: float | None
    high: float | None
    n: Count = 0
    source: Label = "stated"


class CriterionRead(Output):
    benchmark: str
    metric: str
    cohort: str
    better: Better
    low: float | None
    high: float | None
    n: int
    source: str
    learned_at: float


class CriteriaIn(Input):
    items: Annotated[list[CriterionIn], Field(max_length=10_000)]


class CriteriaLearn(Input):
    cohort: Label | None = None


def _fires(schedule: str) -> str:
    next_run(schedule, 0.0)  # raises ScheduleError, a ValueError, on text that can never fire
    return schedule


class SweepCreate(Input):
    name: Label
    suite: Label
    schedule: Annotated[str, Field(max_length=200), AfterValidator(_fires)] | None = None
    nodes: Annotated[list[Name], Field(max_length=100_000)] | None = None
    enabled: bool = True


class SweepCounts(Output):
    passed: Annotated[int, Field(serialization_alias="pass")]
    warn: int
    fail: int
    unknown: int
    pending: int


class SweepRun(Output):
    id: str
    started_at: float
    finished_at: float | None
    counts: SweepCounts


class SweepRead(Output):
    id: str
    name: str
    suite: str
    schedule: str | None
    nodes: list[str] | None
    enabled: bool
    created_at: float
    next_run_at: float | None
    last_run_at: float | None
    runs: list[SweepRun]
