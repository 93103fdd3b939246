"""Automatic mode: which nodes Mainstay drains and validates without an operator, and which it leaves alone."""

from __future__ import annotations

from mainstay.probes.core_types import RecommendedAction, Verdict
from mainstay.service.fleet.lifecycle import NodeTrigger
from tests.service.remediation.actions import AUTOMATIC, move


def test_what_every_rule_allows_is_drained_and_validated_after_a_reboot(fleet_of, database_url) -> None:
    fleet = fleet_of(database_url, **AUTOMATIC)
    fleet.enroll("n1", "n2")
    fleet.find("n1", recommended_action=RecommendedAction.REBOOT_NODE.value)
    fleet.run_loops()
    row = fleet.latest_remediation("n1")
    assert (row.state, row.decided_by, row.dry_run) == ("accepted", "mainstay", False)
    fleet.run_loops()
    assert fleet.node("n1").state == "quarantined"
    fleet.run_loops(1000.0)
    fleet.report_nodes()
    fleet.run_loops()
    assert fleet.node("n1").state == "quarantined", "it has not rebooted"
    fleet.enroll("n1", booted_at=fleet.clock.now())
    fleet.run_loops(10.0)
    assert fleet.node("n1").state == "quarantined", "it has only just booted"
    fleet.clock.advance(300.0)
    fleet.report_nodes()
    fleet.run_loops()
    assert fleet.node("n1").state == "validating"
    fleet.end_validation("n1", Verdict.PASS)
    fleet.run_loops()
    assert (fleet.node("n1").state, fleet.latest_remediation("n1").state) == ("healthy", "done")


def test_a_boot_before_the_quarantine_brings_nothing_back(fleet_of) -> None:
    fleet = fleet_of(**AUTOMATIC)
    fleet.enroll("n1", "n2", booted_at=fleet.clock.now() - 10_000.0)
    fleet.find("n1", recommended_action=RecommendedAction.REBOOT_NODE.value)
    for _ in range(2):
        fleet.run_loops()
    node = fleet.node("n1")
    assert (node.state, node.owner) == ("quarantined", "system")
    fleet.clock.advance(1000.0)
    fleet.report_nodes()
    fleet.run_loops()
    assert fleet.node("n1").state == "quarantined", "a check would prove nothing of what the reboot is to repair"
    fleet.enroll("n1", booted_at=node.state_since)
    fleet.report_nodes()
    fleet.run_loops()
    assert fleet.node("n1").state == "quarantined", "it went down before work had left it"
    fleet.enroll("n1", booted_at=fleet.clock.now())
    fleet.clock.advance(400.0)
    fleet.report_nodes()
    fleet.run_loops()
    assert fleet.node("n1").state == "validating"


def test_no_validation_starts_where_an_operator_has_to_inspect(fleet_of) -> None:
    fleet = fleet_of(**AUTOMATIC)
    fleet.enroll("n1", "n2")
    fleet.find("n1", recommended_action=RecommendedAction.INSPECT_NODE.value)
    for _ in range(2):
        fleet.run_loops()
    fleet.enroll("n1", booted_at=fleet.clock.now())
    fleet.clock.advance(400.0)
    fleet.report_nodes()
    fleet.run_loops()
    assert fleet.node("n1").state == "quarantined"


def test_proposals_of_a_dry_run_wait_for_an_operator(fleet_of) -> None:
    fleet = fleet_of()
    fleet.enroll("n1", "n2")
    fleet.find("n1")
    fleet.run_loops()
    fleet.services.settings.remediation.mode = "automatic"
    fleet.find("n2")
    fleet.run_loops()
    assert fleet.states() == {"n1": "proposed", "n2": "accepted"}


def test_a_drain_that_never_empties_ends_in_quarantine(fleet_of) -> None:
    fleet = fleet_of(drain_timeout_seconds=60.0, **AUTOMATIC)
    fleet.enroll("n1", "n2")
    fleet.run_job("n1", "n2", dp=2)
    fleet.find("n1")
    fleet.run_loops()
    fleet.run_loops(30.0)
    assert fleet.node("n1").state == "draining"
    fleet.run_loops(31.0)
    assert fleet.node("n1").state == "quarantined"
    assert "still on it: demo" in fleet.node("n1").state_reason


def test_an_operator_who_undrains_has_the_last_word(fleet_of) -> None:
    fleet = fleet_of(**AUTOMATIC)
    fleet.enroll("n1", "n2")
    fleet.run_job("n1", "n2", dp=2)
    fleet.find("n1")
    fleet.run_loops()
    move(fleet, "n1", NodeTrigger.UNDRAIN)
    for _ in range(3):
        fleet.run_loops()
    assert fleet.states() == {"n1": "superseded"}
    assert fleet.node("n1").state == "healthy"
    assert "bob put it back" in fleet.latest_remediation("n1").reason
