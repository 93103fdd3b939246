"""The policy of a detector in remediation: whose proposals wait for a person, and which findings propose nothing."""

from __future__ import annotations

from typing import Any

import pytest

from mainstay.probes.core_types import RecommendedAction
from mainstay.service.detector_policies import service as policies
from mainstay.service.detector_policies.models import DetectorPolicyRow
from mainstay.service.detector_policies.schemas import DetectorPolicyUpdate
from mainstay.service.incidents.repository import findings_of
from mainstay.service.sources.nvsentinel_export import emit
from tests.service.remediation.actions import AUTOMATIC, decide, given, verdicts
from tests.service.remediation.test_rank_migration import AT_ONCE, slow
from tests.service.remediation.test_speed_checks import CAN, UNSURE

WHY = "alice lets detector hardware_events only propose: it was wrong twice"


def set_policy(fleet: Any, mode: str, detector: str = "hardware_events", **changes: Any) -> None:
    with fleet.services.database.session() as session:
        row = session.get(DetectorPolicyRow, detector)
        version = 0 if row is None else row.version
        update = DetectorPolicyUpdate(mode=mode, reason="it was wrong twice", version=version, **changes)
        policies.update_policy(session, detector, update, actor="alice", now=fleet.clock.now())


def test_a_person_accepts_what_a_detector_only_proposes(fleet_of, database_url) -> None:
    fleet = fleet_of(database_url, **AUTOMATIC)
    fleet.enroll("n1", "n2")
    set_policy(fleet, "propose")
    fleet.find("n1")
    fleet.find("n2", detector="xid")
    for _ in range(2):
        fleet.run_loops()
    assert fleet.states() == {"n1": "held", "n2": "accepted"}
    row = fleet.latest_remediation("n1")
    assert [rule["reason"] for rule in row.rules if rule["verdict"] != "allow"] == [WHY]
    decide(fleet, row)
    row = fleet.latest_remediation("n1")
    assert (row.state, row.decided_by, verdicts(row)["detector_policy"]) == ("accepted", "alice", "hold")


def test_a_proposal_follows_the_policy(fleet_of, database_url) -> None:
    fleet = fleet_of(database_url)
    fleet.enroll("n1")
    fleet.find("n1")
    states = []
    for mode in ("default", "propose", "record", "default"):
        set_policy(fleet, mode)
        fleet.run_loops()
        states.append(fleet.states()["n1"])
    assert states == ["proposed", "held", "superseded", "proposed"]
    assert len(fleet.all()) == 1


def test_another_detector_of_the_same_fault_is_not_held_back(fleet_of) -> None:
    fleet = fleet_of(**AUTOMATIC)
    fleet.enroll("n1")
    set_policy(fleet, "propose")
    incident = fleet.find("n1", recommended_action=RecommendedAction.REPLACE.value)
    fleet.find("n1", incident, device=None, detector="xid")
    fleet.run_loops()
    row = fleet.latest_remediation("n1")
    assert (row.state, row.recommended_action) == ("accepted", "reset_gpu")


@pytest.mark.parametrize(("mode", "expected"), [("default", "accepted"), ("propose", "held"), ("record", None)])
def test_no_rank_moves_for_a_detector_that_may_not_act(fleet_of, mode: str, expected: str | None) -> None:
    fleet = fleet_of(**AT_ONCE)
    fleet.enroll("n1", "n2")
    fleet.run_job("n1", "n2", standbys={"n2": 1})
    set_policy(fleet, mode)
    slow(fleet, "n1")
    fleet.run_loops()
    assert fleet.states() == ({} if expected is None else {"n1": expected})
    assert len(given(fleet)) == (mode == "default")


def test_a_policy_has_its_own_least_confidence(fleet_of, database_url) -> None:
    fleet = fleet_of(database_url)
    fleet.enroll("n1", "n2")
    fleet.run_job("n1", "n2", dp=2, obstacles=CAN)
    slow(fleet, "n2", **UNSURE)
    fleet.find("n1", detector="xid", confidence=0.95)
    set_policy(fleet, "default", "xid", min_confidence=0.99)
    set_policy(fleet, "default", min_confidence=0.75)
    fleet.run_loops()
    assert fleet.states().keys() == {"n2"}
    assert given(fleet) == [], "it is certain enough: no speed check"


def test_what_is_only_recorded_is_not_measured_again(fleet_of) -> None:
    fleet = fleet_of()
    fleet.enroll("n1", "n2")
    fleet.run_job("n1", "n2", dp=2, obstacles=CAN)
    set_policy(fleet, "record")
    slow(fleet, "n2", **UNSURE)
    fleet.run_loops()
    assert given(fleet) == []


def test_another_system_only_stores_a_finding_that_a_policy_holds(fleet_of) -> None:
    fleet = fleet_of(**AUTOMATIC)
    fleet.enroll("n1", "n2")
    set_policy(fleet, "propose")
    incident = fleet.find("n1")
    fleet.find("n2", incident, detector="xid")
    with fleet.services.database.reading() as session:
        events = emit(session, findings_of(session, incident), acts=True).events
    assert {event.nodeName: event.processingStrategy for event in events} == {
        "n1": "STORE_ONLY",
        "n2": "EXECUTE_REMEDIATION",
    }
