"""What a post-mortem and a link to it look like on the wire. Null: not known."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from mainstay.detectors.finding import FindingKind
from mainstay.probes.core_types import Severity
from mainstay.service.common.schemas import Input, Output
from mainstay.service.incidents.schemas import EntityRead, IncidentRead
from mainstay.service.remediation.schemas import RemediationRead

DAY: Final = 86_400


class PostMortemCulprit(Output):
    """Where the fault is, as far as it is known."""

    node: str | None
    rack: str | None
    device: str | None
    """Name of the device on its node."""
    gpu: int | None
    """Index of the GPU; null for other devices."""
    serial: str | None


class PostMortemTimes(Output):
    """Unix seconds and seconds."""

    failed_at: float | None
    """When the first recovery says that its job stopped."""
    first_finding_at: float | None
    opened_at: float
    acknowledged_at: float | None
    recovered_at: float | None
    """Null also where the fault came back and did not end by a recovery."""
    closed_at: float | None
    detection_seconds: float | None
    """From the failure, or else from the first finding, to the incident."""
    acknowledge_seconds: float | None
    """From the opening to the acknowledgement."""
    recovery_seconds: float | None
    """From the opening to the recovery."""


class PostMortemJob(Output):
    id: str
    name: str
    gpus: int | None
    """Ranks of the job."""
    stopped_seconds: float | None
    """Time in which it stood still, by its recoveries."""
    idle_gpu_hours: float | None
    steps_lost: int | None


class PostMortemImpact(Output):
    jobs: list[PostMortemJob]
    gpus: int | None
    steps_lost: int | None
    idle_gpu_hours: float | None
    is_partial: bool
    """Whether something is not known of a job: the sums are then lower limits."""


class PostMortemEntry(Output):
    time: float
    kind: str
    text: str


class PostMortemComment(Output):
    time: float
    author: str
    text: str


class PostMortemEvidence(Output):
    """A sentence and key figures."""

    summary: str
    numbers: dict[str, float | None]


class PostMortemFinding(Output):
    """A finding without its series."""

    kind: FindingKind
    entity: EntityRead
    time: float
    severity: Severity
    detector: str
    confidence: float
    active: bool
    evidence: PostMortemEvidence


class PostMortemAlternative(Output):
    strategy: str
    feasible: bool
    reason: str
    seconds: float | None
    """Predicted time from the decision to the first new step."""
    steps_lost: int | None
    cost_seconds: float | None
    """Predicted time and steps to repeat together."""


class PostMortemPlan(Output):
    """The alternatives of a recovery plan and the chosen one."""

    id: str
    created_at: float
    chosen: str | None
    explanation: str
    alternatives: list[PostMortemAlternative]


class PostMortemRecovery(Output):
    """What a recovery was predicted to cost, and what it cost."""

    job: str
    strategy: str | None
    outcome: str
    measured_from: Literal["failure", "decision"]
    """Where both times begin. They end with the first new step."""
    predicted_seconds: float | None
    actual_seconds: float | None
    steps_lost: int | None
    excess_cost_seconds: float | None
    """That the best alternative, as predicted, would have saved."""


class PostMortemRead(Output):
    created_at: float
    incident: IncidentRead
    culprit: PostMortemCulprit
    times: PostMortemTimes
    impact: PostMortemImpact
    timeline: list[PostMortemEntry]
    findings: list[PostMortemFinding]
    """At most 200, those that hold before others."""
    findings_total: int
    plan: PostMortemPlan | None
    """The newest one."""
    remediations: list[RemediationRead]
    recoveries: list[PostMortemRecovery]
    comments: list[PostMortemComment]


class ShareCreate(Input):
    """A link that shows the post-mortem of an incident without signing in."""

    expires_in: Annotated[int, Field(ge=60, le=30 * DAY, strict=True)] = 7 * DAY
    """Seconds."""


class ShareRead(Output):
    url: str
    expires_at: int
    """Unix seconds."""


class ShareToken(Input):
    """The token of a link: the part of its address after ``#``."""

    token: Annotated[str, Field(min_length=1, max_length=1000)]
