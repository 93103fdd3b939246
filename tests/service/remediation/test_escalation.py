"""A fault that returns after an action gets the next stronger one."""

from __future__ import annotations

from typing import Any

from mainstay.probes.core_types import RecommendedAction, Verdict
from tests.service.remediation.actions import decide, validate


def repair(fleet: Any, node: str) -> None:
    """Accept, drain, validate: the action is done."""
    decide(fleet, fleet.latest_remediation(node))
    fleet.run_loops()
    validate(fleet, node, Verdict.PASS)
    fleet.run_loops()
    assert fleet.latest_remediation(node).state == "done"


def test_what_comes_back_gets_the_next_action(fleet_of) -> None:
    fleet = fleet_of(max_drained_ratio=1.0)
    fleet.enroll("n1")
    wanted = []
    for _ in range(4):
        fleet.find("n1")
        fleet.run_loops(3600.0)
        wanted.append(fleet.latest_remediation("n1").recommended_action)
        repair(fleet, "n1")
    assert wanted == ["reset_gpu", "reboot_node", "inspect_node", "replace"]
    tried = [entry["recommended_action"] for entry in fleet.latest_remediation("n1").tried]
    assert tried[-1] == "inspect_node"
    assert "Tried before" in fleet.latest_remediation("n1").reason
    fleet.clock.advance(8 * 86_400.0)
    fleet.report_nodes()
    fleet.find("n1")
    fleet.run_loops()
    assert fleet.latest_remediation("n1").recommended_action == "reset_gpu", "after a quiet week it starts again"


def test_it_follows_the_hardware_and_not_the_slot(fleet_of) -> None:
    fleet = fleet_of(max_drained_ratio=1.0)
    fleet.enroll("n1", serial="BAD")
    fleet.find("n1")
    fleet.run_loops()
    repair(fleet, "n1")
    fleet.enroll("n1", serial="GOOD")
    fleet.enroll("n2", serial="BAD")
    fleet.find("n1")
    fleet.find("n2")
    fleet.run_loops()
    first, second = fleet.latest_remediation("n1"), fleet.latest_remediation("n2")
    assert (first.recommended_action, second.recommended_action) == ("reset_gpu", "reboot_node")


def test_a_failed_validation_escalates_too_and_an_unknown_one_does_not(fleet_of) -> None:
    fleet = fleet_of()
    fleet.enroll("n1")
    fleet.find("n1")
    fleet.run_loops()
    decide(fleet, fleet.latest_remediation("n1"))
    fleet.run_loops()
    validate(fleet, "n1", Verdict.UNKNOWN)
    fleet.run_loops()
    assert (fleet.latest_remediation("n1").recommended_action, fleet.node("n1").state) == ("reset_gpu", "quarantined")
    validate(fleet, "n1", Verdict.FAIL)
    fleet.run_loops()
    row = fleet.latest_remediation("n1")
    assert (row.state, row.recommended_action, row.tried[0]["recommended_action"]) == (
        "accepted",
        "reboot_node",
        "reset_gpu",
    )
    assert fleet.node("n1").state == "quarantined"
    validate(fleet, "n1", Verdict.PASS)
    fleet.run_loops()
    assert fleet.latest_remediation("n1").state == "done"


def test_a_pass_does_not_let_in_what_still_measures_badly(fleet_of) -> None:
    fleet = fleet_of()
    fleet.enroll("n1")
    fleet.find("n1", detector="heartbeat", kind="row_remap")
    fleet.run_loops()
    decide(fleet, fleet.latest_remediation("n1"))
    fleet.run_loops()
    validate(fleet, "n1", Verdict.PASS)
    assert fleet.node("n1").state == "quarantined"
    assert "are active" in fleet.node("n1").state_reason
    fleet.clear("n1")
    validate(fleet, "n1", Verdict.PASS)
    assert fleet.node("n1").state == "healthy"


def test_what_gets_worse_in_quarantine_is_kept(fleet_of) -> None:
    fleet = fleet_of()
    fleet.enroll("n1")
    fleet.find("n1")
    fleet.run_loops()
    decide(fleet, fleet.latest_remediation("n1"))
    fleet.find(
        "n1",
        recommended_action=RecommendedAction.REPLACE.value,
        kind="row_remap",
        evidence={"summary": "Out of spare rows."},
    )
    fleet.run_loops()
    (row,) = fleet.all()
    assert (row.state, row.recommended_action) == ("accepted", "replace"), "one remediation at a time for a node"
