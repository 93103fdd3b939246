"""The gate's answer as it is built and sent: structs, because a scheduler waits while it is encoded (measured).

``schemas.AdmissionRead`` takes its fields from here for the API document.
"""

from __future__ import annotations

import msgspec

from mainstay.probes.core_types import HealthState, Verdict
from mainstay.service.admission.rules import AdmissionDecision, Reason, ReasonCode


class NodeAdmissionResponse(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A node with at least one reason against it."""

    node: str
    decision: AdmissionDecision
    reasons: tuple[Reason, ...]
    state: HealthState | None
    verdict: Verdict | None
    suite: str | None
    validated_at: float | None
    """Unix seconds."""


class AdmissionResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What a scheduler reads."""

    job: str
    decision: AdmissionDecision
    """deny if any node is denied, else allow_degraded if any is degraded, else allow."""
    reason: str
    allowed: int
    """Number of nodes without objections; they are not listed."""
    nodes: list[NodeAdmissionResponse]
    """The others, denied ones first."""
    spares: list[str]
    """Nodes that could stand in: of the denied nodes' cohorts, allowed without reservation, and free."""
    preflight: list[str]
    """Ids of the validations that were ordered."""
    preempted: list[str]
    """Ids of the cancelled validations."""
    at: float


class SelectedNodeResponse(NodeAdmissionResponse, frozen=True, kw_only=True, gc=False):
    """A node that was selected, with its admission."""

    rack: str
    """Empty: not reported."""
    cohort: str


class UnfitNodes(msgspec.Struct, frozen=True, kw_only=True):
    """How many nodes are not fit for one reason. A node counts once, for the first of its reasons."""

    code: ReasonCode
    state: HealthState | None
    """With the code ``state``: which one."""
    nodes: int
    text: str
    """Such as ``3 never validated``."""


class SelectionResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What a scheduler reads that asked for a number of nodes."""

    job: str | None
    count: int
    """As asked for."""
    decision: AdmissionDecision
    """deny if there are fewer than asked for, else allow_degraded if any is degraded, else allow."""
    reason: str
    considered: int
    """Number of nodes in the racks and cohorts, without the excluded ones."""
    nodes: list[SelectedNodeResponse]
    unfit: list[UnfitNodes]
    """Why the others are not fit, where there are fewer than asked for; else empty. Most nodes first."""
    at: float
    """Unix seconds."""


encode = msgspec.json.Encoder().encode
"""An answer as the bytes of its JSON."""
