"""Moving nodes over REST, by several at once, on both databases: one wins, the loser hears where the node stands."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from sqlalchemy import select, update

from mainstay.detectors.finding import FindingKind
from mainstay.probes.core_types import HealthState, Severity
from mainstay.service.fleet.lifecycle import NodeFacts, NodeTrigger, Owner
from mainstay.service.fleet.models import NodeRow, TransitionRow
from mainstay.service.fleet.transitions import (
    THE_MACHINE,
    ConflictError,
    Measured,
    NodeStateChangedError,
    TransitionActor,
    propose,
    propose_all,
    require_transition,
)
from mainstay.service.incidents import node_suspicion
from mainstay.service.incidents.models import FindingRow
from mainstay.service.services import Services
from tests.fakes.clock import ManualClock

Json = dict[str, Any]
SLOW = {"remediation": {"interval_seconds": 60.0}}


def problem(answer: httpx.Response, status: int, slug: str) -> str:
    assert answer.status_code == status, answer.text
    assert answer.json()["type"] == f"urn:mainstay:problem:{slug}"
    return str(answer.json()["detail"])


def act(client: httpx.Client, what: str, name: str = "n1", **body: Any) -> httpx.Response:
    return client.post(f"/v1/nodes/{name}:{what}", json={"reason": "because", **body})


def test_a_person_drains_and_undrains(start, database_url, enrolled, operator) -> None:
    service = start(database_url=database_url, **SLOW)
    enrolled(service)
    alice = operator(service)
    drained = act(alice, "drain", deadline_seconds=600)
    assert drained.status_code == 200, drained.text
    read = drained.json()
    assert (read["state"], read["owner"], read["actor"]) == ("draining", "operator", "alice")
    assert (read["state_reason"], read["state_version"]) == (
        "because",
        alice.get("/v1/nodes/n1").json()["state_version"],
    )
    back = act(alice, "undrain", expected_version=read["state_version"]).json()
    assert back["state"] in {"healthy", "unknown"}
    assert back["state_since"] >= read["state_since"]
    story = alice.get("/v1/nodes/n1/transitions").json()["items"]
    assert [(m["from_state"], m["to_state"], m["actor"]) for m in story[:2]] == [
        ("draining", back["state"], "alice"), (story[1]["from_state"], "draining", "alice"),
    ]  # fmt: skip
    assert [m["time"] for m in story] == sorted((m["time"] for m in story), reverse=True)
    first = alice.get("/v1/nodes/n1/transitions", params={"limit": 1}).json()
    rest = alice.get("/v1/nodes/n1/transitions", params={"limit": 9, "cursor": first["next_cursor"]}).json()
    assert first["items"] + rest["items"] == story


def test_a_strangers_drain_is_not_undone(service_anywhere, enrolled, operator, run_loops) -> None:
    enrolled(service_anywhere)
    alice = operator(service_anywhere)
    assert act(alice, "drain", external=True).json()["owner"] == "external"
    run_loops(service_anywhere, "remediation", "fleet-voices")
    assert "another system" in problem(act(alice, "undrain"), 409, "external-drain")
    assert alice.get("/v1/nodes/n1").json()["state"] == "draining"
    taken = act(alice, "drain").json()
    assert (taken["state"], taken["owner"]) == ("draining", "operator"), "taken over, in so many words"
    assert act(alice, "undrain").status_code == 200


def test_of_two_operators_the_second_hears_where_the_node_stands(service, enrolled, operator) -> None:
    enrolled(service)
    alice, bob = operator(service), operator(service, "bob")
    version = alice.get("/v1/nodes/n1").json()["state_version"]
    act(alice, "drain", reason="fan broken")
    detail = problem(act(bob, "quarantine", expected_version=version), 409, "node-state-changed")
    assert "draining" in detail
    assert "alice: fan broken" in detail
    detail = problem(act(bob, "drain"), 409, "illegal-transition")
    assert "draining already" in detail
    assert act(bob, "quarantine").json()["actor"] == "bob"
    for what in ("drain", "undrain"):
        assert "quarantined" in problem(act(alice, what), 409, "illegal-transition")


def test_moves_want_the_scope_and_a_reason(service, enrolled, operator) -> None:
    node = enrolled(service)
    reader, alice = operator(service, "eve", "read"), operator(service)
    for what in ("drain", "undrain", "quarantine", "validate"):
        for stranger in (reader, node):
            problem(act(stranger, what), 403, "scope-missing")
        problem(act(alice, what, "absent"), 404, "unknown-node")
        problem(alice.post(f"/v1/nodes/n1:{what}", json={}), 422, "invalid")
        for bad in ({"reason": " "}, {"reason": ""}, {"reason": "x" * 2001}, {"reason": "x\x00"}, {"more": 1},
                    {"expected_version": -1}, {"expected_version": "1"}, {"expected_version": 2**31}):  # fmt: skip
            problem(act(alice, what, **bad), 422, "invalid")
    for bad in ({"deadline_seconds": 0}, {"deadline_seconds": -1}, {"deadline_seconds": "9"}, {"external": "perhaps"}):
        problem(act(alice, "drain", **bad), 422, "invalid")
    text = json.dumps({"reason": "x", "deadline_seconds": 1}).replace("1}", "NaN}")
    headers = {"content-type": "application/json"}
    problem(alice.post("/v1/nodes/n1:drain", content=text, headers=headers), 422, "invalid")
    problem(act(alice, "validate", suite="nonsense"), 422, "invalid")
    problem(alice.get("/v1/nodes/absent/transitions"), 404, "unknown-node")
    assert alice.get("/v1/nodes/n1").json()["state"] in {"healthy", "unknown"}


def test_the_same_key_moves_once(service, enrolled, operator) -> None:
    enrolled(service)
    alice = operator(service)
    headers = {"Idempotency-Key": "k"}
    answers = [alice.post("/v1/nodes/n1:drain", json={"reason": "x"}, headers=headers) for _ in range(2)]
    assert [a.status_code for a in answers] == [200, 200]
    assert answers[0].json() == answers[1].json()
    assert len([m for m in alice.get("/v1/nodes/n1/transitions").json()["items"] if m["to_state"] == "draining"]) == 1


def test_a_deadline_ends_a_drain_in_quarantine(start, enrolled, operator, run_job, run_loops) -> None:
    clock = ManualClock(1_800_000_000.0)
    service = start(clock, **SLOW)
    enrolled(service)
    run_job(service, "n1")
    alice = operator(service)
    act(alice, "drain", deadline_seconds=60)
    run_loops(service, "remediation")
    assert alice.get("/v1/nodes/n1").json()["state"] == "draining"
    clock.advance(61)
    run_loops(service, "remediation")
    read = alice.get("/v1/nodes/n1").json()
    assert (read["state"], read["owner"]) == ("quarantined", "operator")
    assert "deadline" in read["state_reason"]
    assert "demo" in read["state_reason"]


def test_a_persons_drain_waits_for_the_person(service, enrolled, operator, run_loops) -> None:
    enrolled(service)
    alice = operator(service)
    act(alice, "drain")
    run_loops(service, "remediation")
    assert alice.get("/v1/nodes/n1").json()["state"] == "draining", "no work is left, but a person decides"


def test_a_finding_and_its_end_are_moves_of_the_machine(services: Services, report) -> None:
    with services.database.session() as session:
        session.add(NodeRow(name="n1", first_seen_at=1.0, last_seen_at=999.0, state="healthy"))
    for active in (True, True, False):
        with services.database.session() as session:
            row = session.scalars(select(FindingRow)).one_or_none() or FindingRow(
                id="f", key="k", kind=FindingKind.XID.value, node="n1", time=5.0, severity=Severity.WARNING.value,
                detector="hardware_events", confidence=1.0, evidence={"summary": "XID 79"},
            )  # fmt: skip
            row.active = active
            session.add(row)
            node_suspicion.reconsider(session, ["n1", "absent"], now=1000.0, heartbeat_timeout_seconds=10.0)
    with services.database.reading() as session:
        moves = session.scalars(select(TransitionRow).order_by(TransitionRow.version)).all()
        assert [(m.from_state, m.to_state, m.owner, m.actor) for m in moves] == [
            ("healthy", "suspect", "system", "mainstay"), ("suspect", "healthy", "system", "mainstay"),
        ]  # fmt: skip
        assert moves[0].reason == "XID 79"


# races


def moved(services: Services, *proposals: Callable[[Any, NodeRow], Any]) -> list[str]:
    """All read the node before the first one writes; what became of each."""
    barrier = threading.Barrier(len(proposals))
    outcomes: dict[int, str] = {}

    def run(number: int) -> None:
        with services.database.reading() as session:
            seen = session.get(NodeRow, "n1")
            assert seen is not None
        barrier.wait(30)
        try:
            with services.database.session() as session:
                session.add(seen)
                proposals[number](session, seen)
            outcomes[number] = "won"
        except ConflictError as error:
            outcomes[number] = f"{type(error).__name__}: {error.detail}"

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(proposals))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [outcomes[n] for n in range(len(proposals))]


def proposal(owner: Owner, actor: str) -> Json:
    return {
        "mover": TransitionActor(owner, actor), "reason": f"{actor} decided", "now": 2000.0,
        "known": NodeFacts(state=HealthState.UNKNOWN),
    }  # fmt: skip


@pytest.mark.parametrize("rivals", [(Owner.OPERATOR, Owner.OPERATOR), (Owner.OPERATOR, Owner.SYSTEM)])
def test_of_those_who_move_a_node_at_once_one_wins(services: Services, rivals: tuple[Owner, Owner]) -> None:
    for round_ in range(5):
        with services.database.session() as session:
            session.merge(NodeRow(name="n1", first_seen_at=1.0, state="suspect", state_version=100 * round_))
        outcomes = moved(
            services,
            *(
                lambda session, row, owner=owner, n=n: require_transition(
                    session, row, NodeTrigger.DRAIN, **proposal(owner, f"actor{n}")
                )
                for n, owner in enumerate(rivals)
            ),
        )
        assert sorted(outcome.split(":")[0] for outcome in outcomes) == ["NodeStateChangedError", "won"]
        winner = outcomes.index("won")
        assert f"draining (actor{winner}: actor{winner} decided)" in outcomes[1 - winner]
        with services.database.reading() as session:
            row = session.get(NodeRow, "n1")
            assert row is not None
            assert (row.state, row.owner, row.actor) == ("draining", rivals[winner].value, f"actor{winner}")
            assert row.state_version == 100 * round_ + 1
            latest = select(TransitionRow).where(TransitionRow.version == row.state_version)
            assert [move.actor for move in session.scalars(latest)] == [f"actor{winner}"]


def test_a_loser_that_is_a_loop_goes_on(services: Services) -> None:
    with services.database.session() as session:
        session.add(NodeRow(name="n1", first_seen_at=1.0, state="healthy"))
    decisions: list[Any] = []

    def silent(session: Any, row: NodeRow) -> None:
        known = NodeFacts(state=HealthState.HEALTHY, silent=True)
        decisions.append(propose(session, row, NodeTrigger.TIMED_OUT, reason="silent", now=2000.0, known=known))

    def drain(session: Any, row: NodeRow) -> None:
        require_transition(session, row, NodeTrigger.DRAIN, **proposal(Owner.OPERATOR, "alice"))

    for _ in range(5):
        with services.database.session() as session:
            session.merge(NodeRow(name="n1", first_seen_at=1.0, state="healthy", owner="system"))
        outcomes = moved(services, silent, drain)
        assert outcomes[0] == "won", "a machine's lost move is no error"
        with services.database.reading() as session:
            row = session.get(NodeRow, "n1")
            assert row is not None
            assert (row.state, outcomes[1]) == ("draining", "won")
            assert decisions[-1].accepted or decisions[-1].lost


def test_a_measurement_that_comes_between_costs_a_person_nothing(services: Services) -> None:
    with services.database.session() as session:
        session.add(NodeRow(name="n1", first_seen_at=1.0, state="unknown"))

    def report_again(session: Any, row: NodeRow) -> None:
        known = NodeFacts(state=HealthState.UNKNOWN)
        propose(session, row, NodeTrigger.REPORTED, reason="it speaks", now=2000.0, known=known)

    def drain(session: Any, row: NodeRow) -> None:
        require_transition(session, row, NodeTrigger.DRAIN, **proposal(Owner.OPERATOR, "alice"))

    for _ in range(5):
        with services.database.session() as session:
            session.merge(NodeRow(name="n1", first_seen_at=1.0, state="unknown", owner="system"))
        assert moved(services, report_again, drain) == ["won", "won"]
        with services.database.reading() as session:
            row = session.get(NodeRow, "n1")
            assert row is not None
            assert (row.state, row.actor) == ("draining", "alice")


def test_a_version_is_checked_before_anything_else(services: Services) -> None:
    with services.database.session() as session:
        session.add(NodeRow(name="n1", first_seen_at=1.0, state="healthy", state_version=3))
    with services.database.session() as session:
        row = session.get(NodeRow, "n1")
        assert row is not None
        with pytest.raises(NodeStateChangedError, match="version 3 and not 2"):
            require_transition(session, row, NodeTrigger.DRAIN, expected_version=2, **proposal(Owner.OPERATOR, "alice"))


def test_a_refusal_is_an_answer(services: Services) -> None:
    with services.database.session() as session:
        session.add(NodeRow(name="n1", first_seen_at=1.0, state="quarantined", owner="operator"))
    with services.database.session() as session:
        row = session.get(NodeRow, "n1")
        assert row is not None
        known = NodeFacts(state=HealthState.QUARANTINED, power=3)
        decision = propose(session, row, NodeTrigger.VALIDATE, reason="x", now=1.0, known=known, mover=THE_MACHINE)
        assert (decision.accepted, decision.rules[-1], row.state) == (False, "owned_by_system", "quarantined")
        assert session.scalars(select(TransitionRow)).all() == []


def test_many_measured_moves_are_the_moves_of_each(services: Services) -> None:
    names = [f"n{number}" for number in range(6)]
    with services.database.session() as session:
        session.add_all(NodeRow(name=name, first_seen_at=0.0, last_seen_at=1.0) for name in [*names, "alone", "gone"])
    found = NodeFacts(state=HealthState.UNKNOWN, suspected=True)

    def read(session: Any, some: list[str]) -> list[NodeRow]:
        return list(session.scalars(select(NodeRow).where(NodeRow.name.in_(some)).order_by(NodeRow.name)))

    with services.database.session() as session:
        rows = read(session, [*names, "gone"])
        other = update(NodeRow.__table__).where(NodeRow.name == "gone").values(state_version=7)
        session.connection().execute(other)  # another process, after the row was read
        gone, *rows = rows
        moves = [Measured(row, NodeTrigger.FINDING_OPENED, "fan broken", found) for row in rows]
        moves.append(Measured(gone, NodeTrigger.REPORTED, "reporting", NodeFacts(state=HealthState.UNKNOWN)))
        propose_all(session, moves, now=5.0)
        propose(
            session, read(session, ["alone"])[0], NodeTrigger.FINDING_OPENED, reason="fan broken", now=5.0, known=found
        )
    with services.database.session() as session:
        *rows, alone, gone = [*read(session, names), *read(session, ["alone", "gone"])]
        told = ("state", "state_reason", "state_version", "state_since", "owner", "actor")
        assert {tuple(getattr(row, name) for name in told) for row in rows} == {
            tuple(getattr(alone, name) for name in told)
        }
        assert (gone.state, gone.state_version) == ("unknown", 7), "moved by another process meanwhile"
        history = session.scalars(select(TransitionRow).order_by(TransitionRow.node)).all()
        assert [row.node for row in history] == ["alone", *names]
        same = ("version", "time", "trigger", "from_state", "to_state", "owner", "actor", "reason", "incident")
        assert len({tuple(getattr(row, name) for name in same) for row in history}) == 1
        # The reason alone is no move, and the same again is nothing.
        propose_all(session, [Measured(row, NodeTrigger.FINDING_OPENED, "fan dead", found) for row in rows], now=6.0)
        assert {(row.state_reason, row.state_version) for row in rows} == {("fan dead", 1)}
        refused = [Measured(row, NodeTrigger.REPORTED, "reporting", found) for row in rows]
        propose_all(session, refused, now=7.0)
    with services.database.reading() as session:
        assert {(row.state, row.state_reason) for row in read(session, names)} == {("suspect", "fan dead")}
        assert len(session.scalars(select(TransitionRow)).all()) == 7


def test_what_was_found_counts_although_another_process_moved_the_node(services: Services) -> None:
    with services.database.session() as session:
        session.add(NodeRow(name="n1", first_seen_at=0.0, last_seen_at=1.0, state="unknown", state_version=1))
    with services.database.session() as session:
        row = session.scalars(select(NodeRow)).one()
        heard = update(NodeRow.__table__).values(state="healthy", state_version=2)
        session.connection().execute(heard)  # after the row was read; an event is evaluated once
        known = NodeFacts(state=HealthState.UNKNOWN, suspected=True)
        propose_all(session, [Measured(row, NodeTrigger.FINDING_OPENED, "XID 79", known)], now=5.0)
    with services.database.reading() as session:
        row = session.scalars(select(NodeRow)).one()
        assert (row.state, row.state_version, row.state_reason) == ("suspect", 3, "XID 79")
        moved = session.scalars(select(TransitionRow)).one()
        assert (moved.from_state, moved.to_state, moved.version) == ("healthy", "suspect", 3)
