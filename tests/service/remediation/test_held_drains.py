"""A grave finding about a node that a job depends on: the ranks leave first, then the node is taken out of service."""

from __future__ import annotations

from typing import Any

import pytest

from mainstay.probes.core_types import RecommendedAction
from mainstay.service.fleet.lifecycle import NodeTrigger
from tests.service.remediation.actions import AUTOMATIC, answer, decide, given, move, texts, verdicts

AT_ONCE = {**AUTOMATIC, "migrate": "automatic"}
GSP = {"evidence": {"summary": "XID 119 on n1.", "numbers": {}, "series": []}}
MILD = {"kind": "power_brake", "recommended_action": RecommendedAction.NONE.value, "device": "gpu1"}
NONE_FREE = "needs 1 free warm standby(s) on other healthy nodes and has 0 (start it with more --standbys)"


def actions(fleet: Any) -> list[tuple[str, str]]:
    return [(row.recommended_action, row.state) for row in fleet.all()]


def test_ranks_without_another_replica_leave_before_the_node_does(fleet_of, database_url) -> None:
    """XID 119 in automatic mode: no person is asked."""
    fleet = fleet_of(database_url, **AT_ONCE)
    fleet.enroll("n1", "n2")
    fleet.run_job("n1", "n2", standbys={"n1": 1, "n2": 1})
    incident = fleet.find("n1", **GSP)
    fleet.run_loops()
    row = fleet.latest_remediation("n1")
    assert (row.recommended_action, row.state, row.decided_by) == ("reset_gpu", "accepted", "mainstay")
    (request,) = given(fleet)
    assert (request.node, request.reason, request.actor) == ("n1", "XID 119 on n1.", "mainstay")
    assert "job demo is asked to move rank(s) 0" in texts(fleet, incident)[-1]
    fleet.run_job("n1", "n2", standbys={"n2": 1}, results=[answer(request, "accepted", "rank 0 to n2")])
    fleet.run_loops()
    assert fleet.node("n1").state == "draining", "the rank is still there"
    fleet.run_job("n2", "n2", state="recovering", results=[answer(request, "accepted", "rank 0 to n2")])
    fleet.run_loops()
    assert fleet.node("n1").state == "draining", "its slots may still be needed"
    fleet.run_job("n2", "n2", standbys={"n1": 1}, results=[answer(request, "completed", "ranks [0] moved")])
    fleet.run_loops()
    assert (fleet.node("n1").state, actions(fleet)) == ("quarantined", [("reset_gpu", "accepted")])
    assert len(given(fleet)) == 1


def test_without_a_standby_the_drain_waits_and_says_what_would_change_that(fleet_of) -> None:
    fleet = fleet_of(**AT_ONCE)
    fleet.enroll("n1", "n2", "n3")
    fleet.run_job("n1", "n2", standbys={"n1": 1, "n2": 0})
    incident = fleet.find("n1")
    for _ in range(2):
        fleet.run_loops()
    held = f"Held: a drain would stop jobs that have no other replica: job demo {NONE_FREE}."
    assert texts(fleet, incident) == [f"Proposed: take n1 out of service, then reset gpu. {held}"]
    fleet.run_job("n1", "n2", standbys={"n1": 1, "n2": 1})
    fleet.run_loops()
    assert (fleet.node("n1").state, len(given(fleet))) == ("draining", 1)


@pytest.mark.parametrize("migrate", ["manual", "automatic"])
def test_ranks_do_not_wait_for_a_drain_that_the_breaker_holds(fleet_of, migrate: str) -> None:
    fleet = fleet_of(mode="automatic", migrate=migrate, max_drained_per_rack=0, min_drain_budget=9)
    fleet.enroll("n1", "n2", rack="r1")
    fleet.run_job("n1", "n2", dp=2, standbys={"n2": 1})
    incident = fleet.find("n1", **GSP)
    fleet.run_loops()
    first = "Its ranks move first; the drain is held: 0 nodes of rack r1 were drained within 60 min."
    row = fleet.latest_remediation("n1")
    assert (row.recommended_action, row.dry_run) == ("migrate_ranks", migrate == "manual")
    assert row.reason.startswith(f"XID 119 on n1. {first}")
    assert texts(fleet, incident)[0] == f"Proposed: move the ranks off n1. {first}"
    if migrate == "manual":
        assert (row.state, given(fleet)) == ("proposed", [])
        decide(fleet, row)
    (request,) = given(fleet)
    assert fleet.node("n1").state == "healthy"
    fleet.run_job("n2", "n2", dp=2, standbys={"n1": 1}, results=[answer(request, "completed", "moved")])
    for _ in range(3):
        fleet.run_loops()
    assert actions(fleet) == [("migrate_ranks", "done"), ("reset_gpu", "held")]
    fleet.services.settings.remediation.max_drained_per_rack = 9
    for _ in range(2):
        fleet.run_loops()
    assert actions(fleet) == [("migrate_ranks", "done"), ("reset_gpu", "accepted")]
    assert fleet.node("n1").state == "quarantined"


def test_the_drain_follows_as_soon_as_it_may(fleet_of) -> None:
    """The proposal to move is no answer yet: the drain takes its place."""
    fleet = fleet_of()
    fleet.enroll("n1", "n2", booted_at=fleet.clock.now() - 10)
    fleet.run_job("n1", "n2", standbys={"n2": 1})
    fleet.find("n1")
    fleet.run_loops()
    assert actions(fleet) == [("migrate_ranks", "proposed")]
    fleet.run_loops(300.0)
    row = fleet.latest_remediation("n1")
    assert (actions(fleet), row.reason, row.hardware) == ([("reset_gpu", "proposed")], "XID 79 on n1.", "serial:S-n1")
    decide(fleet, row)
    assert (fleet.node("n1").state, len(given(fleet))) == ("draining", 1)


def test_the_ranks_of_the_device_leave_where_standbys_are_too_few_for_the_node(fleet_of) -> None:
    fleet = fleet_of(**AT_ONCE)
    fleet.enroll("n1", "n2")
    job: dict[str, Any] = {"standbys": {"n2": 1}, "devices": ("gpu1", "gpu0", "gpu2", "gpu0")}
    fleet.run_job("n1", "n1", "n1", "n2", **job)
    fleet.find("n1")
    fleet.run_loops()
    assert actions(fleet) == [("migrate_ranks", "accepted")]
    (request,) = given(fleet)
    assert (request.node, request.rank) == (None, 1)
    fleet.run_job("n1", "n2", "n1", "n2", standbys={"n2": 0}, results=[answer(request, "completed", "moved")])
    for _ in range(3):
        fleet.run_loops()
    assert actions(fleet) == [("migrate_ranks", "done"), ("reset_gpu", "held")]
    assert len(given(fleet)) == 1, "once an incident"


@pytest.mark.parametrize("job", [{}, {"standbys": {"n2": 0}}, {"standbys": {"n2": 1}, "state": "recovering"}])
def test_a_held_drain_stays_one_where_no_rank_can_follow(fleet_of, job: dict[str, Any]) -> None:
    fleet = fleet_of(**AT_ONCE)
    fleet.enroll("n1", "n2")
    fleet.run_job("n1", "n2", **job)
    fleet.find("n1")
    for _ in range(2):
        fleet.run_loops()
    assert (actions(fleet), given(fleet)) == ([("reset_gpu", "held")], [])


def test_a_held_drain_without_ranks_on_the_node_moves_none(fleet_of) -> None:
    fleet = fleet_of(**(AT_ONCE | {"max_drained_per_rack": 0}))
    fleet.enroll("n1", "n2", rack="r1")
    fleet.run_job("n2", standbys={"n2": 1})
    fleet.find("n1")
    fleet.run_loops()
    assert actions(fleet) == [("reset_gpu", "held")]


def test_switched_off_no_rank_moves_for_a_held_drain(fleet_of) -> None:
    fleet = fleet_of(mode="automatic", migrate="off")
    fleet.enroll("n1", "n2")
    fleet.run_job("n1", "n2", standbys={"n2": 1})
    fleet.find("n1")
    fleet.run_loops()
    assert (actions(fleet), given(fleet)) == ([("reset_gpu", "held")], [])


@pytest.mark.parametrize("decision", ["dismiss", "reject"])
def test_ranks_that_stay_leave_the_drain_to_an_operator(fleet_of, decision: str) -> None:
    fleet = fleet_of(max_drained_per_rack=0)
    fleet.enroll("n1", "n2", rack="r1")
    fleet.run_job("n1", "n2", standbys={"n2": 1})
    fleet.find("n1")
    fleet.run_loops()
    decide(fleet, fleet.latest_remediation("n1"), "accept" if decision == "reject" else decision)
    refused = [answer(one, "rejected", "ranks [0] are not protected") for one in given(fleet)]
    fleet.run_job("n1", "n2", standbys={"n2": 1}, results=refused)
    for _ in range(3):
        fleet.run_loops()
    assert [action for action, _ in actions(fleet)] == ["migrate_ranks", "reset_gpu"]
    assert verdicts(fleet.latest_remediation("n1"))["max_drained_per_rack"] == "hold"


def test_the_ranks_of_the_grave_finding_move_and_not_of_the_mild_one(fleet_of) -> None:
    fleet = fleet_of(max_drained_per_rack=0)
    fleet.enroll("n1", "n2", rack="r1")
    job: dict[str, Any] = {"standbys": {"n2": 1}, "devices": ("gpu1", "gpu0", "gpu0")}
    fleet.run_job("n1", "n1", "n2", **job)
    incident = fleet.find("n1", **MILD)
    fleet.run_loops()
    assert fleet.latest_remediation("n1").device == "gpu1"
    fleet.find("n1", incident, **GSP)
    fleet.run_loops()
    decide(fleet, fleet.latest_remediation("n1"))
    assert [(one.rank, one.node) for one in given(fleet)] == [(1, None)]


def test_two_nodes_do_not_count_on_the_same_standby(fleet_of) -> None:
    fleet = fleet_of(**AT_ONCE)
    fleet.enroll("n1", "n2", "n3")
    fleet.run_job("n1", "n2", standbys={"n3": 1})
    incident = fleet.find("n1")
    fleet.find("n2", incident)
    for _ in range(2):
        fleet.run_loops()
    assert fleet.states() == {"n1": "accepted", "n2": "held"}
    (request,) = given(fleet)
    fleet.run_job("n3", "n2", standbys={"n1": 1, "n3": 0}, results=[answer(request, "completed", "moved")])
    for _ in range(2):
        fleet.run_loops()
    assert (fleet.node("n1").state, fleet.states()["n2"]) == ("quarantined", "held"), "a standby waits on a sick node"
    fleet.run_job("n3", "n2", standbys={"n1": 1, "n3": 1})
    fleet.run_loops()
    assert [one.node for one in given(fleet)] == ["n1", "n2"]


# a drain that has begun


def drained(fleet: Any) -> Any:
    """n1 drains; its job has rejected the request."""
    fleet.enroll("n1", "n2")
    fleet.run_job("n1", "n2", standbys={"n2": 1})
    fleet.find("n1")
    fleet.run_loops()
    row = fleet.latest_remediation("n1")
    if row.state != "accepted":
        decide(fleet, row)
    refused = answer(given(fleet)[0], "rejected", "no standby was ready")
    fleet.run_job("n1", "n2", standbys={"n2": 1}, results=[refused])
    return row


def test_a_job_that_could_not_follow_is_asked_again(fleet_of) -> None:
    fleet = fleet_of(**AT_ONCE)
    row = drained(fleet)
    fleet.run_loops(100.0)
    assert len(given(fleet)) == 1
    fleet.run_loops(30.0)
    fleet.run_loops()
    assert [one.state for one in given(fleet)] == ["rejected", "pending"]
    assert texts(fleet, row.incident_id)[-1] == "n1: job demo is asked to move rank(s) 0"
    fleet.run_job("n1", "n2", standbys={"n2": 0}, results=[answer(given(fleet)[1], "rejected", "again")])
    fleet.run_loops(200.0)
    assert len(given(fleet)) == 2, "no standby is free"
    fleet.run_job("n1", "n2", standbys={"n2": 1})
    move(fleet, "n1", NodeTrigger.UNDRAIN)
    fleet.run_loops(200.0)
    assert len(given(fleet)) == 2, "the node is in service again"


def test_a_job_that_recovered_when_its_node_was_drained_is_asked_after_that(fleet_of) -> None:
    fleet = fleet_of(**AT_ONCE)
    fleet.enroll("n1", "n2")
    fleet.run_job("n1", "n2", dp=2, standbys={"n2": 1}, state="recovering")
    fleet.find("n1")
    fleet.run_loops()
    assert (fleet.node("n1").state, given(fleet)) == ("draining", [])
    fleet.run_job("n1", "n2", dp=2, standbys={"n2": 1})
    fleet.run_loops()
    assert [one.node for one in given(fleet)] == ["n1"]


@pytest.mark.parametrize(("changes", "state"), [(AT_ONCE, "draining"), ({}, "quarantined")])
def test_no_drain_of_mainstay_takes_the_node_from_a_job_that_needs_it(fleet_of, changes: Any, state: str) -> None:
    """An operator who accepted it has decided that."""
    fleet = fleet_of(drain_timeout_seconds=60.0, **changes)
    drained(fleet)
    fleet.run_loops(61.0)
    assert fleet.node("n1").state == state
    fleet.run_loops(500.0)
    assert (fleet.node("n1").state, len(given(fleet))) == (state, 1), "past the deadline no job is asked"
    fleet.run_loops(40.0)
    assert fleet.node("n1").state == "quarantined", "the job reports no more"
