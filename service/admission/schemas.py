"""The gate on the wire."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, Strict

from mainstay.service.admission.responses import AdmissionResponse, NodeAdmissionResponse
from mainstay.service.admission.rules import Reason
from mainstay.service.common.schemas import Count, Input, JsonNumber, Name, Output, ShortText, fields_of

MAX_NODES = 100_000


class AdmissionIn(Input):
    """A job that is to start on these nodes."""

    job: Name
    nodes: Annotated[list[Name], Field(min_length=1, max_length=MAX_NODES)]
    gpus_per_node: Annotated[Count, Field(ge=1, le=1024)] | None = None
    suite: Annotated[ShortText, Field(min_length=1)] | None = None
    """The weakest suite whose pass counts in full; null: as configured."""
    max_age_hours: Annotated[float, Field(gt=0, le=87_600), JsonNumber] | None = None
    """A check older than this counts less; null: as configured."""
    spares: Annotated[Count, Field(le=10_000)] | None = None
    """How many spare nodes to name; null: as many as are denied."""
    preempt: Annotated[bool, Strict()] = False
    """Cancel validations that run on these nodes: each node releases its GPUs within 5 s."""
    preflight: Annotated[bool, Strict()] = False
    """Order the suite on every node that is denied for want of a valid check; ask again when they have ended."""


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
