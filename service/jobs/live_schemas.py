"""Live data of a running job: signals by rank and step, progress, transfers, and detectors."""

from __future__ import annotations

from typing import Literal

from mainstay.detectors.base import DetectorState
from mainstay.service.common.schemas import Output
from mainstay.service.jobs.checkpoints import Checkpoints

ProgressState = Literal["moving", "waiting", "masked", "hung", "unknown"]


class SignalsRead(Output):
    """Signals of source ``rank`` as columns: ``signals[name][r][k]`` belongs to ``ranks[r]`` and ``steps[k]``."""

    steps: list[int]
    ranks: list[int]
    signals: dict[str, list[list[float | None]]]


class RankProgress(Output):
    """The last report of one rank; null means unknown."""

    rank: int
    node: str | None
    step: int | None
    phase: int | None
    """``StepPhase``: 0 train, 1 warm-up, 2 compile, 3 evaluate, 4 checkpoint."""
    in_collective_seconds: float | None
    age_seconds: float | None
    """Seconds since its last report."""
    enqueued: dict[str, int]
    completed: dict[str, int]


class ProgressRead(Output):
    """The activity of all ranks of a job, and whether the job progresses."""

    time: float
    state: ProgressState
    """moving; waiting: nothing ended for a while, within the limit; masked: in a phase that may be long and silent;
    hung: a detector found a hang; unknown: no recent report."""
    quiet_seconds: float | None
    """Since a step or a collective of any rank ended."""
    limit_seconds: float | None
    """How long that may last before it is a hang, where a detector has learned it."""
    phase: int | None
    """The phase that most ranks are in."""
    kinds: list[str]
    """Kinds of process group that the ranks count, outermost first."""
    ranks: list[RankProgress]
    """In order of rank; of a large job those that lag most."""
    omitted: int
    """Ranks that are not listed."""


class TransfersRead(Output):
    """Medians over the last steps: ``seconds[s][d]`` from ``ranks[s]`` to ``ranks[d]``.

    For a job with many ranks, the response contains the slowest transfers.
    """

    first: int | None
    last: int | None
    ranks: list[int]
    seconds: list[list[float | None]]
    bytes: list[list[float | None]]


class DetectorStatusRead(Output):
    """The status of one detector.

    A detector that learns or abstains has evaluated nothing, which is not evidence of health.
    """

    name: str
    state: DetectorState
    reason: str
    numbers: dict[str, float | None]


class DetectorStatusList(Output):
    detectors: list[DetectorStatusRead]


class CheckpointsRead(Output):
    """The checkpoints of the present run, as last reported."""

    reported_at: float | None
    """Null: the coordinator has reported none."""
    checkpoints: Checkpoints | None
