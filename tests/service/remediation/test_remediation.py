"""From evidence to a verified return, step by step; and everything that holds, stops or repeats it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from probes.words import Remedy, Verdict
from service.fleet.life_cycle import Facts, Owner, Trigger
from service.fleet.models import NodeRow
from service.fleet.moves import Mover, demand
from service.kit.problem import ConflictError
from service.remediation import reading, service
from service.remediation.survey import Survey
from service.validation import service as validations

AUTOMATIC = {"mode": "automatic", "share_limit": 1.0, "rack_limit": 99}


def decide(fleet: Any, row: Any, what: str = "accept", who: str = "alice") -> None:
    with fleet.services.database.session() as session:
        service.lock(session)
        found = service.require(session, row.id)
        settings, now = fleet.services.settings, fleet.clock.now()
        if what == "accept":
            survey = Survey(session, settings.remediation, now)
            service.accept(session, survey, found, actor=who, reason="seen")
        else:
            service.dismiss(session, found, actor=who, reason="seen", now=now)


def move(fleet: Any, node: str, trigger: Trigger, *, owner: Owner = Owner.PERSON, **changes: Any) -> None:
    with fleet.services.database.session() as session:
        row = session.get(NodeRow, node)
        known = Facts(state=row.state, **changes)
        mover = Mover(owner, "bob")
        demand(session, row, trigger, reason="by hand", now=fleet.clock.now(), known=known, mover=mover)


def validate(fleet: Any, node: str, verdict: Verdict) -> None:
    """A person orders the check, and it ends."""
    from service.fleet import returning

    settings, now = fleet.services.settings, fleet.clock.now()
    with fleet.services.database.session() as session:
        ordered = validations.order(session, settings, node=node, suite="deep", now=now)
        row = session.get(NodeRow, node)
        mover = Mover(Owner.PERSON, "bob")
        returning.begin(session, row, ordered, mover=mover, reason="mended", now=now, settings=settings)
    fleet.end_validation(node, verdict)


def verdicts(row: Any) -> dict[str, str]:
    return {rule["name"]: rule["verdict"] for rule in row.rules}


def texts(fleet: Any, incident: str) -> list[str]:
    from service.incidents import repository

    with fleet.services.database.reading() as session:
        return [e.text for e in repository.timeline_of(session, incident) if e.kind == "remediation"]


# dry run


def test_a_dry_run_moves_nothing(fleet_of, database_url) -> None:
    fleet = fleet_of(database_url)
    fleet.enrol("n1", "n2")
    incident = fleet.find("n1")
    for _ in range(3):
        fleet.turn()
    (row,) = fleet.all()
    assert (row.node, row.state, row.remedy, row.device) == ("n1", "proposed", "reset_gpu", "gpu0")
    assert (row.incident_id, row.dry_run, row.hardware) == (incident, True, "serial:S-n1")
    assert set(verdicts(row).values()) == {"allow"}
    assert row.reason == "XID 79 on n1."
    assert fleet.node("n1").state == "healthy", "no finding moved it here, and no proposal does"
    assert len(texts(fleet, incident)) == 1


@pytest.mark.parametrize(
    "changes", [{"confidence": 0.89}, {"remedy": Remedy.RESTART_APP.value}, {"active": False}, {"severity": "info"}]
)
def test_what_is_not_certain_or_not_grave_proposes_nothing(fleet_of, changes: dict[str, Any]) -> None:
    fleet = fleet_of()
    fleet.enrol("n1")
    fleet.find("n1", **changes)
    fleet.turn()
    assert fleet.all() == []


def test_many_findings_of_one_incident_and_node_are_one_proposal(fleet_of) -> None:
    fleet = fleet_of()
    fleet.enrol("n1")
    incident = fleet.find("n1")
    fleet.turn()
    worse = {"kind": "row_remap", "evidence": {"summary": "Out of spare rows."}}
    fleet.find("n1", incident, remedy=Remedy.REPLACE.value, **worse)
    fleet.find("n1", incident, remedy=Remedy.REBOOT_NODE.value, kind="gpu_lost")
    fleet.turn()
    (row,) = fleet.all()
    assert (row.remedy, row.reason) == ("replace", "Out of spare rows.")


def test_accepting_drains_and_the_way_back_is_a_validation(fleet_of, database_url) -> None:
    fleet = fleet_of(database_url)
    fleet.enrol("n1", "n2")
    fleet.run_job("n1", "n2", dp=2)
    incident = fleet.find("n1")
    fleet.turn()
    decide(fleet, fleet.of("n1"))
    node = fleet.node("n1")
    assert (node.state, node.owner, node.actor) == ("draining", "machine", "alice")
    assert "reset gpu: XID 79 on n1." in node.state_reason
    fleet.turn()
    assert fleet.node("n1").state == "draining", "the job is still there"
    fleet.run_job("n2", dp=1)
    fleet.turn()
    node = fleet.node("n1")
    assert (node.state, node.owner) == ("quarantined", "machine")
    fleet.turn(100_000.0)
    assert fleet.node("n1").state == "quarantined", "a dry-run orders no check by itself"
    validate(fleet, "n1", Verdict.PASS)
    fleet.turn()
    row = fleet.of("n1")
    assert (row.state, row.decided_by, row.ended_at) == ("done", "alice", fleet.clock.now())
    assert "Accepted by alice: seen" in row.reason
    assert fleet.node("n1").state == "healthy"
    assert len(texts(fleet, incident)) == 3
    fleet.turn()
    assert fleet.states() == {"n1": "done"}


def test_dismissed_is_dismissed_for_this_incident_only(fleet_of) -> None:
    fleet = fleet_of()
    fleet.enrol("n1")
    fleet.find("n1")
    fleet.turn()
    decide(fleet, fleet.of("n1"), "dismiss")
    fleet.turn()
    assert fleet.states() == {"n1": "dismissed"}
    fleet.find("n1", kind="gpu_lost")
    fleet.turn()
    assert [row.state for row in fleet.all()] == ["dismissed", "proposed"]


def test_what_clears_first_is_superseded_and_proposed_again_when_it_returns(fleet_of) -> None:
    fleet = fleet_of()
    fleet.enrol("n1")
    incident = fleet.find("n1")
    fleet.turn()
    fleet.clear("n1")
    fleet.turn()
    assert fleet.states() == {"n1": "superseded"}
    assert fleet.node("n1").state == "healthy"
    fleet.find("n1", incident)
    fleet.turn()
    (row,) = fleet.all()
    assert (row.state, row.ended_at) == ("proposed", None)


def test_decided_once(fleet_of, database_url) -> None:
    """Two operators press at once: one drains, the other hears who did."""
    fleet = fleet_of(database_url)
    fleet.enrol("n1", "n2")
    fleet.find("n1")
    fleet.turn()
    row, barrier, outcomes = fleet.of("n1"), threading.Barrier(3), {}

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
    assert fleet.of("n1").decided_by == winner
    assert fleet.node("n1").state == ("healthy" if winner == "carol" else "draining")


# rules at work


def test_a_strangers_drain_is_left_alone(fleet_of) -> None:
    fleet = fleet_of(**AUTOMATIC)
    fleet.enrol("n1", "n2")
    move(fleet, "n1", Trigger.DRAIN, owner=Owner.OUTSIDE)
    fleet.find("n1")
    for _ in range(3):
        fleet.turn(10_000.0)
    row = fleet.of("n1")
    assert (row.state, verdicts(row)["not_drained_by_others"]) == ("held", "deny")
    assert (fleet.node("n1").state, fleet.node("n1").owner) == ("draining", "outside")
    with pytest.raises(service.DeniedError, match="another system"):
        decide(fleet, row)
    assert fleet.of("n1").state == "held"


def test_the_last_replica_is_a_persons_decision(fleet_of) -> None:
    fleet = fleet_of(**AUTOMATIC)
    fleet.enrol("n1", "n2")
    fleet.run_job("n1", "n2", dp=1)
    fleet.find("n1")
    fleet.turn()
    assert verdicts(fleet.of("n1"))["job_has_spare"] == "hold"
    assert fleet.node("n1").state == "healthy"
    fleet.enrol("n3")
    fleet.turn()
    assert fleet.node("n1").state == "draining", "with a spare the machine may"


def test_a_person_may_let_pass_what_is_held(fleet_of) -> None:
    fleet = fleet_of(minimum=0, share_limit=0.0)
    fleet.enrol("n1")
    fleet.find("n1")
    fleet.turn()
    row = fleet.of("n1")
    assert (row.state, verdicts(row)["breaker"]) == ("held", "hold")
    decide(fleet, row)
    assert fleet.node("n1").state == "draining"


def test_a_fresh_boot_is_given_time(fleet_of) -> None:
    fleet = fleet_of()
    fleet.enrol("n1", booted_at=fleet.clock.now() - 10)
    fleet.find("n1")
    fleet.turn()
    assert verdicts(fleet.of("n1"))["boot_grace"] == "hold"
    fleet.turn(300.0)
    assert fleet.of("n1").state == "proposed"


def test_the_breaker_opens_and_closes_again(fleet_of, database_url) -> None:
    fleet = fleet_of(database_url, mode="automatic", share_limit=0.2, window_seconds=600.0)
    nodes = [f"n{i}" for i in range(10)]
    fleet.enrol(*nodes)
    for node in nodes:
        fleet.find(node)
    fleet.turn()
    assert list(fleet.states().values()).count("accepted") == 2
    assert list(fleet.states().values()).count("held") == 8
    with fleet.services.database.reading() as session:
        status = reading.read_status(session, fleet.services.settings.remediation, fleet.clock.now())
    assert (status.mode, status.breaker.open, status.breaker.touched, status.breaker.fleet) == (
        "automatic",
        True,
        2,
        10,
    )
    held = next(row for row in fleet.all() if row.state == "held")
    assert "2 of 10 nodes" in next(rule["why"] for rule in held.rules if rule["name"] == "breaker")
    fleet.turn(300.0)
    assert list(fleet.states().values()).count("accepted") == 2
    fleet.turn(301.0)
    assert list(fleet.states().values()).count("accepted") == 4, "the window has passed: two more"


def test_the_breaker_counts_our_drains_only(fleet_of) -> None:
    fleet = fleet_of(mode="automatic", share_limit=0.0, minimum=1)
    fleet.enrol("n1", "n2", "n3")
    move(fleet, "n2", Trigger.DRAIN)
    move(fleet, "n3", Trigger.DRAIN, owner=Owner.OUTSIDE)
    fleet.find("n1")
    fleet.turn()
    assert fleet.states() == {"n1": "accepted"}


def test_a_rack_goes_node_by_node(fleet_of) -> None:
    fleet = fleet_of(mode="automatic", share_limit=1.0, rack_limit=2)
    fleet.enrol("n1", "n2", "n3", "n4", rack="r1")
    fleet.enrol("m1", rack="r2")
    incident = fleet.incident("The switch of rack r1 is down.")
    for node in ("n1", "n2", "n3", "n4", "m1"):
        fleet.find(node, incident)
    fleet.turn()
    states = fleet.states()
    assert [states[n] for n in ("n1", "n2", "n3", "n4", "m1")] == ["accepted", "accepted", "held", "held", "accepted"]
    assert verdicts(fleet.of("n3"))["rack_limit"] == "hold"


def test_in_a_dry_run_one_node_of_an_incident_waits_at_a_time(fleet_of) -> None:
    fleet = fleet_of()
    fleet.enrol("n1", "n2", "n3")
    incident = fleet.incident()
    for node in ("n1", "n2", "n3"):
        fleet.find(node, incident)
    for dismissed in ("n1", "n2", "n3"):
        fleet.turn()
        assert [n for n, s in fleet.states().items() if s == "proposed"] == [dismissed]
        decide(fleet, fleet.of(dismissed), "dismiss")


# automatic


def test_the_machine_takes_what_every_rule_allows_and_validates_after_a_reboot(fleet_of, database_url) -> None:
    fleet = fleet_of(database_url, **AUTOMATIC)
    fleet.enrol("n1", "n2")
    fleet.find("n1", remedy=Remedy.REBOOT_NODE.value)
    fleet.turn()
    row = fleet.of("n1")
    assert (row.state, row.decided_by, row.dry_run) == ("accepted", "mainstay", False)
    fleet.turn()
    assert fleet.node("n1").state == "quarantined"
    fleet.turn(1000.0)
    fleet.hear()
    fleet.turn()
    assert fleet.node("n1").state == "quarantined", "it has not rebooted"
    fleet.enrol("n1", booted_at=fleet.clock.now())
    fleet.turn(10.0)
    assert fleet.node("n1").state == "quarantined", "it has only just booted"
    fleet.clock.advance(300.0)
    fleet.hear()
    fleet.turn()
    assert fleet.node("n1").state == "validating"
    fleet.end_validation("n1", Verdict.PASS)
    fleet.turn()
    assert (fleet.node("n1").state, fleet.of("n1").state) == ("healthy", "done")


def test_no_check_by_itself_where_a_person_has_to_look(fleet_of) -> None:
    fleet = fleet_of(**AUTOMATIC)
    fleet.enrol("n1", "n2")
    fleet.find("n1", remedy=Remedy.INSPECT.value)
    for _ in range(2):
        fleet.turn()
    fleet.enrol("n1", booted_at=fleet.clock.now())
    fleet.clock.advance(400.0)
    fleet.hear()
    fleet.turn()
    assert fleet.node("n1").state == "quarantined"


def test_proposals_of_a_dry_run_stay_peoples(fleet_of) -> None:
    fleet = fleet_of()
    fleet.enrol("n1", "n2")
    fleet.find("n1")
    fleet.turn()
    fleet.services.settings.remediation.mode = "automatic"
    fleet.find("n2")
    fleet.turn()
    assert fleet.states() == {"n1": "proposed", "n2": "accepted"}


def test_a_drain_that_never_empties_ends_in_quarantine(fleet_of) -> None:
    fleet = fleet_of(drain_seconds=60.0, **AUTOMATIC)
    fleet.enrol("n1", "n2")
    fleet.run_job("n1", "n2", dp=2)
    fleet.find("n1")
    fleet.turn()
    fleet.turn(30.0)
    assert fleet.node("n1").state == "draining"
    fleet.turn(31.0)
    assert fleet.node("n1").state == "quarantined"
    assert "still on it: demo" in fleet.node("n1").state_reason


def test_a_person_who_undrains_has_the_last_word(fleet_of) -> None:
    fleet = fleet_of(**AUTOMATIC)
    fleet.enrol("n1", "n2")
    fleet.run_job("n1", "n2", dp=2)
    fleet.find("n1")
    fleet.turn()
    move(fleet, "n1", Trigger.UNDRAIN)
    for _ in range(3):
        fleet.turn()
    assert fleet.states() == {"n1": "superseded"}
    assert fleet.node("n1").state == "healthy"
    assert "bob put it back" in fleet.of("n1").reason


# escalation


def mend(fleet: Any, node: str) -> None:
    """Accept, drain, validate: the remedy is done."""
    decide(fleet, fleet.of(node))
    fleet.turn()
    validate(fleet, node, Verdict.PASS)
    fleet.turn()
    assert fleet.of(node).state == "done"


def test_what_comes_back_gets_the_next_rung(fleet_of) -> None:
    fleet = fleet_of(share_limit=1.0)
    fleet.enrol("n1")
    wanted = []
    for _ in range(4):
        fleet.find("n1")
        fleet.turn(3600.0)
        wanted.append(fleet.of("n1").remedy)
        mend(fleet, "n1")
    assert wanted == ["reset_gpu", "reboot_node", "inspect", "replace"]
    tried = [entry["remedy"] for entry in fleet.of("n1").tried]
    assert tried[-1] == "inspect"
    assert "Tried before" in fleet.of("n1").reason
    fleet.clock.advance(8 * 86_400.0)
    fleet.hear()
    fleet.find("n1")
    fleet.turn()
    assert fleet.of("n1").remedy == "reset_gpu", "after a quiet week it begins anew"


def test_it_follows_the_hardware_and_not_the_slot(fleet_of) -> None:
    fleet = fleet_of(share_limit=1.0)
    fleet.enrol("n1", serial="BAD")
    fleet.find("n1")
    fleet.turn()
    mend(fleet, "n1")
    fleet.enrol("n1", serial="GOOD")
    fleet.enrol("n2", serial="BAD")
    fleet.find("n1")
    fleet.find("n2")
    fleet.turn()
    assert (fleet.of("n1").remedy, fleet.of("n2").remedy) == ("reset_gpu", "reboot_node")


def test_a_failed_validation_climbs_too_and_an_unknown_one_does_not(fleet_of) -> None:
    fleet = fleet_of()
    fleet.enrol("n1")
    fleet.find("n1")
    fleet.turn()
    decide(fleet, fleet.of("n1"))
    fleet.turn()
    validate(fleet, "n1", Verdict.UNKNOWN)
    fleet.turn()
    assert (fleet.of("n1").remedy, fleet.node("n1").state) == ("reset_gpu", "quarantined")
    validate(fleet, "n1", Verdict.FAIL)
    fleet.turn()
    row = fleet.of("n1")
    assert (row.state, row.remedy, row.tried[0]["remedy"]) == ("accepted", "reboot_node", "reset_gpu")
    assert fleet.node("n1").state == "quarantined"
    validate(fleet, "n1", Verdict.PASS)
    fleet.turn()
    assert fleet.of("n1").state == "done"


def test_a_pass_does_not_let_in_what_still_measures_badly(fleet_of) -> None:
    fleet = fleet_of()
    fleet.enrol("n1")
    fleet.find("n1", detector="heartbeat", kind="row_remap")
    fleet.turn()
    decide(fleet, fleet.of("n1"))
    fleet.turn()
    validate(fleet, "n1", Verdict.PASS)
    assert fleet.node("n1").state == "quarantined"
    assert "still hold" in fleet.node("n1").state_reason
    fleet.clear("n1")
    validate(fleet, "n1", Verdict.PASS)
    assert fleet.node("n1").state == "healthy"


def test_what_gets_worse_in_quarantine_is_kept(fleet_of) -> None:
    fleet = fleet_of()
    fleet.enrol("n1")
    fleet.find("n1")
    fleet.turn()
    decide(fleet, fleet.of("n1"))
    fleet.find("n1", remedy=Remedy.REPLACE.value, kind="row_remap", evidence={"summary": "Out of spare rows."})
    fleet.turn()
    (row,) = fleet.all()
    assert (row.state, row.remedy) == ("accepted", "replace"), "one remediation at a time for a node"
