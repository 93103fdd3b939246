"""The gate's answer as it is built and sent: structs, because a scheduler waits while it is encoded (measured).

``schemas.AdmissionRead`` says the same in the API document; a test holds the two together.
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
    """What a scheduler reads; ``schemas.AdmissionRead`` says what each field means."""

    job: str
    decision: AdmissionDecision
    reason: str
    allowed: int
    nodes: list[NodeAdmissionResponse]
    spares: list[str]
    preflight: list[str]
    preempted: list[str]
    at: float


encode = msgspec.json.Encoder().encode
"""An answer as the bytes of its JSON."""
