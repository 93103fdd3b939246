"""Criteria as they are stated, learned and read."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from mainstay.detectors.validation.criterion_limits import Distribution
from mainstay.detectors.validation.sessions import Sessions
from mainstay.detectors.validation.verdict import Criterion
from mainstay.probes.benchmarks.result import Better
from mainstay.probes.core_types import Verdict
from mainstay.service.common.schemas import Count, Input, JsonNumber, Number, Output, ShortText, fields_of
from mainstay.service.validation.schemas import Label

Similarity = Annotated[float, Field(gt=0, lt=1), JsonNumber]
Positive = Annotated[Number, Field(gt=0)]


class DistributionIn(Input):
    """A reference sample, as ``mainstay criteria fit`` learns it. Whole runs are compared with it."""

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


Scatter = Annotated[float, Field(ge=0, le=1e6), JsonNumber]


class SessionsIn(Input):
    """The sessions from which a criterion was learned (``mainstay criteria fit``)."""

    count: Annotated[Count, Field(ge=1)]
    within: Scatter | None = None
    between: Scatter | None = None
    freedom: Count | None = None

    @model_validator(mode="after")
    def _as_many(self) -> Self:
        if (self.count == 1) != (self.between is None):
            raise ValueError("between is known from two sessions on, and never from one")
        return self


class CriterionIn(Input):
    """A criterion that an operator states, or one learned on another system (``mainstay criteria fit``)."""

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
    sessions: SessionsIn | None = None

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


@fields_of(Sessions)
class SessionsRead(Output):
    """Periods in which runs of one machine share conditions; scatters are ratios of the typical value."""


@fields_of(Criterion, without={"distribution"})
class CriterionRead(Output):
    learned_at: float
    sessions: SessionsRead | None
    """Null: not recorded, stated by an operator, or a fingerprint."""


@fields_of(Distribution)
class DistributionRead(Output):
    pass


class CriterionRun(Output):
    """The values of one run."""

    validation_id: str
    node: str
    device: str
    verdict: Verdict
    finished_at: float | None
    values: list[float]
    """Rising."""


class CriterionDetail(CriterionRead):
    distribution: DistributionRead | None
    runs: list[CriterionRun]
    """Newest first; those of a validation that was asked for come last where they are older."""


class CriteriaIn(Input):
    items: Annotated[list[CriterionIn], Field(max_length=10_000)]


class CriteriaLearn(Input):
    cohort: Label | None = None
