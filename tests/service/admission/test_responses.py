"""What is sent is what the API document says: the answer is encoded from structs, the document is made of schemas."""

from __future__ import annotations

import json
from typing import get_type_hints

import pytest
from pydantic import BaseModel

from mainstay.probes.core_types import HealthState, Verdict
from mainstay.service.admission.responses import AdmissionResponse, NodeAdmissionResponse, encode
from mainstay.service.admission.rules import AdmissionDecision, Reason, ReasonCode
from mainstay.service.admission.schemas import AdmissionRead, NodeAdmission, ReasonRead

REASON = Reason(ReasonCode.VALIDATION_FAILED, AdmissionDecision.DENY, "suite quick failed")
KNOWN = NodeAdmissionResponse(
    node="n1",
    decision=AdmissionDecision.DENY,
    reasons=(REASON, Reason(ReasonCode.BUSY, AdmissionDecision.ALLOW_DEGRADED, "job “ä” runs on it")),
    state=HealthState.HEALTHY,
    verdict=Verdict.FAIL,
    suite="quick",
    validated_at=1_800_000_000.25,
)
UNKNOWN = NodeAdmissionResponse(
    node="n2",
    decision=AdmissionDecision.DENY,
    reasons=(REASON,),
    state=None,
    verdict=None,
    suite=None,
    validated_at=None,
)
ANSWER = AdmissionResponse(
    job="llm",
    decision=AdmissionDecision.DENY,
    reason="2 of 3 nodes",
    allowed=1,
    nodes=[KNOWN, UNKNOWN],
    spares=["n4"],
    preflight=["p"],
    preempted=[],
    at=1_800_000_001.0,
)


def test_the_bytes_are_those_of_the_schema() -> None:
    sent = encode(ANSWER)
    read = AdmissionRead.model_validate_json(sent, strict=True)
    assert json.loads(sent) == json.loads(read.model_dump_json()), "nothing more, nothing less"


@pytest.mark.parametrize(
    ("sent", "documented"),
    [(AdmissionResponse, AdmissionRead), (NodeAdmissionResponse, NodeAdmission), (Reason, ReasonRead)],
)
def test_both_have_the_same_fields(sent: type, documented: type[BaseModel]) -> None:
    assert list(get_type_hints(sent)) == list(documented.model_fields)
