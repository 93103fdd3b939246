"""The checkpoints of a job, as its coordinator sees them in their directory."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Strict

from mainstay.recovery.checkpoint.summary import CheckpointLevel, StepState
from mainstay.service.common.schemas import Bytes, Count, JsonNumber, Lenient, Name, Text, UnixSeconds, is_newer_kind

MAX_STEPS = 256
MAX_NAMED = 64

_Step = Annotated[int, Field(ge=0, lt=2**53), JsonNumber]
_Steps = Annotated[list[_Step], Field(max_length=MAX_NAMED)]
_Seconds = Annotated[float, Field(ge=0.0, le=1e12), JsonNumber]
_Error = Annotated[float, Field(ge=0.0, allow_inf_nan=False), JsonNumber]


def _known_state(value: Any) -> Any:
    """A state of a newer version is unknown, never complete."""
    return "unknown" if is_newer_kind(value, tuple(StepState)) else value


def _known_levels(levels: Any) -> Any:
    if not isinstance(levels, list):
        return levels
    return [level for level in levels if not is_newer_kind(level, tuple(CheckpointLevel))]


class ReportedBound(Lenient):
    """How far the values of a quantized step may be from those that were saved."""

    bits: Annotated[int, Field(ge=1, le=64), JsonNumber]
    """Of a value."""
    absolute: _Error
    """The largest error, of tensors that have negative values."""
    relative: _Error
    """The largest error in relation to the value, of tensors that have none."""


class ReportedStep(Lenient):
    """One step of the run."""

    step: _Step
    state: Annotated[StepState | Literal["unknown"], BeforeValidator(_known_state)]
    """complete; incomplete: it is being written, or was interrupted; on_nodes: each node has its own parts, for a
    recovery and ``--resume``; given_up: the job has gone back behind it; damaged; unknown: a newer state."""
    problem: Text
    """Why it is not complete, or only at the upload level; empty: nothing is wrong."""
    time: UnixSeconds | None
    """When it became complete."""
    ranks: Count
    """With a part of it."""
    disk_bytes: Bytes
    """Of its files, parity too."""
    parity_bytes: Bytes = 0
    """Of ``disk_bytes``: parity that decodes lost parts. 0 from an older coordinator, which counts none."""
    full_bytes: Bytes | None
    """Of the state that it restores; null while it is not complete."""
    quantized: ReportedBound | None = None
    """It restores values near those that were saved; null: the same bits, or unknown while it is not complete."""
    read_bytes: Bytes | None
    """The most that one rank reads to restore it, with the steps that it is built on."""
    levels: Annotated[list[CheckpointLevel], Field(max_length=8), BeforeValidator(_known_levels)]
    """local: in the checkpoint directory; upload: at the upload level."""
    pinned: Annotated[bool, Strict()]
    bases: _Steps
    """All steps that it is built on."""
    unreadable: _Steps
    """Later steps that cannot be read without it; the oldest 64."""
    previous: _Step | None
    """The next older usable step, to which a job without this one goes back; null: it begins again. Where that step is
    quantized, only a new start with ``--resume --accept-quantized`` does."""
    serves_recovery: Annotated[bool, Strict()] | None = None
    """A recovery of the running job may go back to it: not to one that only the upload level holds, nor to one of a run
    that writes quantized steps, unless the job continued from it. Null: the coordinator does not say."""
    restore_seconds: _Seconds | None
    """Predicted time to read it, for the slowest rank; null: no node has measured its disk yet."""
    seconds_lost: _Seconds | None
    """Of training, to make it again from ``previous``; null: unknown."""
    nodes: Annotated[list[Name], Field(max_length=MAX_NAMED)]
    """Nodes whose directory shows parts of it; the first of ``node_count``."""
    node_count: Count
    survives: Text
    """Which losses it outlives; empty: unknown."""


class UploadProblem(Lenient):
    """A node whose uploads fail; others continue with later steps."""

    node: Name
    problem: Text
    since: UnixSeconds


class Checkpoints(Lenient):
    """What the checkpoint directory holds of the present run."""

    run: Annotated[Text, Field(max_length=64)]
    directory: Text
    upload: Text | None
    """Place of the upload level; null: none."""
    upload_problems: Annotated[list[UploadProblem], Field(max_length=MAX_NAMED, default_factory=list)]
    """The first nodes whose uploads fail."""
    time: UnixSeconds
    """When the directory was read."""
    steps: Annotated[list[ReportedStep], Field(max_length=MAX_STEPS)]
    """The newest first."""
    omitted: Count
    """Older steps that are not listed."""
