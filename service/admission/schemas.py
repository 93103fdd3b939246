"""The gate on the wire."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, Strict

from mainstay.service.admission.models import AdmissionPauseRow
from mainstay.service.admission.responses import (
    AdmissionResponse,
    NodeAdmissionResponse,
    SelectedNodeResponse,
    SelectionResponse,
    UnfitNodes,
)
from mainstay.service.admission.rules import Reason
from mainstay.service.common.schemas import Count, Input, JsonNumber, Name, Output, ShortText, UnixSeconds, fields_of

MAX_NODES = 100_000


class AdmissionLimits(Input):
    """What a job asks of each node."""

    gpus_per_node: Annotated[Count, Field(ge=1, le=1024)] | None = None
    suite: Annotated[ShortText, Field(min_length=1)] | None = None
    """The weakest suite whose pass counts in full; null: as configured."""
    max_age_hours: Annotated[float, Field(gt=0, le=87_600), JsonNumber] | None = None
    """A check older than this counts less; null: as configured."""


class AdmissionIn(AdmissionLimits):
    """A job that is to start on these nodes."""

    job: Name
    nodes: Annotated[list[Name], Field(min_length=1, max_length=MAX_NODES)]
    spares: Annotated[Count, Field(le=10_000)] | None = None
    """How many spare nodes to name; null: as many as are denied."""
    preempt: Annotated[bool, Strict()] = False
    """Cancel validations that run on these nodes: each node releases its GPUs within 5 s."""
    preflight: Annotated[bool, Strict()] = False
    """Order the suite on every node that is denied for want of a valid check; ask again when they have ended."""


class SelectionIn(AdmissionLimits):
    """A job, or an operator, that needs so many nodes."""

    count: Annotated[Count, Field(ge=1, le=MAX_NODES)]
    job: Name | None = None
    """Nodes on which it runs already count as free; null: no job."""
    racks: Annotated[tuple[ShortText, ...], Field(max_length=1000)] = ()
    """Only nodes in these racks; empty: in any."""
    cohorts: Annotated[tuple[ShortText, ...], Field(max_length=1000)] = ()
    """Only nodes of these cohorts; empty: of any."""
    exclude: Annotated[tuple[Name, ...], Field(max_length=MAX_NODES)] = ()
    """Names of nodes that are not wanted."""
    degraded: Annotated[bool, Strict()] = True
    """Whether nodes that admission allows as degraded may fill the number."""


class AdmissionPauseBody(Input):
    """Pause admission of new work."""

    rack: Name | None = None
    """Null: the whole fleet."""
    reason: Annotated[ShortText, Field(min_length=1)]


class AdmissionResumeBody(Input):
    """End a pause."""

    rack: Name | None = None
    """Null: that of the whole fleet; pauses of racks still hold."""
    reason: Annotated[ShortText, Field(min_length=1)]


class AdmissionPauseRead(Output):
    """Admission of new work is paused; running jobs may still restart."""

    rack: str | None
    """Null: the whole fleet."""
    reason: str
    actor: str
    created_at: UnixSeconds

    @classmethod
    def from_row(cls, row: AdmissionPauseRow) -> Self:
        """What is stored."""
        return cls(rack=row.rack or None, reason=row.reason, actor=row.actor, created_at=row.created_at)


class AdmissionPauseList(Output):
    """All pauses, that of the fleet first."""

    items: list[AdmissionPauseRead]


@fields_of(Reason)
class ReasonRead(Output):
    pass


@fields_of(NodeAdmissionResponse)
class NodeAdmission(Output):
    """A node with at least one reason against it."""

    reasons: list[ReasonRead]


@fields_of(AdmissionResponse)
class AdmissionRead(Output):
    nodes: list[NodeAdmission]


@fields_of(SelectedNodeResponse)
class SelectedNode(Output):
    """A node that was selected, with its admission."""

    reasons: list[ReasonRead]


@fields_of(UnfitNodes)
class UnfitNodesRead(Output):
    pass


@fields_of(SelectionResponse)
class SelectionRead(Output):
    nodes: list[SelectedNode]
    unfit: list[UnfitNodesRead]
