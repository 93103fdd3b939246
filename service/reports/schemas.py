"""What a reliability report looks like on the wire."""

from __future__ import annotations

from typing import Literal

from mainstay.service.common.schemas import Output
from mainstay.service.reports.components import Component
from mainstay.service.reports.reliability import Between


class BetweenRead(Output):
    """Mean time between failures with its 95 % limits, in hours; null where no failure bounds it."""

    exposure_hours: float
    """Hours in service of the nodes, or of the GPUs, together."""
    failures: int
    hours: float | None
    low: float
    high: float | None

    @classmethod
    def of_period(cls, found: Between) -> BetweenRead:
        return cls.model_validate(found)


class LostGpuHours(Output):
    """GPU hours that were lost, by what they were lost to."""

    detection: float
    """Until Mainstay noticed that a job stood still."""
    recovery: float
    """From then until training continued."""
    repeated: float
    """Steps that were made again."""
    degraded: float
    """Ranks that were absent while their job trained without them."""
    out_of_service: float
    """Nodes that were draining, quarantined, or being validated."""


class DrainCounts(Output):
    """Drains that Mainstay proposed or made for findings, by whether they were needed."""

    drains: int
    false_drains: int
    """A validation passed without a repair, and no finding of the same kind came within seven days."""
    confirmed: int
    """The validation failed, the node was repaired, or a finding of the same kind came within seven days."""
    not_validated: int
    undecided: int
    """The seven days are not over, or it is not known whether the node restarted."""
    ratio: float | None
    """False drains among those that are false or confirmed, with its 95 % limits; null without any."""
    low: float | None
    high: float | None


class DetectorReliability(DrainCounts):
    """Drains for findings of one detector. A drain for findings of two detectors counts for each."""

    detector: str


class ReliabilitySummary(Output):
    jobs: int
    gpu_hours: float
    """Of jobs: ranks times wall time."""
    ettr: float | None
    """Effective training time ratio, weighted by GPU hours."""
    lost_gpu_hours: LostGpuHours
    incidents: int
    recoveries: int
    failed_recoveries: int
    mean_repair_seconds: float | None
    """From the opening of an incident to its recovery."""
    between_failures: BetweenRead
    drains: DrainCounts
    saved_gpu_hours: float
    """Against a restart from the last checkpoint for each recovery."""


class JobReliability(Output):
    id: str
    name: str
    ranks: int
    hours: float
    ettr: float | None
    recoveries: int
    failed_recoveries: int
    steps_lost: int
    lost_gpu_hours: float
    degraded_gpu_hours: float
    """Of ranks that were absent while it trained."""


class CauseReliability(Output):
    cause: str
    """Of incidents; ``unknown`` where none is named."""
    incidents: int
    mean_repair_seconds: float | None
    lost_gpu_hours: float
    """Of jobs that stood still because of it."""


class TeamReliability(Output):
    team: str | None
    """Null: the jobs that are in no team."""
    jobs: int
    shared_jobs: int
    """Of these, the jobs that are in another team too. They count in each."""
    gpu_hours: float
    productive_gpu_hours: float
    """Without those that were lost: the goodput."""
    lost_gpu_hours: float
    ettr: float | None
    """Effective training time ratio, weighted by GPU hours."""
    recoveries: int
    failed_recoveries: int


class ComponentReliability(Output):
    component: Component
    """``other`` is none of a node, such as software; ``unknown`` where neither cause nor findings name one."""
    unit: Literal["gpu", "node"]
    """Whose hours in service count between failures."""
    mean_repair_seconds: float | None
    between_failures: BetweenRead


class BatchReliability(Output):
    """GPUs of one model and VBIOS."""

    model: str
    firmware: str | None
    """VBIOS version; null: not reported."""
    gpus: int
    between_failures: BetweenRead
    """Of GPUs."""


class CohortReliability(Output):
    cohort: str
    nodes: int
    mean_repair_seconds: float | None
    between_failures: BetweenRead


class NodeReliability(Output):
    name: str
    incidents: int
    out_of_service_hours: float


class ReliabilityRead(Output):
    since: float
    until: float
    """Unix seconds."""
    summary: ReliabilitySummary
    before: ReliabilitySummary
    """Of the period of the same length before it."""
    jobs: list[JobReliability]
    """Those that lost most, at most 200."""
    teams: list[TeamReliability]
    causes: list[CauseReliability]
    detectors: list[DetectorReliability]
    components: list[ComponentReliability]
    batches: list[BatchReliability]
    failures_in_no_batch: int
    """Failures of GPUs of which the batch is not known."""
    cohorts: list[CohortReliability]
    nodes: list[NodeReliability]
    """Those with most incidents, at most 20."""
    assumptions: list[str]
