"""The gate over REST: what schedulers see."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from mainstay.service.admission.node_facts import FactsQuery
from mainstay.service.admission.rules import AdmissionRequest, Reason, reasons
from mainstay.service.app import build_services, close_services
from mainstay.service.fleet.models import NodeRow
from mainstay.service.services import Services
from mainstay.service.settings import Settings
from mainstay.service.validation.models import NodeVerdictRow
from tests.fakes.clock import ManualClock
from tests.service.admission.conftest import codes
from tests.service.problems import assert_problem

Json = dict[str, Any]


def test_good_nodes_are_allowed(fleet: Any, check_admission: Any) -> None:
    fleet("n1", "n2")
    told = check_admission("n1", "n2", gpus_per_node=8)
    assert (told["decision"], told["allowed"], told["nodes"], told["spares"]) == ("allow", 2, [], [])
    assert told["reason"] == "all 2 nodes are healthy and validated"


def test_one_bad_node_denies_the_job_and_spares_are_named(fleet: Any, check_admission: Any) -> None:
    fleet("n1", "n3", "n4")
    fleet("n2", verdict="fail")
    fleet("n5", verdict="warn")
    fleet("n6", state="draining")
    told = check_admission("n1", "n2", "absent")
    assert (told["decision"], told["allowed"]) == ("deny", 1)
    assert {one["node"]: one["decision"] for one in told["nodes"]} == {"n2": "deny", "absent": "deny"}
    assert codes(told, "absent") == ["unknown_node"]
    assert told["spares"] == ["n3", "n4"], "as many as are denied, and only those that are simply allowed"
    assert check_admission("n1", spares=1)["spares"] == ["n3"]


def test_a_move_is_known_to_the_next_question(fleet: Any, check_admission: Any, service_anywhere: Any) -> None:
    service_anywhere.hold_still()  # no loop tells the gate
    fleet("n1", "n2")
    client = service_anywhere.client()
    assert check_admission("n1")["decision"] == "allow"
    for verb, state in (("drain", "draining"), ("undrain", "healthy"), ("quarantine", "quarantined")):
        assert client.post(f"/v1/nodes/n1:{verb}", json={"reason": "test"}).json()["state"] == state
        told = check_admission("n1")
        assert [node["state"] for node in told["nodes"]] == ([] if state == "healthy" else [state])
        assert check_admission("n2", spares=1)["spares"] == (["n1"] if state == "healthy" else [])


def test_what_is_old_or_weak_is_degraded(fleet: Any, check_admission: Any) -> None:
    fleet("n1", hours=200)
    told = check_admission("n1")
    assert told["decision"] == "allow_degraded"
    assert codes(told, "n1") == ["validation_old"]
    assert check_admission("n1", max_age_hours=300)["decision"] == "allow"
    assert codes(check_admission("n1", max_age_hours=300, suite="deep"), "n1") == ["validation_weak"]


def test_a_node_that_was_never_validated_is_no_healthy_node(
    fleet: Any, check_admission: Any, service_anywhere: Any
) -> None:
    fleet("n1", verdict=None)
    told = check_admission("n1", preflight=True)
    assert (told["decision"], codes(told, "n1")) == ("deny", ["never_validated"])
    (ordered,) = told["preflight"]
    made = service_anywhere.client().get(f"/v1/validations/{ordered}").json()
    assert (made["node"], made["suite"], made["state"]) == ("n1", "quick", "queued")
    again = check_admission("n1", preflight=True)
    assert codes(again, "n1") == ["never_validated", "being_validated"]
    assert again["preflight"] == [], "one is on its way"


def test_validations_give_way_to_a_job(fleet: Any, check_admission: Any, service_anywhere: Any) -> None:
    fleet("n1")
    client = service_anywhere.client()
    made = client.post("/v1/validations", json={"node": "n1", "suite": "deep"}).json()
    told = check_admission("n1", preempt=True)
    assert codes(told, "n1") == ["being_validated"]
    assert told["preempted"] == [made["id"]]
    read = client.get(f"/v1/validations/{made['id']}").json()
    assert (read["state"], read["verdict"]) == ("done", "unknown")
    assert "job llm wants the node" in read["reason"]


def test_a_node_with_too_few_gpus_is_denied(fleet: Any, check_admission: Any) -> None:
    fleet("n1", gpus=7)
    assert check_admission("n1")["decision"] == "allow", "the request does not check the number"
    assert codes(check_admission("n1", gpus_per_node=8), "n1") == ["too_few_gpus"]


def test_a_busy_node_is_no_spare(fleet: Any, check_admission: Any, service_anywhere: Any) -> None:
    fleet("n1", "n2", "n3")
    client = service_anywhere.client()
    ranks = [{"rank": 0, "dp": 0, "pp": 0, "tp": 0, "node": "n2", "device": None, "pid": None, "state": "running"}]
    job = {
        "name": "x", "state": "running", "generation": 1, "command": "t",
        "topology": {"dp": 1, "pp": 1, "tp": 1, "world_size": 1, "ranks": ranks},
        "protection": {"slots": 2, "parity_every": None, "parity_group": None, "disk_every": None, "state_bytes": []},
        "steps_total": 9, "last_step": 1, "started_at": service_anywhere.services.clock.now(), "finished_at": None,
    }  # fmt: skip
    assert client.put("/v1/jobs/other", json=job).status_code == 200
    told = check_admission("n1", "n2", spares=5)
    assert codes(told, "n2") == ["busy"]
    assert told["spares"] == ["n3"]
    assert check_admission("n2", job="other")["decision"] == "allow", "its own ranks block no one"
    moved = job | {"generation": 2, "topology": job["topology"] | {"ranks": [ranks[0] | {"node": "n3"}]}}
    assert client.put("/v1/jobs/other", json=moved).status_code == 200
    assert check_admission("n2")["decision"] == "allow", "it has moved away"


@pytest.mark.parametrize(
    "change",
    [{"nodes": []}, {"nodes": ["a b"]}, {"job": ""}, {"gpus_per_node": 0}, {"max_age_hours": -1}, {"surprise": 1},
     {"suite": "slow"}],
)  # fmt: skip
def test_bad_input_is_refused(service: Any, change: Json) -> None:
    answer = service.client().post("/v1/admission", json={"job": "llm", "nodes": ["n1"], **change})
    assert answer.status_code == 422, answer.text


def test_a_reader_may_not_ask(service: Any) -> None:
    assert service.client("").post("/v1/admission", json={"job": "llm", "nodes": ["n1"]}).status_code == 401


@pytest.fixture
def still(make_settings: Callable[..., Settings], database_url: str) -> Iterator[Services]:
    """Services whose loops do not run: nothing moves between two looks."""
    made = build_services(make_settings(database_url=database_url), ManualClock(1_800_000_000.0))
    yield made
    close_services(made)


def test_what_the_quick_check_leaves_out_is_what_no_rule_speaks_of(still: Services) -> None:
    """A fleet of every kind of node: the quick way answers as the rules do, asked of every node."""
    services = still
    now = services.clock.now()
    draw = random.Random(3)
    with services.database.session() as session:
        for i in range(300):
            seen = draw.choice([None, now, now, now, now - 1, now - 3600])
            stopped = draw.choice([None] * 5 + [now])
            state = draw.choice(["healthy"] * 9 + ["suspect", "draining", "unknown"])
            fields = {"first_seen_at": now, "last_seen_at": seen, "stopped_at": stopped, "cohort": "c"}
            fields["gpus"] = draw.choice([7, 8, 8, 8, 9])
            session.add(NodeRow(name=f"n{i}", state=state, **fields))
            session.flush()
            if draw.random() < 0.9:
                verdict = draw.choice(["pass"] * 9 + ["warn", "fail", "unknown"])
                at = now - draw.choice([0, 0, 3599, 3601])
                power = draw.randint(1, 3)
                session.add(
                    NodeVerdictRow(node=f"n{i}", verdict=verdict, power=power, suite="s", validation_id="v", at=at)
                )
    names = [f"n{i}" for i in range(300)]
    request = AdmissionRequest(
        now=now, heartbeat_timeout_seconds=30.0, suite="standard", max_age_seconds=3600.0, gpus=8
    )
    with services.database.reading() as session:
        quick = FactsQuery(session, services, names, request, "j")
        found = {name: reasons(known, request) for name, known in quick.notable().items()}
        each: dict[str, tuple[Reason, ...]] = {}
        for name in names:
            survey = FactsQuery(session, services, [name], request, "j")
            survey._special = {name}  # nothing is left out
            each |= {one: reasons(known, request) for one, known in survey.notable().items()}
        assert {name: why for name, why in found.items() if why} == {name: why for name, why in each.items() if why}
        assert 20 < sum(not why for why in each.values()) < 200, "of both kinds"
        good = sorted(name for name, why in each.items() if not why)
        survey = FactsQuery(session, services, good[:3], request, "j")
        assert survey.spares(["c"], 5) == good[3:8]
        assert survey.spares(["c"], 500) == good[3:]
        assert survey.spares(["another"], 5) == []


def test_a_job_asks_about_its_own_nodes_and_changes_nothing(fleet: Any, service_anywhere: Any) -> None:
    fleet("n1", state="draining")
    admin = service_anywhere.client()

    def client(**token: Any) -> httpx.Client:
        made = admin.post("/v1/auth/tokens", json={"name": "token", **token}).json()
        found: httpx.Client = service_anywhere.client(made["token"])
        return found

    body = {"job": "llm", "nodes": ["n1"]}
    for asking in (client(kind="job", job="llm"), client(kind="job", any_job=True), client(scopes=["read"])):
        assert asking.post("/v1/admission", json=body).json()["decision"] == "deny"
        for act in ("preempt", "preflight"):
            assert_problem(asking.post("/v1/admission", json=body | {act: True}), 403, "scope-missing", "act")
    other = client(kind="job", job="other")
    assert_problem(other.post("/v1/admission", json=body), 403, "wrong-job", "llm")
