"""Suites, validations, criteria and sweeps on the wire."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, Strict, model_validator

from probes.benchmarks.defects import Defect
from probes.benchmarks.result import Better, State
from probes.words import Verdict
from service.kit.schemas import Count, Input, JsonNumber, Name, Number, Output, ShortText, UnixSeconds
from service.validation.pair_schemas import PairOrderRead
from service.validation.schedule import next_run

Label = Annotated[ShortText, Field(min_length=1)]


MAX_ERROR = 2000
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


class ValidationState(StrEnum):
    QUEUED = "queued"
    TAKEN = "taken"
    RUNNING = "running"
    DONE = "done"
    EXPIRED = "expired"


class Lenient(Input):
    """Results of a node that may be newer than we are: what we do not know is left aside, not refused."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, frozen=True)


def _cut(text: Any) -> Any:
    """An error message is kept as far as it fits: the result matters more than its whole complaint."""
    return _UNSTORABLE.sub("\ufffd", text)[:MAX_ERROR] if isinstance(text, str) else text


CutText = Annotated[str, BeforeValidator(_cut)]


class MetricRead(Output):
    name: str
    unit: str
    better: Better


class BenchmarkRead(Output):
    name: str
    catches: str
    defects: list[Defect]
    """The classes of defect that it finds, the one it finds best first."""
    expected_seconds: float
    """Stated, on two cores or eight GPUs, whichever is longer."""
    metrics: list[MetricRead]


class SuiteRead(Output):
    name: str
    benchmarks: list[BenchmarkRead]
    expected_seconds: float


Part = Annotated[list[Label], Field(min_length=1, max_length=100)]
"""Names of benchmarks, a part of a suite."""


class ValidationCreate(Input):
    node: Name
    suite: Label
    benchmarks: Part | None = None


class Preemption(Input):
    """Call validations off: the machine is wanted for work."""

    reason: Label = "the machine is wanted for work"


class NodesPreemption(Preemption):
    nodes: Annotated[list[Name], Field(min_length=1, max_length=100_000)]


class StandingIn(Lenient):
    """How far a validation is: what the node says of it while it runs."""

    index: Count
    total: Count
    benchmark: ShortText
    device: ShortText
    state: Literal["running", "done"]
    done: Annotated[list[ShortText], Field(max_length=10_000)]


class StandingRead(Output):
    index: int
    """Runs of benchmarks that have ended."""
    total: int
    benchmark: str
    device: str
    state: Literal["running", "done"]
    done: list[str]


class ResultCriterion(Output):
    low: float | None
    high: float | None
    source: str
    n: int


class ValidationResult(Output):
    cohort: str
    """Whose criteria judged it: the machine's hardware and software at that time."""
    benchmark: str
    device: str
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
    benchmarks: list[str] | None
    """A part of the suite; null: all of it."""
    sweep: str | None
    run: str | None
    state: ValidationState
    held: bool
    """Queued, and waits for others of its run: too many at once, or under one switch."""
    attempt: int
    progress: StandingRead | None
    cancelled_at: float | None
    verdict: Verdict
    reason: str
    created_at: float
    started_at: float | None
    finished_at: float | None
    results: list[ValidationResult]


class OrderRead(Output):
    id: str
    kind: Literal["validate", "cancel"]
    suite: str
    benchmarks: list[str]
    validation_id: str
    deadline_at: float
    reason: str


class OrdersRead(Output):
    items: list[OrderRead | PairOrderRead]


class MetricIn(Lenient):
    name: Label
    unit: Annotated[ShortText, Field(max_length=32)]
    better: Better
    values: Annotated[list[Number], Field(max_length=10_000)]


class BenchmarkResultIn(Lenient):
    """What ``probes.benchmarks`` measured. A verdict that the node added itself is not looked at."""

    benchmark: Label
    state: State
    error: CutText | None
    seconds: Annotated[float, Field(ge=0, le=1e9), JsonNumber]
    device: ShortText
    metrics: Annotated[list[MetricIn], Field(max_length=256)]
    digest: Annotated[ShortText, Field(max_length=128)] | None = None


class ResultsIn(Lenient):
    suite: Label
    started_at: UnixSeconds
    finished_at: UnixSeconds
    benchmarks: Annotated[list[BenchmarkResultIn], Field(max_length=1024)]
    error: CutText | None = None


Similarity = Annotated[float, Field(gt=0, lt=1), JsonNumber]
Positive = Annotated[Number, Field(gt=0)]


class DistributionIn(Input):
    """A reference sample, as ``mainstay criteria fit`` learns it: the whole run is compared with it."""

    reference: Annotated[tuple[Positive, ...], Field(min_length=1, max_length=1000)]
    alpha: Similarity
    warn_alpha: Similarity
    repeatability: Annotated[float, Field(ge=0, le=1), JsonNumber] | None = None
    detectable: Annotated[float, Field(ge=0, le=1e6), JsonNumber] = 0.0
    excluded: Count = 0

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.alpha > self.warn_alpha:
            raise ValueError(f"alpha {self.alpha} is above warn_alpha {self.warn_alpha}")
        return self


class CriterionIn(Input):
    """A criterion that somebody states, or one learned elsewhere (``mainstay criteria fit``)."""

    benchmark: Label
    metric: Label
    cohort: Label
    better: Better
    low: Number | None
    high: Number | None
    unit: Annotated[ShortText, Field(max_length=32)] = ""
    warn: Number | None = None
    center: Number | None = None
    allowed: Annotated[tuple[Number, ...], Field(max_length=1000)] = ()
    n: Count = 0
    source: Label = "stated"
    distribution: DistributionIn | None = None

    @model_validator(mode="after")
    def _can_judge(self) -> Self:
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}")
        needed = {Better.HIGHER: self.low, Better.LOWER: self.high}
        if self.better in needed and needed[self.better] is None:
            raise ValueError(
                f"where {self.better} is better, {'low' if self.better is Better.HIGHER else 'high'} is needed"
            )
        return self


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
    unit: str
    warn: float | None
    center: float | None
    allowed: list[float]


class DistributionRead(Output):
    reference: list[float]
    """Values of the run that stands for all healthy ones, rising: its distribution function is drawn from them."""
    alpha: float
    """A run fails at this one-sided similarity or less."""
    warn_alpha: float
    repeatability: float | None
    detectable: float
    """The uniform slowdown, as a share, from which 95 % of devices fail."""
    excluded: int


class JudgedRun(Output):
    """One run's values, to be drawn beside the reference."""

    validation_id: str
    node: str
    device: str
    verdict: Verdict
    finished_at: float | None
    values: list[float]
    """Rising."""


class CriterionDetail(CriterionRead):
    distribution: DistributionRead | None
    runs: list[JudgedRun]
    """Newest first."""


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
    enabled: Annotated[bool, Strict()] = True
    cohort: Label | None = None
    benchmarks: Part | None = None
    at_once: Annotated[Count, Field(ge=1)] | None = None
    per_switch: Annotated[Count, Field(ge=1)] | None = None
    retries: Annotated[Count, Field(le=10)] = 0
    timeout_seconds: Annotated[float, Field(ge=1, le=14_400), JsonNumber] | None = None


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
    cohort: str | None
    benchmarks: list[str] | None
    at_once: int | None
    per_switch: int | None
    retries: int
    timeout_seconds: float | None
    created_at: float
    next_run_at: float | None
    last_run_at: float | None
    runs: list[SweepRun]
