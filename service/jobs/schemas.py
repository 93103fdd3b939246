"""Jobs on the wire: topology, protection, and what came of them."""

from __future__ import annotations

import shlex
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from mainstay.recovery.job_request import JobRequest, RequestKind, RequestState
from mainstay.service.common.schemas import (
    Bytes,
    Input,
    JsonNumber,
    Lenient,
    Name,
    Output,
    ShortText,
    Text,
    UnixSeconds,
    check_text,
    is_newer_kind,
)
from mainstay.service.events.schemas import MAX_RANK
from mainstay.service.jobs.checkpoints import Checkpoints
from mainstay.service.jobs.durability import Durability
from mainstay.service.jobs.strategy_decisions import StrategyEvaluation

MAX_WARNINGS = 64
MAX_RESULTS = 64
"""In one report; see ``mainstay.recovery.controller.job_requests.REMEMBERED``."""

Count = Annotated[int, Field(ge=1, le=MAX_RANK), JsonNumber]
Step = Annotated[int, Field(ge=0, lt=2**53), JsonNumber]
Spares = Annotated[int, Field(ge=0, le=MAX_RANK), JsonNumber]


class JobState(StrEnum):
    RUNNING = "running"
    RECOVERING = "recovering"
    FINISHED = "finished"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """A newer coordinator gave a state that this service does not know."""


class RankState(StrEnum):
    RUNNING = "running"
    LOST = "lost"
    RESTORING = "restoring"
    UNKNOWN = "unknown"


def _or_unknown(states: type[JobState | RankState]) -> BeforeValidator:
    """Take a state that only a newer version can know for unknown, never for the last one: that may be healthy."""
    return BeforeValidator(lambda value: states.UNKNOWN if is_newer_kind(value, tuple(states)) else value)


class TopologyRank(Lenient):
    rank: Annotated[int, Field(ge=0, lt=MAX_RANK), JsonNumber]
    dp: Annotated[int, Field(ge=0, lt=MAX_RANK), JsonNumber]
    pp: Annotated[int, Field(ge=0, lt=MAX_RANK), JsonNumber]
    tp: Annotated[int, Field(ge=0, lt=MAX_RANK), JsonNumber]
    node: Name
    device: Name | None
    pid: Annotated[int, Field(ge=0, lt=2**31), JsonNumber] | None
    state: Annotated[RankState, _or_unknown(RankState)]


class Topology(Lenient):
    dp: Count
    pp: Count
    tp: Count
    world_size: Count
    ranks: Annotated[list[TopologyRank], Field(max_length=MAX_RANK)]
    standbys: Annotated[dict[Name, Spares], Field(max_length=MAX_RANK)] | None = None
    """Node -> warm standbys that wait there and may take a rank; null where the coordinator does not say."""
    pipeline_depths: Annotated[list[Count], Field(min_length=1, max_length=MAX_RANK)] | None = None
    """Of each replica's pipeline, where they are unlike one another; ``pp`` is the deepest's then."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.pipeline_depths is not None:
            self._require_stages(self.pipeline_depths)
        elif self.dp * self.pp * self.tp != self.world_size:
            raise ValueError(f"dp {self.dp} x pp {self.pp} x tp {self.tp} is not world_size {self.world_size}")
        seen: set[int] = set()
        for place in self.ranks:
            if place.rank >= self.world_size:
                raise ValueError(f"rank {place.rank} does not exist in a world of {self.world_size}")
            if place.dp >= self.dp or place.pp >= self.pp or place.tp >= self.tp:
                raise ValueError(f"rank {place.rank} stands outside the {self.dp} x {self.pp} x {self.tp} grid")
            if place.rank in seen:
                raise ValueError(f"rank {place.rank} stands twice in the topology")
            seen.add(place.rank)
        return self

    def _require_stages(self, stages: list[int]) -> None:
        if (len(stages), max(stages), sum(stages) * self.tp) != (self.dp, self.pp, self.world_size):
            what = f"{self.dp} pipelines of at most {self.pp} stages, {self.world_size} ranks in all"
            raise ValueError(f"stages {stages} are not {what}")


class Protection(Lenient):
    slots: Annotated[int, Field(ge=0, le=16), JsonNumber]
    parity_every: Annotated[int, Field(ge=1, lt=2**31), JsonNumber] | None
    parity_group: Annotated[int, Field(ge=1, le=MAX_RANK), JsonNumber] | None
    disk_every: Annotated[int, Field(ge=1, lt=2**31), JsonNumber] | None
    state_bytes: Annotated[list[Bytes], Field(max_length=MAX_RANK)]
    run: Annotated[str, Field(max_length=64), AfterValidator(check_text)] | None = None
    """The start of the job whose steps lie on disk under this id (``--resume RUN``); null without a disk level."""
    warnings: Annotated[list[Text], Field(max_length=MAX_WARNINGS)] | None = None
    """Nodes and domains whose loss the scheme does not cover, one sentence each; null if not reported."""
    durability: Durability | None = None
    """As it was when the coordinator last looked; null where it does not look."""


def _as_text(command: Any) -> Any:
    if isinstance(command, list) and all(isinstance(part, str) for part in command):
        return shlex.join(command)
    return command


class JobRequestReport(Lenient):
    """The result of a request, as the coordinator reports it."""

    id: Annotated[str, Field(min_length=1, max_length=128)]
    state: RequestState
    detail: Annotated[str, AfterValidator(check_text), Field(max_length=500)] = ""
    seconds: Annotated[float, Field(ge=0, le=1e9), JsonNumber] | None = None
    """That training stood still."""
    steps_lost: Step | None = None
    step: Step | None = None
    """Training continued after it, or it is on disk."""


class JobReport(Lenient):
    """The report of a coordinator about its job, sent every few seconds and after each change."""

    name: Annotated[ShortText, Field(min_length=1)]
    state: Annotated[JobState, _or_unknown(JobState)]
    generation: Annotated[int, Field(ge=0, lt=2**31), JsonNumber]
    command: Annotated[Text, BeforeValidator(_as_text)]
    """As one would type it; a list of arguments is accepted too."""
    topology: Topology
    protection: Protection
    steps_total: Step | None
    last_step: Step | None
    """Number of steps committed so far: steps count from 1."""
    started_at: UnixSeconds
    finished_at: UnixSeconds | None
    requests: Annotated[list[JobRequestReport], Field(max_length=MAX_RESULTS, default_factory=list)]
    """What became of requests to this job."""
    request_obstacles: Annotated[dict[ShortText, Text], Field(max_length=32)] | None = None
    """Kind of request -> why the job can carry out none now; empty: it can. Null where the coordinator does not say."""
    checkpoints: Checkpoints | None = None
    """Sent when they change and each half minute; null: those of an earlier report count."""

    @field_validator("requests", mode="before")
    @classmethod
    def _set_aside_newer_states(cls, results: Any) -> Any:
        if not isinstance(results, list):
            return results
        known = tuple(RequestState)
        return [r for r in results if not (isinstance(r, dict) and is_newer_kind(r.get("state"), known))]


class JobRequestCreate(Input):
    """A request to a running job."""

    kind: RequestKind
    node: Name | None = None
    """Whose ranks it is about: migrate, restore, degrade, check."""
    rank: Annotated[int, Field(ge=0, lt=MAX_RANK), JsonNumber] | None = None
    """Instead of ``node``: migrate, restore, check."""
    target: Name | None = None
    """Node that ranks should move to; the coordinator chooses if it is not given."""
    dp: Spares = 0
    """Data-parallel replicas: reshape. 0: as it is."""
    pp: Spares = 0
    """Pipeline stages, likewise."""
    tp: Spares = 0
    """Tensor-parallel ranks, likewise."""
    stages: Annotated[tuple[Count, ...], Field(max_length=MAX_RANK)] = ()
    """Of each pipeline, instead of ``dp`` and ``pp``: reshape."""
    reason: Annotated[ShortText, Field(min_length=1)]

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        JobRequest(id="unnamed", **self.model_dump(exclude={"reason"}))
        return self


class JobRequestRead(Output):
    """A request to a job, and its result."""

    id: str
    job: str
    kind: RequestKind
    node: str | None
    rank: int | None
    target: str | None
    dp: int
    pp: int
    tp: int
    stages: list[int]
    reason: str
    finding: str | None
    """That it rests on; null where a person gave it."""
    actor: str
    state: RequestState
    detail: str
    seconds: float | None
    steps_lost: int | None
    step: int | None
    created_at: float
    updated_at: float


class JobRead(Output):
    id: str
    name: str
    state: JobState
    generation: int
    command: str
    topology: Topology
    protection: Protection
    steps_total: int | None
    last_step: int | None
    started_at: float
    finished_at: float | None
    last_seen_at: float
    open_incidents: int
    recoveries: int
    ettr: float | None
    request_obstacles: dict[str, str] | None
    """Kind of request -> why the job can carry out none now; empty: it can. Null where the coordinator does not say."""


class NodeWarningRead(Output):
    """A warning about a node of the job."""

    reason: str
    factor: float
    """It is taken to fail so many times as often as others."""
    since: float
    corrupt: bool
    """It computes wrongly, at least since then: steps that it took part in are corrupt."""
    cordoned: bool
    """It takes no rank: out of service, or a finding wants work off it. Others take one where no other node can."""


class JobAnswer(JobRead):
    """The response to the report of a coordinator."""

    node_warnings: dict[str, NodeWarningRead]
    """Node -> why it should not be trusted."""
    requests: list[JobRequestRead]
    """What the job has still to answer, oldest first."""


class RecoveryRead(Output):
    """One recovery: the failure, the chosen strategy, and the actual times."""

    id: str
    job: str
    generation: int | None
    failed_at: float
    planned_at: float | None
    recovered_at: float | None
    verified_at: float | None
    failed_ranks: list[int]
    restore_strategy: str | None
    steps_lost: int | None
    planned_seconds: float | None
    """Of the restore that the planner chose, from the decision on."""
    seconds: float | None
    parts: dict[str, float]
    epoch: int | None
    outcome: str
    incident: Annotated[str | None, Field(validation_alias="incident_id")]
    strategy: str | None
    """The recovery strategy that was carried out; null where no strategies were evaluated."""
    predicted_seconds: float | None
    """From the failure to the first committed step, as predicted; ``seconds`` is what that took."""
    excess_cost_seconds: float | None
    """That the best alternative, as it was predicted, would have saved."""
    decision: StrategyEvaluation | None
    """All options that were weighed at the failure; null where the coordinator does not say."""


class StepsRead(Output):
    """Per-rank step times as columns: ``step_time_seconds[r][k]`` belongs to ``ranks[r]`` and ``steps[k]``."""

    steps: list[int]
    ranks: list[int]
    step_time_seconds: list[list[float | None]]
    compute_time_seconds: list[list[float | None]]
    loss: list[float | None]
