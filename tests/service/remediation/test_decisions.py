"""What a proposal says and to whom, and the numbers that its rules are given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import select

from mainstay.detectors.finding import FindingKind
from mainstay.probes.core_types import HealthState, RecommendedAction
from mainstay.recovery.job_request import RequestKind
from mainstay.service.fleet.models import NodeRow
from mainstay.service.jobs import job_requests
from mainstay.service.jobs.schemas import JobRequestCreate
from mainstay.service.remediation import rank_migration, reconcile, rules, service
from mainstay.service.remediation import serializers as remediation_serializers
from mainstay.service.remediation.fleet_view import FleetView, _depends
from mainstay.service.remediation.job_migrations import JobMigration, find_job_migrations
from mainstay.service.remediation.metrics import collect_remediation
from mainstay.service.remediation.repository import Candidate
from mainstay.service.stream.models import ChangeRow
from tests.service.remediation.actions import AUTOMATIC, decide, texts


def changes_of(fleet: Any) -> list[tuple[str, str]]:
    """State and node of each change of a remediation for watchers."""
    with fleet.services.database.reading() as session:
        found = session.scalars(select(ChangeRow).where(ChangeRow.topic == "remediation").order_by(ChangeRow.id))
        return [(row.data["state"], row.data["node"]) for row in found]


def view(fleet: Any, session: Any) -> FleetView[Any]:
    return FleetView(session, fleet.services.settings.remediation, fleet.clock.now())


def test_watchers_hear_of_a_change_that_no_timeline_tells(fleet_of) -> None:
    fleet = fleet_of()
    fleet.enroll("n1", booted_at=fleet.clock.now() - 10)
    incident = fleet.find("n1")
    fleet.run_loops()
    assert changes_of(fleet) == [("held", "n1")]
    fleet.run_loops()
    assert changes_of(fleet) == [("held", "n1")], "nothing has changed"
    fleet.run_loops(300.0)
    assert changes_of(fleet) == [("held", "n1"), ("proposed", "n1")]
    (text,) = texts(fleet, incident)
    assert text == (
        "Proposed: take n1 out of service, then reset gpu. Held: it booted 11 s ago; what shows in the first 300 s may "
        "be links that still come up."
    )


def test_the_timeline_tells_each_decision_in_words(fleet_of) -> None:
    fleet = fleet_of()
    fleet.enroll("n1", "n2")
    first, second = fleet.find("n1"), fleet.find("n2")
    fleet.run_loops()
    decide(fleet, fleet.latest_remediation("n1"))
    decide(fleet, fleet.latest_remediation("n2"), "dismiss")
    assert texts(fleet, first)[1:] == ["alice takes n1 out of service for it: seen"]
    assert texts(fleet, second)[1:] == ["alice dismissed the proposal for n2: seen"]
    row = fleet.latest_remediation("n2")
    assert (row.decided_at, row.ended_at, row.reason) == (
        fleet.clock.now(), fleet.clock.now(), "XID 79 on n2. Dismissed by alice: seen"
    )  # fmt: skip
    assert fleet.latest_remediation("n1").ended_at is None
    with pytest.raises(service.AlreadyDecidedError, match="is dismissed by alice"):
        decide(fleet, row)
    with fleet.services.database.session() as session, pytest.raises(service.UnknownRemediationError, match="id 'no'"):
        service.require(session, "no")


def test_what_was_tried_is_told_with_its_age() -> None:
    tried = [{"recommended_action": "reset_gpu", "at": 0.0}, {"recommended_action": "reboot_node", "at": 172_800.0}]
    row: Any = SimpleNamespace(tried=tried)
    assert service._reason("It broke.", row, 129_600.0) == (
        "It broke. Tried before: reset gpu 1.5 days ago, reboot node 0.0 days ago."
    )
    assert service._reason("It broke.", SimpleNamespace(tried=[]), 9.0) == "It broke."
    assert service._and("a" * 4000, "b") == "a" * 3998 + " b", "the end is kept"


def test_a_proposal_grows_with_what_is_found(fleet_of) -> None:
    fleet = fleet_of()
    fleet.enroll("n1")
    incident = fleet.find("n1", recommended_action=RecommendedAction.REBOOT_NODE.value)
    fleet.run_loops()
    fleet.clear("n1")
    fleet.find("n1", incident, recommended_action=RecommendedAction.RESET_GPU.value)
    fleet.run_loops()
    assert fleet.latest_remediation("n1").recommended_action == "reboot_node", "what is milder makes it no milder"
    decide(fleet, fleet.latest_remediation("n1"))
    for kind, action in (("gpu_lost", RecommendedAction.REBOOT_NODE), ("row_remap", RecommendedAction.INSPECT_NODE)):
        evidence = {"summary": f"Now {action}."}
        fleet.find("n1", incident, kind=kind, recommended_action=action.value, evidence=evidence)
        fleet.run_loops()
    row = fleet.latest_remediation("n1")
    assert (row.state, row.recommended_action) == ("accepted", "inspect_node")
    assert texts(fleet, incident)[2:] == ["n1: now inspect node. Now inspect_node."], "as severe as before is no news"


def test_fleet_and_drains_are_counted_within_their_times(fleet_of) -> None:
    fleet = fleet_of(window_seconds=600.0, **AUTOMATIC)
    fleet.enroll("n1", rack="r1")
    fleet.enroll("n2", rack="r2")
    fleet.find("n1")
    fleet.run_loops(0.0)
    for seconds, count in ((600.0, 1), (1.0, 0)):
        fleet.clock.advance(seconds)
        with fleet.services.database.session() as session:
            survey = view(fleet, session)
            assert (len(survey.drained()), survey.fleet()) == (count, 2)
            facts = survey.facts("n1", first="n9")
            assert (facts.rack, facts.rack_touched, facts.touched, facts.first) == ("r1", count, count, "n9")
            assert survey.facts("n2").rack_touched == 0
            assert not survey.facts("unknown").known
            survey.note_drain("n2")
            assert survey.drained()["n2"] == "r2"
    for past, count in ((86_400.0, 2), (86_401.0, 0)):
        fleet.clock.now = lambda past=past: fleet.node("n1").last_seen_at + past
        with fleet.services.database.reading() as session:
            assert view(fleet, session).fleet() == count


NONE_FREE = "job demo needs 1 free warm standby(s) on other healthy nodes and has 0 (start it with more --standbys)"


def obstacles(fleet: Any) -> list[str]:
    """What keeps the job from leaving n1: in the facts for a drain, and in those for a migration."""
    with fleet.services.database.session() as session:
        survey = view(fleet, session)
        moves = rank_migration.facts(survey, "n1", None, None)
        return ["; ".join(survey.facts("n1").stranded), moves.short]


@pytest.mark.parametrize("state", [*HealthState, None])
def test_a_standby_counts_where_its_node_may_take_work(fleet_of, state: HealthState | None) -> None:
    """A node that never reported is as its job says."""
    fleet = fleet_of()
    fleet.enroll("n1", *(["n2"] if state else []))
    fleet.run_job("n1", "n1", standbys={"n1": 9, "n2": 2})
    if state:
        with fleet.services.database.session() as session:
            row = session.get(NodeRow, "n2")
            assert row is not None
            row.state = state.value
    usable = state in {HealthState.HEALTHY, None}
    assert obstacles(fleet) == ["" if usable else NONE_FREE.replace("needs 1", "needs 2")] * 2


@pytest.mark.parametrize(
    ("changes", "usable"),
    [
        ({}, False),
        ({"confidence": 0.5}, False),
        ({"active": False}, True),
        ({"recommended_action": RecommendedAction.NONE.value}, True),
    ],
)
def test_no_rank_moves_to_a_node_that_a_finding_wants_empty(fleet_of, changes: Any, usable: bool) -> None:
    fleet = fleet_of()
    fleet.enroll("n1", "n2")
    fleet.run_job("n1", standbys={"n2": 1})
    fleet.find("n2", **changes)
    assert obstacles(fleet) == ["" if usable else NONE_FREE] * 2


@pytest.mark.parametrize("standbys", [{"n1": 1, "n2": 0}, {"n1": 1}, {}, {"n1": 1, "n2": 0, "n3": 0}])
def test_only_a_warm_standby_of_the_job_is_a_spare_for_it(fleet_of, standbys: dict[str, int]) -> None:
    """Neither an idle node of the fleet, nor one of the job without a process that waits."""
    fleet = fleet_of()
    fleet.enroll("n1", "n2", "n3")
    fleet.run_job("n1", standbys=standbys)
    assert obstacles(fleet) == [NONE_FREE] * 2
    assert fleet.node("n3").state == "healthy"


def test_a_job_with_another_replica_or_without_ranks_there_is_not_stranded(fleet_of) -> None:
    fleet = fleet_of()
    fleet.enroll("n1", "n2")
    fleet.run_job("n1", "n2", dp=2, standbys={})
    assert obstacles(fleet)[0] == ""
    fleet.run_job("n2", standbys={})
    assert obstacles(fleet) == ["", ""]
    with fleet.services.database.session() as session:
        assert view(fleet, session).jobs_on("n2") == ("demo",)
        assert view(fleet, session).jobs_on("n9") == ()


@pytest.mark.parametrize(
    ("job", "settings", "why"),
    [
        ({}, {}, "job demo does not say how many standbys wait"),
        ({"standbys": {"n2": 1}, "state": "recovering"}, {},
         "job demo recovers or is in an unknown state: that comes first"),
        ({"standbys": {"n2": 1}}, {"mode": "automatic"},
         "Mainstay may not move the ranks of job demo (MAINSTAY_REMEDIATION__MIGRATE=manual)"),
        ({"standbys": {"n2": 1}}, {"migrate": "off"},
         "Mainstay may not move the ranks of job demo (MAINSTAY_REMEDIATION__MIGRATE=off)"),
        ({"standbys": {}}, {"migrate": "off"}, NONE_FREE),
        ({"standbys": {"n2": 1}}, {"mode": "automatic", "migrate": "automatic"}, ""),
    ],
)  # fmt: skip
def test_what_else_keeps_a_job_on_a_node(fleet_of, job: Any, settings: Any, why: str) -> None:
    fleet = fleet_of(**settings)
    fleet.enroll("n1", "n2")
    fleet.run_job("n1", **job)
    assert obstacles(fleet)[0] == why


@pytest.mark.parametrize(
    ("asked", "free"),
    [({"node": "n2"}, 1), ({"rank": 2}, 2), ({"node": "n1"}, 3), ({"rank": 0}, 3), ({"node": "n9"}, 3)],
)
def test_standbys_that_other_ranks_are_asked_to_take_are_not_free(fleet_of, asked: Any, free: int) -> None:
    fleet = fleet_of()
    fleet.enroll("n1", "n2", "n3")
    fleet.run_job("n1", "n2", "n2", standbys={"n3": 3})
    with fleet.services.database.session() as session:
        about = JobRequestCreate(kind=RequestKind.MIGRATE, **asked, reason="r")
        job_requests.create(session, "demo", about, actor="a", now=fleet.clock.now())
        (move,) = view(fleet, session).moves("n1")
        assert move.standbys == free


@pytest.mark.parametrize(
    ("nodes", "alone"),
    [({"a": {0, 1}, "b": {0}}, True), ({"a": {0}, "b": {1}}, False), ({"a": {0}}, True), ({"a": {0}, "b": {0}}, True)],
)
def test_a_job_depends_on_a_node_that_every_replica_needs(nodes: dict[str, set[int]], alone: bool) -> None:
    assert _depends(nodes, "a") is alone


def test_fifty_candidates_of_one_incident_are_looked_at() -> None:
    found = [Candidate(i, f"n{k}", None, RecommendedAction.RESET_GPU, "f") for k in range(52) for i in ("one", "two")]
    kept = reconcile._first_of_each(found)
    assert kept == found[:100]


PLACES = [{"rank": 3, "node": "a", "device": "g0"}, {"rank": 1, "node": "a", "device": "g1"},
          {"rank": 0, "node": "b", "device": "g0"}]  # fmt: skip


@pytest.mark.parametrize(
    ("node", "device", "ranks", "whole"),
    [
        ("a", None, (1, 3), True),
        ("a", "host", (1, 3), True),
        ("a", "g0", (3,), False),
        ("b", "g0", (0,), True),
        ("a", "g7", None, None),
        ("c", None, None, None),
    ],
)
def test_which_ranks_would_leave(node: str, device: str | None, ranks: Any, whole: Any) -> None:
    job: Any = SimpleNamespace(id="j", state="running", topology={"ranks": PLACES}, request_obstacles=None)
    found = find_job_migrations([job], node, device, lambda _: 4)
    assert found == ([] if ranks is None else [JobMigration("j", False, ranks, whole, 4)])
    job.topology, job.state = {"ranks": [{**place, "device": None} for place in PLACES]}, "recovering"
    if ranks is not None:
        (move,) = find_job_migrations([job], node, device, lambda _: None)
        assert (move.recovers, move.whole, move.standbys, len(move.ranks)) == (True, True, None, 1 + (node == "a"))


@pytest.mark.parametrize(("standbys", "short"), [(None, False), (2, False), (3, False), (1, True), (0, True)])
def test_a_job_is_short_of_standbys_below_one_a_rank(standbys: int | None, short: bool) -> None:
    told = JobMigration("j", False, (1, 3), True, standbys).shortage
    needed = "job j needs 2 free warm standby(s) on other healthy nodes"
    expected = f"{needed} and has {standbys} (start it with more --standbys)"
    assert told == (expected if short else "")


def test_status_and_metrics_tell_what_is_left(fleet_of) -> None:
    fleet = fleet_of(mode="automatic", max_drained_ratio=0.5, window_seconds=600.0)
    fleet.enroll("n1", "n2", "n3", "n4")
    fleet.find("n1")
    fleet.find("n2", kind=FindingKind.STRAGGLER.value, recommended_action=RecommendedAction.NONE.value)
    fleet.run_loops()
    limits = fleet.services.settings.remediation
    with fleet.services.database.reading() as session:
        told = remediation_serializers.serialize_status(session, limits, fleet.clock.now())
    assert (told.breaker.open, told.breaker.touched, told.breaker.fleet) == (False, 1, 4)
    assert told.breaker.reason == "1 more of 4 nodes may be drained within 10 min"
    values = {
        (sample.name, *sample.labels.values()): sample.value
        for metric in collect_remediation(fleet.services)
        for sample in metric.samples
    }
    assert values["mainstay_remediations", "accepted"] == 1
    assert values["mainstay_remediations", "failed"] == 0
    assert values["mainstay_node_transitions_last_hour", "draining", "system"] == 1
    assert values["mainstay_node_transitions_last_hour", "draining", "external"] == 0
    assert [values[f"mainstay_remediation_{name}",] for name in ("automatic", "breaker_open", "drained")] == [1, 0, 1]
    fleet.clock.advance(3601.0)
    later = {(s.name, *s.labels.values()): s.value for m in collect_remediation(fleet.services) for s in m.samples}
    assert later["mainstay_node_transitions_last_hour", "draining", "system"] == 0
    assert later["mainstay_remediation_drained",] == 0
    assert rules.limit(limits, 4) == 2
