"""The gate's answer as it is built and sent: structs, because a scheduler waits while it is encoded (measured).

``schemas.AdmissionRead`` takes its fields from here for the API document.
"""

from __future__ import annotations

import msgspec

from mainstay.probes.core_types import HealthState, Verdict
from mainstay.service.admission.rules import AdmissionDecision, Reason


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


encode = msgspec.json.Encoder().encode
"""An answer as the bytes of its JSON."""
