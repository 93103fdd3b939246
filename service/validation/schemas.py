"""Suites, validations and sweeps on the wire."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Final, Literal, cast

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, Strict, WithJsonSchema, model_validator
from pydantic.config import JsonDict

from mainstay.probes.benchmarks.pair_protocol import PairTask
from mainstay.probes.benchmarks.result import BenchmarkState, Better, Metric
from mainstay.probes.benchmarks.suites import BenchmarkInfo, SuiteInfo
from mainstay.probes.core_types import Verdict
from mainstay.probes.validation_tasks import ValidationProgress, ValidationTask
from mainstay.service.common.schemas import (
    Count,
    Input,
    JsonNumber,
    Lenient,
    Name,
    Number,
    Output,
    ShortText,
    UnixSeconds,
    fields_of,
)
from mainstay.service.common.selectors import TimeZone
from mainstay.service.fleet.bulk_schemas import NodeSelector
from mainstay.service.validation.models import ResultRow, SweepRow, ValidationState
from mainstay.service.validation.schedule import next_run

Label = Annotated[ShortText, Field(min_length=1)]


MAX_ERROR = 2000
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def _cut(text: Any) -> Any:
    """An error message is kept as far as it fits: the result matters more than its whole complaint."""
    return _UNSTORABLE.sub("\ufffd", text)[:MAX_ERROR] if isinstance(text, str) else text


CutText = Annotated[str, BeforeValidator(_cut)]


@fields_of(Metric)
class MetricRead(Output):
    pass


@fields_of(BenchmarkInfo, without={"optional"})
class BenchmarkRead(Output):
    metrics: list[MetricRead]


@fields_of(SuiteInfo, without={"about"})
class SuiteRead(Output):
    benchmarks: list[BenchmarkRead]


Part = Annotated[list[Label], Field(min_length=1, max_length=100)]
"""Names of benchmarks, a part of a suite."""
Again = Annotated[Count, Field(le=5)]
"""How often a benchmark is measured again that is slower than it may be: it fails if it is slow every time."""


class ValidationCreate(Input):
    node: Name
    suite: Label
    benchmarks: Part | None = None
    remeasure: Again = 0
    allow_occupied: Annotated[bool, Strict()] = False
    """Run even if a job runs on the node: it slows the job down, and the job falsifies what is measured."""


class Preemption(Input):
    """Cancel validations on nodes that a job needs."""

    reason: Label = "the machine is wanted for work"


class NodesPreemption(Preemption):
    nodes: Annotated[list[Name], Field(min_length=1, max_length=100_000)]


class ValidationProgressCreate(Lenient):
    """The progress of a validation, as the node reports it while it runs."""

    index: Count
    total: Count
    benchmark: ShortText
    device: ShortText
    state: Literal["running", "done"]
    done: Annotated[list[ShortText], Field(max_length=10_000)]


@fields_of(ValidationProgress)
class ValidationProgressRead(Output):
    pass


class ResultCriterion(Output):
    low: float | None
    high: float | None
    source: str
    n: int


@fields_of(ResultRow, without={"id", "validation_id", "position", "better", "values", "digest"})
class ValidationResult(Output):
    verdict: Verdict
    criterion: ResultCriterion | None


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
    """Queued, and waits for others of its run (too many at once, or under one switch) or for a job on the node. If it
    expired: it was skipped."""
    allow_occupied: bool
    attempt: int
    remeasure: int
    progress: ValidationProgressRead | None
    cancelled_at: float | None
    verdict: Verdict
    reason: str
    created_at: float
    started_at: float | None
    finished_at: float | None
    results: list[ValidationResult]


@fields_of(ValidationTask)
class ValidationTaskRead(Output):
    kind: Literal["validate", "cancel"]


@fields_of(PairTask)
class PairTaskRead(Output):
    """A task to measure with a peer; see ``mainstay.probes.benchmarks.pair_protocol``."""


class NodeTaskList(Output):
    items: list[ValidationTaskRead | PairTaskRead]


class MetricIn(Lenient):
    name: Label
    unit: Annotated[ShortText, Field(max_length=32)]
    better: Better
    values: Annotated[list[Number], Field(max_length=10_000)]


class BenchmarkResultIn(Lenient):
    """The measurements of ``mainstay.probes.benchmarks``. A verdict from the node itself is ignored."""

    benchmark: Label
    state: BenchmarkState
    error: CutText | None
    seconds: Annotated[float, Field(ge=0, le=1e9), JsonNumber]
    device: ShortText
    metrics: Annotated[list[MetricIn], Field(max_length=256)]
    digest: Annotated[ShortText, Field(max_length=128)] | None = None
    remeasured: Count = 0


class ResultsIn(Lenient):
    suite: Label
    started_at: UnixSeconds
    finished_at: UnixSeconds
    benchmarks: Annotated[list[BenchmarkResultIn], Field(max_length=1024)]
    error: CutText | None = None


def _fires(schedule: str) -> str:
    next_run(schedule, 0.0)  # raises ScheduleError, a ValueError, on text that can never fire
    return schedule


def _unix_seconds(value: Any) -> Any:
    """A time as text with an offset, as Unix seconds."""
    if not isinstance(value, str):
        return value
    moment = datetime.fromisoformat(value)
    if moment.tzinfo is None:
        raise ValueError("a time as text needs an offset, such as 2026-03-01T02:00:00+01:00")
    return moment.timestamp()


_TIMES: Final = [{"type": "number", "minimum": 0}, {"type": "string", "format": "date-time"}]
Moment = Annotated[UnixSeconds, BeforeValidator(_unix_seconds), WithJsonSchema({"anyOf": _TIMES})]
"""Unix seconds, or ISO 8601 with an offset."""


def _no_defaults(schema: JsonDict) -> None:
    for field in cast(dict[str, JsonDict], schema["properties"]).values():
        field.pop("default", None)


class _SweepLimits(NodeSelector):
    schedule: Annotated[str, Field(max_length=200), AfterValidator(_fires)] | None = None
    """Cron text in ``timezone``, or ``every 3600s``; null: only by ``run_at``, or on request."""
    timezone: Annotated[TimeZone, Field(max_length=64)] = "UTC"
    run_at: Moment | None = None
    """Run once, at this time: Unix seconds, or ISO 8601 with an offset. Excludes ``schedule``."""
    nodes: Annotated[list[Name], Field(max_length=100_000)] | None = None
    """Only these; null: any."""
    cohort: Annotated[Label | None, Field(json_schema_extra={"deprecated": True})] = None
    """The older form of ``cohorts``, which wins if both are sent."""
    benchmarks: Part | None = None
    max_concurrent: Annotated[Count, Field(ge=1)] | None = None
    max_per_switch: Annotated[Count, Field(ge=1)] | None = None
    timeout_seconds: Annotated[float, Field(ge=1, le=14_400), JsonNumber] | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_cohort(cls, fields: Any) -> Any:
        if not isinstance(fields, dict) or "cohort" not in fields or "cohorts" in fields:
            return fields
        return fields | {"cohorts": [] if fields["cohort"] is None else [fields["cohort"]]}


class SweepCreate(_SweepLimits):
    name: Label
    suite: Label
    enabled: Annotated[bool, Strict()] = True
    retries: Annotated[Count, Field(le=10)] = 0
    remeasure: Again = 0


class SweepChange(_SweepLimits):
    """The changed fields of a sweep. ``version`` is the version that was read; it prevents lost updates.

    Fields that are not sent keep their value: the API document states no default.
    """

    model_config = ConfigDict(json_schema_extra=_no_defaults)

    version: Annotated[Count, Field(ge=1)]
    name: Label = ""
    suite: Label = ""
    enabled: Annotated[bool, Strict()] = True
    retries: Annotated[Count, Field(le=10)] = 0
    remeasure: Again = 0

    @property
    def sent_fields(self) -> dict[str, Any]:
        """The fields that the client sent; the defaults apply only at creation."""
        return {name: getattr(self, name) for name in self.model_fields_set - {"version"}}


class SkippedNodes(Output):
    reason: Literal["job", "silent"]
    """``job``: a job runs on them, so they wait. ``silent``: they do not report, so they would not fetch the task."""
    count: int


class SweepPreview(Output):
    """What a run of a sweep would do now."""

    matched: int
    """Nodes that meet the criteria."""
    validated: int
    """Of these, nodes that would be validated."""
    nodes: list[str]
    """Names of the first 50 that would be validated."""
    skipped: list[SkippedNodes]
    seconds: float
    """How long the run would take, with its limits."""
    node_hours: float
    """That validations would take of the nodes, together."""
    measured: int
    """Nodes whose time is the median of their earlier validations of the suite; of the others, the suite's estimate."""
    next_runs: list[float]
    """The next three, Unix seconds."""


class SweepCounts(Output):
    passed: Annotated[int, Field(serialization_alias="pass")]
    warn: int
    fail: int
    unknown: int
    skipped: int
    """A job ran on the node all the time; the node's verdict stays as it was."""
    pending: int


class SweepRun(Output):
    id: str
    started_at: float
    finished_at: float | None
    counts: SweepCounts


@fields_of(SweepRow)
class SweepRead(Output):
    runs: list[SweepRun]
