"""Ranks that should leave a node, and no standby waits: what the job can do instead is offered, and asked for."""

from __future__ import annotations

from typing import Any

import pytest

from mainstay.service.remediation.service import DeniedError
from tests.service.remediation.actions import answer, given, texts
from tests.service.remediation.test_rank_migration import AT_ONCE, accept, against, slow

CAN = {"migrate": "", "restore": "", "degrade": "", "reshape": "", "save": ""}
NO_SAVE = CAN | {"save": "there is no --checkpoint-dir"}
NO_OTHER = CAN | {"degrade": "There is no other replica that could continue."}
NOTHING = NO_SAVE | NO_OTHER | {"save": "there is no --checkpoint-dir"}


def asked(fleet: Any) -> list[tuple[str, str | None, int | None]]:
    return [(request.kind, request.node, request.rank) for request in given(fleet)]


@pytest.mark.parametrize("obstacles", [CAN, NO_SAVE])
def test_a_job_with_another_replica_is_offered_to_continue_without_the_node(fleet_of, obstacles: Any) -> None:
    """Not automatically: training gets slower, and the node still works."""
    fleet = fleet_of(**AT_ONCE)
    fleet.enroll("n1", "n2")
    fleet.run_job("n1", "n2", dp=2, standbys={"n1": 1, "n2": 0}, obstacles=obstacles)
    incident = slow(fleet, "n1")
    fleet.run_loops()
    row = fleet.latest_remediation("n1")
    assert (row.state, against(row)) == ("held", {"full_strength": "hold"})
    needed = "job demo needs 1 free warm standby(s) on other healthy nodes and has 0"
    instead = f"{needed} (it can continue without these ranks, more slowly)"
    assert texts(fleet, incident) == [f"Proposed: move the ranks off n1. Held: {instead}."]
    assert asked(fleet) == []
    accept(fleet, row)
    assert asked(fleet) == [("degrade", "n1", None)]
    assert "job demo has too few standbys and is asked to continue without n1" in texts(fleet, incident)[-1]
    done = answer(given(fleet)[0], "completed", "ranks [0] stay away")
    fleet.run_job("n1", "n2", dp=2, standbys={"n2": 0}, obstacles=obstacles, results=[done])
    fleet.run_loops()
    assert fleet.latest_remediation("n1").state == "done"


@pytest.mark.parametrize(("dp", "obstacles"), [(1, CAN), (2, NO_OTHER)])
def test_a_job_that_cannot_continue_without_is_offered_to_save(fleet_of, dp: int, obstacles: Any) -> None:
    """One replica on both nodes: the ranks of n2 do not hold the model."""
    fleet = fleet_of(**AT_ONCE)
    fleet.enroll("n1", "n2")
    fleet.run_job("n1", "n2", dp=dp, standbys={"n2": 0}, obstacles=obstacles)
    incident = slow(fleet, "n1")
    fleet.run_loops()
    row = fleet.latest_remediation("n1")
    assert (row.state, against(row)) == ("held", {"full_strength": "hold"})
    assert "(it can only save a checkpoint, to be continued on other nodes)" in texts(fleet, incident)[-1]
    accept(fleet, row)
    assert asked(fleet) == [("save", None, None)]
    assert "job demo has no place for rank(s) 0 and is asked to save a checkpoint" in texts(fleet, incident)[-1]


@pytest.mark.parametrize("obstacles", [None, NOTHING])
def test_a_job_that_can_do_nothing_or_does_not_say_is_asked_for_nothing(fleet_of, obstacles: Any) -> None:
    fleet = fleet_of(**AT_ONCE)
    fleet.enroll("n1", "n2")
    fleet.run_job("n1", "n2", dp=2, standbys={"n2": 0}, obstacles=obstacles)
    slow(fleet, "n1")
    fleet.run_loops()
    row = fleet.latest_remediation("n1")
    assert against(row) == {"standbys_available": "deny"}
    with pytest.raises(DeniedError, match="start it with more --standbys"):
        accept(fleet, row)


def test_a_drain_asks_the_job_to_continue_without_the_node(fleet_of) -> None:
    """A drain empties the node in any case: the job has another replica."""
    fleet = fleet_of(mode="automatic", **AT_ONCE)
    fleet.enroll("n1", "n2", "n3")
    fleet.run_job("n1", "n2", dp=2, standbys={"n2": 0}, obstacles=CAN)
    incident = fleet.find("n1")
    fleet.run_loops()
    assert fleet.node("n1").state == "draining"
    assert asked(fleet) == [("degrade", "n1", None)]
    fleet.run_job("n2", "n2", dp=2, standbys={"n2": 0}, results=[answer(given(fleet)[0], "completed", "left")])
    fleet.run_loops()
    assert fleet.node("n1").state == "quarantined"
    assert any("asked to continue without n1" in text for text in texts(fleet, incident))


def test_a_drain_that_a_person_accepts_saves_once_where_nothing_else_helps(fleet_of) -> None:
    fleet = fleet_of(migrate="manual")
    fleet.enroll("n1", "n2", "n3")
    fleet.run_job("n1", "n2", standbys={"n2": 0}, obstacles=NO_OTHER)
    fleet.find("n1")
    fleet.run_loops()
    row = fleet.latest_remediation("n1")
    assert against(row) == {"job_has_spare": "hold"}
    accept(fleet, row)
    assert asked(fleet) == [("save", None, None)]
    saved = answer(given(fleet)[0], "completed", "step 7 is on disk")
    for seconds in (1.0, 500.0, 500.0):
        fleet.run_job("n1", "n2", standbys={"n2": 0}, obstacles=NO_OTHER, results=[saved])
        fleet.run_loops(seconds)
    assert len(given(fleet)) == 1, "the ranks are still there, and one checkpoint is enough"
    assert fleet.node("n1").state == "draining"
