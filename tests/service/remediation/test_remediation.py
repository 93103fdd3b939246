"""Proposals from evidence to a validated return, and the rules that hold them."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from mainstay.probes.core_types import RecommendedAction, Verdict
from mainstay.service.common.problem import ConflictError
from mainstay.service.fleet.lifecycle import NodeTrigger, Owner
from mainstay.service.remediation import serializers as remediation_serializers
from mainstay.service.remediation import service
from tests.service.remediation.actions import AUTOMATIC, decide, move, texts, validate, verdicts

# dry run


def test_a_dry_run_moves_nothing(fleet_of, database_url) -> None:
    fleet = fleet_of(database_url)
    fleet.enroll("n1", "n2")
    incident = fleet.find("n1")
    for _ in range(3):
        fleet.run_loops()
    (row,) = fleet.all()
    assert (row.node, row.state, row.recommended_action, row.device) == ("n1", "proposed", "reset_gpu", "gpu0")
    assert (row.incident_id, row.dry_run, row.hardware) == (incident, True, "serial:S-n1")
    assert set(verdicts(row).values()) == {"allow"}
    assert row.reason == "XID 79 on n1."
    assert fleet.node("n1").state == "healthy", "no finding moved it here, and no proposal does"
    assert len(texts(fleet, incident)) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"confidence": 0.89},
        {"recommended_action": RecommendedAction.RESTART_JOB.value},
        {"active": False},
        {"severity": "info"},
    ],
)
def test_what_is_not_certain_or_not_grave_proposes_nothing(fleet_of, changes: dict[str, Any]) -> None:
    fleet = fleet_of()
    fleet.enroll("n1")
    fleet.find("n1", **changes)
    fleet.run_loops()
    assert fleet.all() == []


def test_many_findings_of_one_incident_and_node_are_one_proposal(fleet_of) -> None:
    fleet = fleet_of()
    fleet.enroll("n1")
    incident = fleet.find("n1")
    fleet.run_loops()
    worse = {"kind": "row_remap", "evidence": {"summary": "Out of spare rows."}}
    fleet.find("n1", incident, recommended_action=RecommendedAction.REPLACE.value, **worse)
    fleet.find("n1", incident, recommended_action=RecommendedAction.REBOOT_NODE.value, kind="gpu_lost")
    fleet.run_loops()
    (row,) = fleet.all()
    assert (row.recommended_action, row.reason) == ("replace", "Out of spare rows.")


def test_accepting_drains_and_a_validation_returns_the_node(fleet_of, database_url) -> None:
    fleet = fleet_of(database_url)
    fleet.enroll("n1", "n2")
    fleet.run_job("n1", "n2", dp=2)
    incident = fleet.find("n1")
    fleet.run_loops()
    decide(fleet, fleet.latest_remediation("n1"))
    node = fleet.node("n1")
    assert (node.state, node.owner, node.actor) == ("draining", "system", "alice")
    assert "reset gpu: XID 79 on n1." in node.state_reason
    fleet.run_loops()
    assert fleet.node("n1").state == "draining", "the job is still there"
    fleet.run_job("n2", dp=1)
    fleet.run_loops()
    node = fleet.node("n1")
    assert (node.state, node.owner) == ("quarantined", "system")
    fleet.run_loops(100_000.0)
    assert fleet.node("n1").state == "quarantined", "a dry run orders no check"
    validate(fleet, "n1", Verdict.PASS)
    fleet.run_loops()
    row = fleet.latest_remediation("n1")
    assert (row.state, row.decided_by, row.ended_at) == ("done", "alice", fleet.clock.now())
    assert "Accepted by alice: seen" in row.reason
    assert fleet.node("n1").state == "healthy"
    assert len(texts(fleet, incident)) == 3
    fleet.run_loops()
    assert fleet.states() == {"n1": "done"}


def test_dismissed_is_dismissed_for_this_incident_only(fleet_of) -> None:
    fleet = fleet_of()
    fleet.enroll("n1")
    fleet.find("n1")
    fleet.run_loops()
    decide(fleet, fleet.latest_remediation("n1"), "dismiss")
    fleet.run_loops()
    assert fleet.states() == {"n1": "dismissed"}
    fleet.find("n1", kind="gpu_lost")
    fleet.run_loops()
    assert [row.state for row in fleet.all()] == ["dismissed", "proposed"]


def test_what_clears_first_is_superseded_and_proposed_again_when_it_returns(fleet_of) -> None:
    fleet = fleet_of()
    fleet.enroll("n1")
    incident = fleet.find("n1")
    fleet.run_loops()
    fleet.clear("n1")
    fleet.run_loops()
    assert fleet.states() == {"n1": "superseded"}
    assert fleet.node("n1").state == "healthy"
    fleet.find("n1", incident)
    fleet.run_loops()
    (row,) = fleet.all()
    assert (row.state, row.ended_at) == ("proposed", None)


def test_decided_once(fleet_of, database_url) -> None:
    """Two operators press at once: one drains, the other hears who did."""
    fleet = fleet_of(database_url)
    fleet.enroll("n1", "n2")
    fleet.find("n1")
    fleet.run_loops()
    row, barrier, outcomes = fleet.latest_remediation("n1"), threading.Barrier(3), {}

    def press(who: str, what: str) -> None:
        barrier.wait(30)
        try:
            decide(fleet, row, what, who)
            outcomes[who] = "won"
        except ConflictError as error:
            outcomes[who] = error.detail

    threads = [
        threading.Thread(target=press, args=args)
        for args in (("alice", "accept"), ("bob", "accept"), ("carol", "dismiss"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    (winner,) = [who for who, outcome in outcomes.items() if outcome == "won"]
    assert all(winner in outcome for who, outcome in outcomes.items() if who != winner), outcomes
    assert fleet.latest_remediation("n1").decided_by == winner
    assert fleet.node("n1").state == ("healthy" if winner == "carol" else "draining")


# rules at work


def test_a_strangers_drain_is_left_alone(fleet_of) -> None:
    fleet = fleet_of(**AUTOMATIC)
    fleet.enroll("n1", "n2")
    move(fleet, "n1", NodeTrigger.DRAIN, owner=Owner.EXTERNAL)
    fleet.find("n1")
    for _ in range(3):
        fleet.run_loops(10_000.0)
    row = fleet.latest_remediation("n1")
    assert (row.state, verdicts(row)["not_drained_by_others"]) == ("held", "deny")
    assert (fleet.node("n1").state, fleet.node("n1").owner) == ("draining", "external")
    with pytest.raises(service.DeniedError, match="another system"):
        decide(fleet, row)
    assert fleet.latest_remediation("n1").state == "held"


def test_the_last_replica_is_a_persons_decision(fleet_of) -> None:
    fleet = fleet_of(**AUTOMATIC)
    fleet.enroll("n1", "n2")
    fleet.run_job("n1", "n2", dp=1)
    fleet.find("n1")
    fleet.run_loops()
    assert verdicts(fleet.latest_remediation("n1"))["job_has_spare"] == "hold"
    assert fleet.node("n1").state == "healthy"
    fleet.enroll("n3")
    fleet.run_loops()
    assert fleet.node("n1").state == "healthy", "the job cannot use another node of the fleet"
    fleet.run_job("n1", "n2", dp=2)
    fleet.run_loops()
    assert fleet.node("n1").state == "draining", "with another replica Mainstay may drain"


def test_a_person_may_let_pass_what_is_held(fleet_of) -> None:
    fleet = fleet_of(min_drain_budget=0, max_drained_ratio=0.0)
    fleet.enroll("n1")
    fleet.find("n1")
    fleet.run_loops()
    row = fleet.latest_remediation("n1")
    assert (row.state, verdicts(row)["breaker"]) == ("held", "hold")
    decide(fleet, row)
    assert fleet.node("n1").state == "draining"


def test_a_fresh_boot_is_given_time(fleet_of) -> None:
    fleet = fleet_of()
    fleet.enroll("n1", booted_at=fleet.clock.now() - 10)
    fleet.find("n1")
    fleet.run_loops()
    assert verdicts(fleet.latest_remediation("n1"))["boot_grace"] == "hold"
    fleet.run_loops(300.0)
    assert fleet.latest_remediation("n1").state == "proposed"


def test_the_breaker_opens_and_closes_again(fleet_of, database_url) -> None:
    fleet = fleet_of(database_url, mode="automatic", max_drained_ratio=0.2, window_seconds=600.0)
    nodes = [f"n{i}" for i in range(10)]
    fleet.enroll(*nodes)
    for node in nodes:
        fleet.find(node)
    fleet.run_loops()
    assert list(fleet.states().values()).count("accepted") == 2
    assert list(fleet.states().values()).count("held") == 8
    with fleet.services.database.reading() as session:
        status = remediation_serializers.serialize_status(
            session, fleet.services.settings.remediation, fleet.clock.now()
        )
    assert (status.mode, status.breaker.open, status.breaker.touched, status.breaker.fleet) == (
        "automatic",
        True,
        2,
        10,
    )
    held = next(row for row in fleet.all() if row.state == "held")
    assert "2 of 10 nodes" in next(rule["reason"] for rule in held.rules if rule["name"] == "breaker")
    fleet.run_loops(300.0)
    assert list(fleet.states().values()).count("accepted") == 2
    fleet.run_loops(301.0)
    assert list(fleet.states().values()).count("accepted") == 4, "the window has passed: two more"


def test_the_breaker_counts_our_drains_only(fleet_of) -> None:
    fleet = fleet_of(mode="automatic", max_drained_ratio=0.0, min_drain_budget=1)
    fleet.enroll("n1", "n2", "n3")
    move(fleet, "n2", NodeTrigger.DRAIN)
    move(fleet, "n3", NodeTrigger.DRAIN, owner=Owner.EXTERNAL)
    fleet.find("n1")
    fleet.run_loops()
    assert fleet.states() == {"n1": "accepted"}


def test_a_rack_goes_node_by_node(fleet_of) -> None:
    fleet = fleet_of(mode="automatic", max_drained_ratio=1.0, max_drained_per_rack=2)
    fleet.enroll("n1", "n2", "n3", "n4", rack="r1")
    fleet.enroll("m1", rack="r2")
    incident = fleet.incident("The switch of rack r1 is down.")
    for node in ("n1", "n2", "n3", "n4", "m1"):
        fleet.find(node, incident)
    fleet.run_loops()
    states = fleet.states()
    assert [states[n] for n in ("n1", "n2", "n3", "n4", "m1")] == ["accepted", "accepted", "held", "held", "accepted"]
    assert verdicts(fleet.latest_remediation("n3"))["max_drained_per_rack"] == "hold"


def test_in_a_dry_run_one_node_of_an_incident_waits_at_a_time(fleet_of) -> None:
    fleet = fleet_of()
    fleet.enroll("n1", "n2", "n3")
    incident = fleet.incident()
    for node in ("n1", "n2", "n3"):
        fleet.find(node, incident)
    for dismissed in ("n1", "n2", "n3"):
        fleet.run_loops()
        assert [n for n, s in fleet.states().items() if s == "proposed"] == [dismissed]
        decide(fleet, fleet.latest_remediation(dismissed), "dismiss")
