"""Validation plans: a past in the tables becomes a plan with its reasons; no past, the whole suite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from mainstay.detectors.finding import FindingKind
from mainstay.probes.core_types import Verdict
from mainstay.probes.ids import uuid7
from mainstay.service.app import build_services, close_services
from mainstay.service.check_selection import node_history
from mainstay.service.check_selection import service as check_selection_service
from mainstay.service.check_selection.schemas import ValidationPlanCreate
from mainstay.service.fleet.models import NodeRow, TransitionRow
from mainstay.service.incidents.models import FindingRow, IncidentRow
from mainstay.service.services import Services
from mainstay.service.settings import Settings
from mainstay.service.validation.models import ResultRow, ValidationRow
from mainstay.service.validation.suites import suites
from tests.fakes.clock import ManualClock

Json = dict[str, Any]
NOW = 1_760_000_000.0
HOUR = 3600.0
CHECKS = [b.name for b in suites()["standard"].benchmarks if not b.optional]


@pytest.fixture
def services(make_settings: Callable[..., Settings]) -> Iterator[Services]:
    made = build_services(make_settings(), ManualClock(NOW))
    yield made
    close_services(made)


def node(name: str, since: float = NOW - 100 * 24 * HOUR) -> NodeRow:
    return NodeRow(name=name, cohort="h100", first_seen_at=since, switches=[])


def check(name: str, at: float, *failed: str, took: float = 60.0) -> list[Any]:
    """A finished validation of the standard suite."""
    verdict = Verdict.FAIL if failed else Verdict.PASS
    row = ValidationRow(
        id=uuid7(), node=name, suite="standard", state="done", verdict=verdict, reason="", created_at=at - took,
        deadline_at=at + 1, started_at=at - took, finished_at=at, sweep_id=None, run_id=None, taken_at=None,
    )  # fmt: skip
    results = [
        ResultRow(
            id=uuid7(), validation_id=row.id, position=i, cohort="h100", benchmark=benchmark, metric="m", unit="s",
            better="lower", values=[1.0], value=1.0, digest=None, device="cuda:0", criterion=None, reason="",
            verdict=Verdict.FAIL if benchmark in failed else Verdict.PASS,
        )
        for i, benchmark in enumerate(CHECKS)
    ]  # fmt: skip
    return [row, *results]


def trouble(name: str, at: float, kind: FindingKind, over_at: float | None) -> list[Any]:
    """A closed incident with one finding about the node's machinery (open, if it is not over)."""
    incident = IncidentRow(
        id=uuid7(), title="t", summary="", state="open" if over_at is None else "closed", version=1,
        severity="critical", needs_operator=False, opened_at=at, recovered_at=over_at, closed_at=over_at,
        updated_at=at, node=name, ranks=[], kinds=[kind.value],
    )  # fmt: skip
    finding = FindingRow(
        id=uuid7(), key=uuid7(), kind=kind.value, node=name, time=at, severity="critical", detector="d",
        confidence=1.0, evidence={"summary": "s"}, active=over_at is None, incident_id=incident.id,
    )  # fmt: skip
    return [incident, finding]


def store(services: Services, *rows: Any) -> None:
    with services.database.session() as session:
        for row in rows:  # in order: what is pointed at comes first
            session.add(row)
            session.flush()


def fleet(services: Services, *, seed: int = 1) -> None:
    """Twenty-four nodes over a hundred days; every fourth fails ten times as often, mostly by its memory."""
    rng = np.random.default_rng(seed)
    rows: list[Any] = []
    for i in range(24):
        rows.append(node(f"n{i:02d}"))
        at = NOW - 100 * 24 * HOUR
        while (at := at + rng.exponential(6 if i % 4 == 0 else 60) * 24 * HOUR) < NOW - 24 * HOUR:
            bad = ("memory", "train") if rng.random() < 0.7 else ("gemm", "burn")
            rows += check(f"n{i:02d}", at, *bad)
    with services.database.session() as session:
        validations = [row for row in rows if not isinstance(row, ResultRow)]
        session.add_all(validations)
        session.flush()
        session.add_all([row for row in rows if isinstance(row, ResultRow)])


def decide(services: Services, *nodes: str, **changes: Any) -> Any:
    body = ValidationPlanCreate(nodes=list(nodes), **{"job_hours": 48, "target_risk": 0.1, **changes})
    with services.database.reading() as session:
        return services.selector.decide(session, body, services.clock.now())


def test_without_a_past_the_whole_suite_runs(services: Services) -> None:
    store(services, node("n1"))
    decision = decide(services, "n1")
    assert not decision.record.learned
    assert list(decision.record.benchmarks) == CHECKS
    assert decision.nodes == ("n1",)
    assert "too little history" in decision.record.reason


def test_a_node_that_fails_often_is_checked_by_what_found_its_defects(services: Services) -> None:
    fleet(services)
    decision = decide(services, "n00", "n01", "n02", "n03")
    record = decision.record
    assert record.learned
    assert decision.nodes[0] == "n00"
    assert "n03" not in decision.nodes
    assert "memory" in record.benchmarks
    assert "disk" not in record.benchmarks
    assert record.risk_after <= 0.1 < record.risk_before
    assert record.seconds < record.full_seconds
    assert {c.benchmark for c in record.considered} == set(CHECKS)


def test_a_lenient_target_needs_no_check(services: Services) -> None:
    fleet(services)
    assert decide(services, "n01", target_risk=1.0).record.benchmarks == ()
    assert decide(services, "n01", target_risk=0.0, worth_node_hours=1e-4).record.benchmarks == ()


def test_a_node_without_a_past_gets_the_whole_suite_in_a_fleet_with_one(services: Services) -> None:
    fleet(services)
    store(services, node("new", since=NOW))
    decision = decide(services, "n01", "new")
    assert not decision.record.learned
    assert "new" in decision.record.reason


def test_what_was_learned_is_kept_for_an_hour_but_the_nodes_are_looked_at_each_time(services: Services) -> None:
    fleet(services)
    before = {n.node: n.p for n in decide(services, "n01", "n02").record.nodes}
    store(services, *check("n01", NOW - 2 * HOUR, "memory"), *check("n01", NOW - HOUR, "memory"))
    after = {n.node: n.p for n in decide(services, "n01", "n02").record.nodes}
    assert after["n01"] > before["n01"]
    assert after["n02"] == before["n02"]


def test_costs_follow_what_validations_really_took(services: Services) -> None:
    fleet(services)
    stated = sum(b.expected_seconds for b in suites()["standard"].benchmarks if not b.optional)
    assert decide(services, "n01").record.full_seconds == pytest.approx(60.0)
    store(services, node("n99"))
    for i in range(200):
        store(services, *check("n99", NOW - i * 60, took=3 * stated))
    services.selector._known.clear()
    assert decide(services, "n01").record.full_seconds == pytest.approx(3 * stated)


def test_an_incident_lasts_until_the_node_serves_again(services: Services) -> None:
    store(services, node("n1"), *trouble("n1", NOW - 50 * HOUR, FindingKind.XID, NOW - 49 * HOUR))
    for version, (hours, state) in enumerate(((49.5, "draining"), (30, "healthy"))):
        store(
            services,
            TransitionRow(
                id=uuid7(), node="n1", version=version, time=NOW - hours * HOUR, trigger="t", from_state="healthy",
                to_state=state, owner="system", actor="a", reason="r",
            ),
        )  # fmt: skip
    with services.database.reading() as session:
        history = node_history.history(node_history.read(session, NOW, shared_fault_nodes=3)[0], NOW)
    assert [(i.at, i.back_at) for i in history.incidents] == [(NOW - 50 * HOUR, NOW - 30 * HOUR)]
    assert history.survived(NOW) == pytest.approx(30.0)


def test_an_incident_that_is_not_over_leaves_the_node_down(services: Services) -> None:
    store(services, node("n1"), *trouble("n1", NOW - 5 * HOUR, FindingKind.GPU_LOST, None))
    with services.database.reading() as session:
        history = node_history.history(node_history.read(session, NOW, shared_fault_nodes=3)[0], NOW)
    assert history.incidents[0].back_at is None
    assert history.survived(NOW) == 0.0


def test_what_strikes_after_a_passed_check_counts_as_missed_by_it(services: Services) -> None:
    store(services, node("n1"), node("n2"))
    store(services, *check("n1", NOW - 30 * HOUR), *trouble("n1", NOW - 20 * HOUR, FindingKind.ROW_REMAP, NOW))
    store(services, *trouble("n2", NOW - 20 * HOUR, FindingKind.ROW_REMAP, NOW))  # never checked: says nothing
    with services.database.reading() as session:
        pasts = {p.row.name: p for p in node_history.read(session, NOW, shared_fault_nodes=3)}
    found = node_history.defects(pasts["n1"], {}, NOW)
    assert [(d.defect, d.found, set(d.ran or ())) for d in found] == [("gpu_memory", (), set(CHECKS))]
    assert node_history.defects(pasts["n2"], {}, NOW) == []


def test_each_node_has_its_own_set_unless_all_must_have_one(services: Services) -> None:
    fleet(services)
    names = [f"n{i:02d}" for i in range(8)]
    decision = decide(services, *names, target_risk=0.3)
    assert decision.record.per_node
    assert decision.nodes == tuple(decision.sets)
    assert len(set(decision.sets.values())) > 1
    spent = {one.node: one.seconds for one in decision.record.nodes}
    assert decision.record.node_seconds == pytest.approx(sum(spent.values()))
    risky = next(one for one in decision.record.nodes if one.node == "n00")
    assert set(risky.reasons) == set(CHECKS)
    uniform = decide(services, *names, target_risk=0.3, uniform=True)
    assert not uniform.record.per_node
    assert set(uniform.sets.values()) == {uniform.record.benchmarks}
    assert decision.record.node_seconds <= uniform.record.node_seconds


def test_what_a_node_just_passed_is_left_out(services: Services) -> None:
    fleet(services)
    before = decide(services, "n00", target_risk=0.2)
    assert "memory" in before.sets["n00"]
    for i in range(24):  # a fleet with daily checks, so that hours count
        for day in range(1, 6):
            store(services, *check(f"n{i:02d}", NOW - day * 24 * HOUR))
    store(services, *check("n00", NOW - 60.0))
    services.selector._known.clear()
    assert "memory" not in decide(services, "n00", target_risk=0.2).sets.get("n00", ())


def test_a_plan_orders_each_nodes_set_when_asked(admin: httpx.Client, service: Any, report: Json) -> None:
    clients = {name: service.node_client(name) for name in ("n1", "n2")}
    for name, client in clients.items():
        assert client.put(f"/v1/nodes/{name}", json=report).status_code == 200
    body = {"nodes": ["n1", "n2"], "job_hours": 24, "trigger": "job", "order": True, "remeasure": 1}
    plan = admin.post("/v1/validation-plans", json=body).json()
    assert plan["sets"] == {"n1": CHECKS, "n2": CHECKS}
    assert set(plan["validations"]) == {"n1", "n2"}
    for name, ordered in plan["validations"].items():
        told = admin.get(f"/v1/validations/{ordered}").json()
        assert (told["node"], told["suite"], told["state"]) == (name, "standard", "queued")
        (order,) = clients[name].get(f"/v1/nodes/{name}/tasks").json()["items"]
        assert (order["validation_id"], order["benchmarks"], order["remeasure"]) == (ordered, sorted(CHECKS), 1)
    assert admin.get(f"/v1/validation-plans/{plan['id']}").json() == plan


def test_a_plan_is_answered_and_can_be_read_again(admin: httpx.Client, service: Any, report: Json) -> None:
    assert service.node_client("n1").put("/v1/nodes/n1", json=report).status_code == 200
    body = {"nodes": ["n1"], "job_hours": 24, "trigger": "job"}
    made = admin.post("/v1/validation-plans", json=body, headers={"Idempotency-Key": "k"})
    assert made.status_code == 201, made.text
    plan = made.json()
    assert (plan["learned"], plan["benchmarks"], plan["run_on"]) == (False, CHECKS, ["n1"])
    assert len(plan["considered"]) == len(CHECKS)
    assert admin.get(f"/v1/validation-plans/{plan['id']}").json() == plan
    again = admin.post("/v1/validation-plans", json=body, headers={"Idempotency-Key": "k"})
    assert again.json() == plan


@pytest.mark.parametrize(
    ("change", "status", "slug"),
    [
        ({"nodes": []}, 422, "invalid"),
        ({"nodes": ["absent"]}, 404, "unknown-node"),
        ({"nodes": ["n1", "n1"]}, 422, "invalid"),
        ({"job_hours": 0}, 422, "invalid"),
        ({"target_risk": 1.5}, 422, "invalid"),
        ({"worth_node_hours": 0}, 422, "invalid"),
        ({"suite": "slow"}, 422, "unknown-suite"),
        ({"trigger": "whim"}, 422, "invalid"),
    ],
)
def test_a_bad_request_is_refused(admin: httpx.Client, change: Json, status: int, slug: str) -> None:
    answer = admin.post("/v1/validation-plans", json={"nodes": ["n1"], "job_hours": 1, **change})
    assert (answer.status_code, answer.json()["type"]) == (status, f"urn:mainstay:problem:{slug}")


def test_an_unknown_plan_is_not_found(admin: httpx.Client) -> None:
    assert admin.get("/v1/validation-plans/nothing").json()["type"] == "urn:mainstay:problem:unknown-validation-plan"


def test_the_learned_cost_of_nothing_is_the_stated_one(services: Services) -> None:
    with services.database.reading() as session:
        assert check_selection_service._factor(session, suites()["standard"]) == 1.0
