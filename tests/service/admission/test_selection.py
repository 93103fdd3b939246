"""So many fit nodes: by the rules of admission, together, and with the counted reasons against the others."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest
from sqlalchemy import update

from mainstay.service.admission.selection import pack
from mainstay.service.fleet.directory import FleetNode
from mainstay.service.fleet.models import NodeRow
from mainstay.service.stream.changes import Topic, record_change
from tests.service.jobs.conftest import job_report
from tests.service.problems import assert_problem

Json = dict[str, Any]


@pytest.fixture
def find(service_anywhere: Any) -> Callable[..., Json]:
    def send(count: int, **changes: Any) -> Json:
        answer = service_anywhere.client().post("/v1/admission:select", json={"count": count, **changes})
        assert answer.status_code == 200, answer.text
        told: Json = answer.json()
        return told

    return send


@pytest.fixture
def place(service_anywhere: Any) -> Callable[..., None]:
    """Put nodes into a rack and a cohort."""

    def put(names: str, rack: str, cohort: str) -> None:
        with service_anywhere.services.database.session() as session:
            for name in names.split():
                session.execute(update(NodeRow).where(NodeRow.name == name).values(rack=rack, cohort=cohort))
                record_change(session, Topic.NODE, {"id": name, "reason": "test"})

    return put


def names(told: Json) -> list[str]:
    return [node["node"] for node in told["nodes"]]


def test_nodes_of_one_cohort_and_rack_come_first_then_the_latest_validation(fleet: Any, find: Any, place: Any) -> None:
    fleet("a1", "a2", "a3", hours=5)
    fleet("b1", "b2", hours=1)
    fleet("c1", hours=2)
    place("a1 a2", "r1", "h100")
    place("a3", "r2", "h100")
    place("b1", "r3", "h200")
    place("b2", "r4", "h200")
    place("c1", "r1", "h100")
    assert names(find(1)) == ["b1"], "validated last"
    told = find(2)
    assert names(told) == ["c1", "a1"], "one rack, and there the one that was validated last first"
    assert told["reason"] == "found 2 fit nodes in 1 rack of 1 cohort"
    assert (told["decision"], told["unfit"], told["considered"]) == ("allow", [], 6)
    assert set(names(find(4))) == {"a1", "a2", "a3", "c1"}, "one cohort"
    assert sorted(names(find(5)))[:4] == ["a1", "a2", "a3", "b1"], "the larger cohort is not split"
    assert names(find(2, cohorts=["h200"])) == ["b1", "b2"]
    assert set(names(find(2, racks=["r2", "r3"], exclude=["b1", "absent"]))) == {"a3"}


def test_where_there_are_fewer_the_reasons_are_counted(
    fleet: Any, find: Any, check_admission: Any, service_anywhere: Any
) -> None:
    fleet("good")
    fleet("old", hours=500)
    fleet("bad1", "bad2", state="quarantined")
    fleet("new", verdict=None)
    fleet("busy")
    topology = {
        "dp": 1,
        "pp": 1,
        "tp": 1,
        "world_size": 1,
        "ranks": [job_report()["topology"]["ranks"][0] | {"node": "busy"}],
    }
    report = job_report(topology=topology, started_at=service_anywhere.services.clock.now())
    assert service_anywhere.client().put("/v1/jobs/other", json=report).status_code == 200
    told = find(3, job="llm")
    assert [(node["node"], node["decision"]) for node in told["nodes"]] == [
        ("good", "allow"),
        ("old", "allow_degraded"),
    ]
    assert told["decision"] == "deny"
    assert [(one["code"], one["state"], one["nodes"]) for one in told["unfit"]] == [
        ("state", "quarantined", 2), ("busy", None, 1), ("never_validated", None, 1),
    ]  # fmt: skip
    assert told["reason"] == "2 of 3 nodes are fit; others: 2 quarantined, 1 with jobs, 1 never validated"
    assert find(2)["decision"] == "allow_degraded"
    assert names(find(3, degraded=False)) == ["good"]
    assert {one["code"]: one["nodes"] for one in find(3, degraded=False)["unfit"]}["validation_old"] == 1
    assert "busy" in names(find(3, job="other")), "its own ranks do not stand in its way"
    said = check_admission(*names(told))
    assert {node["node"]: node["reasons"] for node in said["nodes"]} == {
        node["node"]: node["reasons"] for node in told["nodes"] if node["reasons"]
    }


def test_nodes_that_are_only_found_by_the_rules_still_count(fleet: Any, find: Any, service_anywhere: Any) -> None:
    fleet("n1", "n2", gpus=7)
    assert len(names(find(2))) == 2
    told = find(2, gpus_per_node=8)
    assert (told["nodes"], told["unfit"][0]["text"]) == ([], "2 with too few GPUs")
    assert service_anywhere.client().post("/v1/admission:pause", json={"reason": "work"}).status_code == 200
    assert find(1)["reason"] == "0 of 1 nodes are fit; others: 2 paused"
    assert find(1, exclude=["n1", "n2"])["reason"] == "0 of 1 nodes are fit; others: none"


@pytest.mark.parametrize(
    ("change", "named"),
    [({"racks": ["r9"]}, "r9"), ({"cohorts": ["x"]}, "x"), ({"suite": "slow"}, "slow"), ({"count": 0}, "count"),
     ({"count": "2"}, "count"), ({"nodes": ["n1"]}, "nodes"), ({"degraded": 1}, "degraded")],
)  # fmt: skip
def test_bad_input_is_refused_by_name(service: Any, change: Json, named: str) -> None:
    answer = service.client().post("/v1/admission:select", json={"count": 1, **change})
    assert answer.status_code == 422
    assert named in answer.text


def test_a_token_of_a_job_may_not_search_the_fleet(service: Any) -> None:
    made = service.client().post("/v1/auth/tokens", json={"name": "t", "kind": "job", "job": "llm"}).json()
    answer = service.client(made["token"]).post("/v1/admission:select", json={"count": 1, "job": "llm"})
    assert_problem(answer, 403, "scope-missing", "read")


def node(name: str, rack: str, cohort: str, at: float) -> FleetNode:
    empty = dict.fromkeys(FleetNode.__dataclass_fields__)
    return FleetNode(**empty | {"name": name, "rack": rack, "cohort": cohort, "validated_at": at})  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(30))
def test_no_other_choice_has_fewer_cohorts_or_racks(seed: int) -> None:
    draw = random.Random(seed)
    nodes = []
    for number in range(10):
        cohort = draw.choice("ab")
        nodes.append(node(f"n{number}", draw.choice(["", "1", "2", "3"]) and cohort + draw.choice("123"), cohort, 1.0))
    count = draw.randrange(1, 10)

    def spread(chosen: tuple[FleetNode, ...]) -> tuple[int, int]:
        racks = {one.rack or one.name for one in chosen}
        return len({one.cohort for one in chosen}), len(racks)

    best = min(spread(chosen) for chosen in combinations(nodes, count))
    found = spread(tuple(pack(nodes, count)))
    assert found[0] == best[0]
    if best[0] == 1:
        assert found == best


def test_more_nodes_are_put_beside_those_that_are_chosen() -> None:
    chosen = [node("n1", "r1", "a", 1.0)]
    others = [node("n2", "r2", "b", 9.0), node("n3", "r3", "a", 8.0), node("n4", "r1", "a", 1.0)]
    assert [one.name for one in pack(others, 1, beside=chosen)] == ["n4"]
    assert [one.name for one in pack(others, 2, beside=chosen)] == ["n4", "n3"]
    assert pack(others, 0) == []
    assert len(pack(others, 9)) == 3
