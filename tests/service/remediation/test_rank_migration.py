"""A finding about a live node: Mainstay offers to move its ranks, once an incident, or records why not."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from mainstay.detectors.finding import FindingKind
from mainstay.probes.core_types import RecommendedAction
from mainstay.service.incidents import repository as incidents
from mainstay.service.incidents.models import FindingRow
from mainstay.service.remediation import service
from mainstay.service.remediation.fleet_view import FleetView
from mainstay.service.remediation.service import DeniedError
from tests.service.remediation.actions import answer, given

SLOW = {
    "kind": FindingKind.STRAGGLER.value, "recommended_action": RecommendedAction.NONE.value, "severity": "warning",
    "confidence": 0.95,
    "device": None, "evidence": {"summary": "Rank 0 computes 1.4 times slower.", "numbers": {}, "series": []},
}  # fmt: skip
AT_ONCE = {"migrate": "automatic", "max_drained_ratio": 1.0, "max_drained_per_rack": 99}


def slow(fleet: Any, node: str, incident: str | None = None, **changes: Any) -> str:
    found: str = fleet.find(node, incident, **{**SLOW, **changes})
    return found


def accept(fleet: Any, row: Any, who: str = "alice") -> None:
    with fleet.services.database.session() as session:
        survey = FleetView(session, fleet.services.settings.remediation, fleet.clock.now())
        service.accept(survey, service.require(session, row.id), actor=who, reason="seen")


def texts(fleet: Any, incident: str) -> list[str]:
    with fleet.services.database.reading() as session:
        return [entry.text for entry in incidents.timeline_of(session, incident) if entry.kind == "remediation"]


def against(row: Any) -> dict[str, str]:
    return {rule["name"]: rule["verdict"] for rule in row.rules if rule["verdict"] != "allow"}


def test_a_slow_rank_is_offered_to_move_and_moves_when_accepted(fleet_of, database_url) -> None:
    fleet = fleet_of(database_url)
    fleet.enroll("n1", "n2")
    fleet.run_job("n1", "n2", standbys={"n1": 0, "n2": 1})
    incident = slow(fleet, "n1")
    for _ in range(3):
        fleet.run_loops()
    (row,) = fleet.all()
    assert (row.recommended_action, row.state, row.dry_run, row.node) == ("migrate_ranks", "proposed", True, "n1")
    assert row.reason == "Rank 0 computes 1.4 times slower."
    assert texts(fleet, incident) == ["Proposed: move the ranks off n1."]
    assert given(fleet) == [], "no job has a request yet"

    accept(fleet, row)
    (request,) = given(fleet)
    assert (request.job, request.node, request.rank, request.state) == ("demo", "n1", None, "pending")
    assert (request.actor, request.reason, request.remediation) == ("alice", row.reason, row.id)
    with fleet.services.database.reading() as session:
        found = session.get(FindingRow, request.finding)
        assert found is not None
        assert found.incident_id == incident
    assert fleet.node("n1").state == "healthy", "it stays in service"
    fleet.run_loops()
    assert fleet.latest_remediation("n1").state == "accepted", "the job has still to answer"

    fleet.run_job("n2", "n2", standbys={"n1": 1, "n2": 0}, results=[answer(request, "completed", "ranks [0] moved")])
    for _ in range(3):
        fleet.run_loops()
    (row,) = fleet.all()
    assert row.state == "done"
    assert texts(fleet, incident)[-1] == "n1: job demo: completed, ranks [0] moved"


def test_once_an_incident_whatever_comes_back(fleet_of) -> None:
    fleet = fleet_of(**AT_ONCE)
    fleet.enroll("n1", "n2")
    fleet.run_job("n1", "n2", standbys={"n2": 1})
    slow(fleet, "n1")
    fleet.run_loops()
    (request,) = given(fleet)
    assert request.actor == "mainstay"
    fleet.run_job("n1", "n2", standbys={"n2": 1}, results=[answer(request, "completed", "moved")])  # and is there again
    for _ in range(3):
        fleet.run_loops()
    assert fleet.states() == {"n1": "done"}
    assert len(given(fleet)) == 1


def test_what_the_job_refuses_is_said_and_not_tried_again(fleet_of) -> None:
    fleet = fleet_of(**AT_ONCE)
    fleet.enroll("n1", "n2")
    fleet.run_job("n1", "n2", standbys={"n2": 1})
    incident = slow(fleet, "n1")
    fleet.run_loops()
    fleet.run_job("n1", "n2", results=[answer(given(fleet)[0], "rejected", "ranks [0] are not protected")])
    for _ in range(3):
        fleet.run_loops()
    assert fleet.states() == {"n1": "superseded"}
    told = "n1: not all ranks moved: job demo: rejected, ranks [0] are not protected"
    assert texts(fleet, incident)[-1] == told
    assert len(given(fleet)) == 1


@pytest.mark.parametrize("other", ["completed", "rejected"])
def test_a_move_that_was_begun_and_did_not_come_about_has_failed(fleet_of, database_url, other: str) -> None:
    """Of two ranks on the device one stays: the accepted move is incomplete, even if the other moved."""
    fleet = fleet_of(database_url, **AT_ONCE)
    fleet.enroll("n1", "n2")
    fleet.run_job("n1", "n1", "n1", "n2", standbys={"n2": 2}, devices=("gpu0", "gpu1", "gpu0", "gpu0"))
    incident = slow(fleet, "n1", device="gpu0", kind="thermal_throttle")
    fleet.run_loops()
    first, second = given(fleet)
    said = [answer(first, other, "words of one"), answer(second, "failed", "rank 2: the link is down")]
    fleet.run_job("n1", "n1", "n1", "n2", standbys={"n2": 2}, devices=("gpu0", "gpu1", "gpu0", "gpu0"), results=said)
    for _ in range(3):
        fleet.run_loops()
    assert fleet.states() == {"n1": "failed"}
    told = f"job demo: {other}, words of one; job demo: failed, rank 2: the link is down"
    assert texts(fleet, incident)[-1] == f"n1: not all ranks moved: {told}"
    assert len(given(fleet)) == 2, "and it is not tried again"


def test_switched_off_nobody_asks(fleet_of) -> None:
    fleet = fleet_of(migrate="off")
    fleet.enroll("n1", "n2")
    fleet.run_job("n1", "n2", standbys={"n2": 1})
    slow(fleet, "n1")
    fleet.run_loops()
    assert fleet.all() == []


@pytest.mark.parametrize(
    "changes",
    [
        {"confidence": 0.8},
        {"severity": "info"},
        {"kind": "data_stall"},
        {"active": False},
        {"recommended_action": "restart_job"},
    ],
)
def test_what_is_not_certain_or_not_the_hardware_moves_nobody(fleet_of, changes: dict[str, Any]) -> None:
    fleet = fleet_of(**AT_ONCE)
    fleet.enroll("n1", "n2")
    fleet.run_job("n1", "n2", standbys={"n2": 1})
    slow(fleet, "n1", **changes)
    fleet.run_loops()
    assert fleet.all() == []


def test_a_node_without_ranks_has_nobody_to_move(fleet_of) -> None:
    fleet = fleet_of(**AT_ONCE)
    fleet.enroll("n1", "n2")
    fleet.run_job("n2", standbys={"n2": 1})
    slow(fleet, "n1")
    fleet.run_loops()
    assert fleet.all() == []


def test_without_a_standby_nobody_may_and_it_is_said(fleet_of) -> None:
    fleet = fleet_of(**AT_ONCE)
    fleet.enroll("n1", "n2")
    fleet.run_job("n1", "n2", standbys={"n1": 2, "n2": 0})
    incident = slow(fleet, "n1")
    fleet.run_loops()
    row = fleet.latest_remediation("n1")
    assert (row.state, against(row)) == ("held", {"standbys_available": "deny"})
    needed = "job demo needs 1 free warm standby(s) on other healthy nodes and has 0 (start it with more --standbys)"
    assert texts(fleet, incident) == [f"Proposed: move the ranks off n1. Held: {needed}."]
    with pytest.raises(DeniedError, match="needs 1 free warm standby"):
        accept(fleet, row)
    fleet.run_job("n1", "n2", standbys={"n2": 1})
    fleet.run_loops()
    assert fleet.latest_remediation("n1").state == "accepted"


@pytest.mark.parametrize("state", ["recovering", "of_a_later_release"])
def test_a_job_that_recovers_is_left_alone_until_it_trains(fleet_of, state: str) -> None:
    fleet = fleet_of(**AT_ONCE)
    fleet.enroll("n1", "n2")
    fleet.run_job("n1", "n2", standbys={"n2": 1}, state=state)
    slow(fleet, "n1")
    fleet.run_loops()
    assert against(fleet.latest_remediation("n1")) == {"jobs_running": "deny"}
    assert given(fleet) == []
    fleet.run_job("n1", "n2", standbys={"n2": 1})
    fleet.run_loops()
    assert len(given(fleet)) == 1


def test_how_many_standbys_wait_is_not_known(fleet_of) -> None:
    fleet = fleet_of(**AT_ONCE)
    fleet.enroll("n1", "n2")
    fleet.run_job("n1", "n2")
    slow(fleet, "n1")
    fleet.run_loops()
    row = fleet.latest_remediation("n1")
    assert against(row) == {"standbys_known": "hold"}
    accept(fleet, row)  # the coordinator will say whether it can
    assert [request.node for request in given(fleet)] == ["n1"]


def test_no_more_than_the_breaker_allows(fleet_of) -> None:
    fleet = fleet_of(migrate="automatic", max_drained_ratio=0.5)
    fleet.enroll("n1", "n2", "n3", "n4")
    fleet.run_job("n1", "n2", "n3", "n4", standbys={"n4": 9})
    incident = slow(fleet, "n1")
    slow(fleet, "n2", incident)
    fleet.run_loops()
    assert fleet.states() == {"n1": "accepted", "n2": "accepted"}
    slow(fleet, "n3")
    fleet.run_loops()
    assert against(fleet.latest_remediation("n3")) == {"breaker": "hold"}


def test_of_one_incident_one_node_is_asked_about_after_the_other(fleet_of) -> None:
    fleet = fleet_of()
    fleet.enroll("n1", "n2")
    fleet.run_job("n1", "n2", standbys={"n3": 9})
    incident = slow(fleet, "n1")
    slow(fleet, "n2", incident)
    fleet.run_loops()
    first, second = fleet.latest_remediation("n1"), fleet.latest_remediation("n2")
    assert (first.state, against(second)) == ("proposed", {"one_node_per_incident": "hold"})


def test_only_the_ranks_of_the_device_move(fleet_of) -> None:
    fleet = fleet_of(**AT_ONCE)
    fleet.enroll("n1", "n2")
    fleet.run_job("n1", "n1", "n1", "n2", standbys={"n2": 2}, devices=("gpu0", "gpu1", "gpu0", "gpu0"))
    slow(fleet, "n1", device="gpu0", kind="thermal_throttle")
    slow(fleet, "n1", device="gpu7", kind="pcie_degraded")
    fleet.run_loops()
    assert [(request.node, request.rank) for request in given(fleet)] == [(None, 0), (None, 2)]
    assert len(fleet.all()) == 1, "no job uses the other"


def test_a_more_severe_finding_empties_the_node_instead(fleet_of) -> None:
    fleet = fleet_of()
    fleet.enroll("n1", "n2", "n3")
    fleet.run_job("n1", "n2", dp=2, standbys={"n2": 1})
    incident = slow(fleet, "n1")
    fleet.run_loops()
    fleet.find("n1", incident)
    fleet.run_loops()
    (row,) = fleet.all()
    assert (row.recommended_action, row.reason) == ("reset_gpu", "XID 79 on n1.")
    with fleet.services.database.session() as session:
        for found in session.scalars(select(FindingRow).where(FindingRow.kind == "xid")):
            found.active = False
    fleet.run_loops()
    (row,) = fleet.all()
    assert (row.recommended_action, row.state) == ("migrate_ranks", "proposed"), (
        "what wanted it empty is gone, what is slow is there"
    )


def test_after_a_move_a_more_severe_finding_still_proposes_a_drain(fleet_of) -> None:
    fleet = fleet_of(**AT_ONCE)
    fleet.enroll("n1", "n2")
    fleet.run_job("n1", "n2", standbys={"n2": 1})
    incident = slow(fleet, "n1")
    fleet.run_loops()
    fleet.find("n1", incident)
    fleet.run_loops()
    assert [row.recommended_action for row in fleet.all()] == ["migrate_ranks"], "first what is under way"
    fleet.run_job("n2", "n2", standbys={"n2": 0}, results=[answer(given(fleet)[0], "completed", "moved")])
    fleet.run_loops()
    fleet.run_loops()
    assert [(row.recommended_action, row.state, row.tried) for row in fleet.all()] == [
        ("migrate_ranks", "done", []),
        ("reset_gpu", "proposed", []),  # to move away was no action that failed
    ]


@pytest.mark.parametrize(("mode", "advised"), [("off", 0), ("manual", 1), ("automatic", 1)])
def test_a_drain_that_a_person_accepts_moves_ranks_first(fleet_of, mode: str, advised: int) -> None:
    fleet = fleet_of(migrate=mode)
    fleet.enroll("n1", "n2", "n3")
    fleet.run_job("n1", "n2", dp=2, standbys={"n2": 1})
    incident = fleet.find("n1")
    fleet.run_loops()
    accept(fleet, fleet.latest_remediation("n1"))
    assert fleet.node("n1").state == "draining"
    assert len(given(fleet)) == advised
    assert ("job demo is asked to move rank(s) 0" in texts(fleet, incident)[-1]) == bool(advised)


def test_a_drain_says_which_ranks_stay(fleet_of) -> None:
    fleet = fleet_of()
    fleet.enroll("n1", "n2", "n3")
    fleet.run_job("n1", "n2", dp=2, standbys={"n2": 0})
    incident = fleet.find("n1")
    fleet.run_loops()
    accept(fleet, fleet.latest_remediation("n1"))
    assert given(fleet) == []
    assert "has 0 (start it with more --standbys): its ranks stay" in texts(fleet, incident)[-1]
