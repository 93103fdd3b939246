"""The rules of the gate, every one alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mainstay.probes.core_types import HealthState, Verdict
from mainstay.service.admission.rules import (
    AdmissionDecision,
    AdmissionFacts,
    AdmissionRequest,
    ReasonCode,
    reasons,
    worst,
)

NOW = 1_800_000_000.0
REQUEST = AdmissionRequest(now=NOW, heartbeat_timeout_seconds=30.0, suite="standard", max_age_seconds=3600.0, gpus=8)
GOOD = AdmissionFacts(
    node="n1",
    state=HealthState.HEALTHY,
    silent=False,
    verdict=Verdict.PASS,
    suite="standard",
    power=2,
    validated_at=NOW - 60,
    gpus=8,
)
DENY, DEGRADED = AdmissionDecision.DENY, AdmissionDecision.ALLOW_DEGRADED


def test_of_a_good_node_there_is_nothing_to_say() -> None:
    assert reasons(GOOD, REQUEST) == ()


@pytest.mark.parametrize(
    ("change", "code", "decision"),
    [
        ({"silent": True}, ReasonCode.SILENT, DENY),
        ({"state": HealthState.UNKNOWN}, ReasonCode.STATE, DENY),
        ({"state": HealthState.DRAINING}, ReasonCode.STATE, DENY),
        ({"state": HealthState.QUARANTINED}, ReasonCode.STATE, DENY),
        ({"state": HealthState.VALIDATING}, ReasonCode.STATE, DENY),
        ({"state": HealthState.SUSPECT}, ReasonCode.SUSPECT, DEGRADED),
        ({"evicting": "XID 79"}, ReasonCode.FINDING, DENY),
        ({"verdict": None, "suite": "", "power": 0, "validated_at": None}, ReasonCode.NEVER_VALIDATED, DENY),
        ({"verdict": Verdict.FAIL}, ReasonCode.VALIDATION_FAILED, DENY),
        ({"verdict": Verdict.UNKNOWN}, ReasonCode.VALIDATION_UNKNOWN, DENY),
        ({"verdict": Verdict.WARN}, ReasonCode.VALIDATION_WARNED, DEGRADED),
        ({"power": 1, "suite": "quick"}, ReasonCode.VALIDATION_WEAK, DEGRADED),
        ({"validated_at": NOW - 3601}, ReasonCode.VALIDATION_OLD, DEGRADED),
        ({"pending": True}, ReasonCode.BEING_VALIDATED, DENY),
        ({"gpus": 7}, ReasonCode.TOO_FEW_GPUS, DENY),
        ({"jobs": ("other",)}, ReasonCode.BUSY, DEGRADED),
    ],
)
def test_each_rule_alone(change: dict[str, Any], code: ReasonCode, decision: AdmissionDecision) -> None:
    (reason,) = reasons(replace(GOOD, **change), REQUEST)
    assert (reason.code, reason.decision) == (code, decision)
    assert reason.text


def test_a_name_without_a_node_is_denied() -> None:
    (reason,) = reasons(None, REQUEST)
    assert (reason.code, reason.decision) == (ReasonCode.UNKNOWN_NODE, DENY)


def test_all_that_is_amiss_is_said_at_once() -> None:
    bad = replace(GOOD, silent=True, verdict=Verdict.FAIL, gpus=0)
    assert {reason.code for reason in reasons(bad, REQUEST)} == {
        ReasonCode.SILENT,
        ReasonCode.VALIDATION_FAILED,
        ReasonCode.TOO_FEW_GPUS,
    }


def test_the_most_careful_decision_counts() -> None:
    assert worst([]) is AdmissionDecision.ALLOW
    assert worst([AdmissionDecision.ALLOW, DEGRADED]) is DEGRADED
    assert worst([DENY, DEGRADED]) is DENY
