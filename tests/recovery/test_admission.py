"""Which nodes of a job the service's admission check refuses, and which it only remarks on."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mainstay.probes.core_types import HealthState, Verdict
from mainstay.recovery.admission import NO_EVIDENCE, SUSPECT, VALIDATING, Admission, read
from mainstay.service.admission.responses import AdmissionResponse, NodeAdmissionResponse, encode
from mainstay.service.admission.rules import AdmissionDecision, AdmissionFacts, AdmissionRequest, ReasonCode, reasons

REQUEST = AdmissionRequest(now=1000.0, heartbeat_timeout_seconds=60.0, suite="quick", max_age_seconds=100.0, gpus=8)
GOOD: dict[str, Any] = {
    "state": HealthState.HEALTHY, "silent": False, "verdict": Verdict.PASS, "suite": "quick", "power": 1,
    "validated_at": 950.0,
}  # fmt: skip


def answer(**changes: Any) -> Any:
    """The decoded response of the service for one node, with what its rules say."""
    known = AdmissionFacts(node="n", **GOOD | changes)
    found = reasons(known, REQUEST)
    node = NodeAdmissionResponse(
        node="n", decision=AdmissionDecision.DENY, reasons=found, state=known.state, verdict=known.verdict, suite=None,
        validated_at=None,
    )  # fmt: skip
    return msgspec.json.decode(
        encode(
            AdmissionResponse(
                job="j", decision=AdmissionDecision.DENY, reason="", allowed=0, nodes=[node] if found else [],
                spares=[], preflight=[], preempted=[], at=0.0,
            )
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Admission()),
        ({"state": HealthState.QUARANTINED}, Admission(refused={"n": "its state is quarantined"})),
        ({"state": HealthState.DRAINING}, Admission(refused={"n": "its state is draining"})),
        ({"verdict": Verdict.FAIL}, Admission(refused={"n": "suite quick failed"})),
        ({"evicting": "GPU 3 is lost"}, Admission(refused={"n": "GPU 3 is lost"})),
        ({"gpus": 7}, Admission(refused={"n": "7 GPUs work, 8 are asked for"})),
        ({"verdict": Verdict.FAIL, "pending": True},
         Admission(refused={"n": "suite quick failed; a validation runs on it: preempt it, or wait"})),
        ({"pending": True}, Admission(validating={"n": "a validation runs on it: preempt it, or wait"})),
        ({"pending": True, "verdict": None, "silent": True, "state": HealthState.UNKNOWN},
         Admission(validating={"n": "a validation runs on it: preempt it, or wait"})),
        ({"state": HealthState.SUSPECT},
         Admission(suspect={"n": "it is suspect: an incident is open that needs no eviction"})),
        ({"verdict": None}, Admission(remarks={"n": "it was never validated: order a pre-flight"})),
        ({"state": HealthState.UNKNOWN}, Admission(remarks={"n": "its state is unknown"})),
        ({"silent": True}, Admission(remarks={"n": "it does not report"})),
        ({"verdict": Verdict.UNKNOWN}, Admission(remarks={"n": "suite quick could not tell"})),
        ({"jobs": ("other",)}, Admission(remarks={"n": "job other runs on it"})),
    ],
)  # fmt: skip
def test_evidence_refuses_a_node_and_missing_evidence_does_not(changes: dict[str, Any], expected: Admission) -> None:
    assert read(answer(**changes)) == expected


def test_the_reasons_are_those_of_the_service() -> None:
    assert {SUSPECT, VALIDATING, *NO_EVIDENCE} <= set(ReasonCode)


def test_a_newer_reason_that_denies_refuses() -> None:
    reason = {"code": "on_fire", "decision": "deny", "text": "it is on fire", "since": 5}
    assert read({"nodes": [{"node": "n", "reasons": [reason]}]}) == Admission(refused={"n": "it is on fire"})


@pytest.mark.parametrize("wrong", [None, [], {}, {"nodes": 5}, {"nodes": [{"node": "n", "reasons": [{}]}]}])
def test_another_answer_is_none_of_admission(wrong: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        read(wrong)
