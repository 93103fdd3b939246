"""What-if over REST: the simulator's own answer, bounded work, refusals that name the field."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from mainstay.recovery.simulate.report import simulate
from mainstay.recovery.simulate.scenario import POLICIES, Scenario
from mainstay.service.simulation import service as planning

Json = dict[str, Any]
SMALL: Json = {
    "nodes": 24, "gpus_per_node": 8, "dp": 6, "pp": 4, "tp": 8, "mtbf_hours": 240.0, "repair_hours": 6.0, "spares": 1,
    "days": 10.0, "seeds": 3,
}  # fmt: skip


@pytest.fixture
def client(lasting_service: Any) -> httpx.Client:
    made: httpx.Client = lasting_service.client()
    return made


def post_simulation(client: httpx.Client, **changes: Any) -> httpx.Response:
    return client.post("/v1/simulations", json={**SMALL, **changes})


def test_the_answer_is_the_simulators(client: httpx.Client) -> None:
    told = post_simulation(client, sweep={"over": "spares", "values": [0, 2]}).raise_for_status().json()
    report = simulate(Scenario(**SMALL))
    assert (told["gpus"], told["days"], told["failures"]) == (192, 10.0, report.failures)
    for row, found in zip(told["policies"], report.policies, strict=True):
        assert row["policy"]["name"] == found.policy.name
        assert found.ettr is not None
        assert row["ettr"]["mean"] == found.ettr.mean
        assert row["lost_gpu_hours"] == found.lost_gpu_hours
        assert row["curve"] == list(found.curve)
    assert [point["value"] for point in told["sweep"]] == [0.0, 2.0]
    assert told["sweep_over"] == "spares"
    assert set(told["sweep"][0]["ettr"]) == {row["policy"]["name"] for row in told["policies"]}


def test_an_empty_question_is_about_the_usual_job(client: httpx.Client) -> None:
    told = client.post("/v1/simulations", json={}).raise_for_status().json()
    assert told["gpus"] == 16_384
    assert told["sweep_over"] is None
    assert [row["ettr"]["mean"] for row in told["policies"]] == [
        row.ettr.mean for row in simulate(Scenario()).policies if row.ettr is not None
    ]


def test_policies_are_chosen_and_changed_by_name(client: httpx.Client) -> None:
    chosen = [{"name": "own", "save_s": 0.0, "restart_s": 7.0, "every_s": 60.0}, {"name": "reroute"}]
    own, reroute = post_simulation(client, policies=chosen).raise_for_status().json()["policies"]
    assert (own["policy"]["restart_s"], own["interval_s"], own["policy"]["description"]) == (7.0, 60.0, "yours")
    usual = POLICIES[next(name for name in POLICIES if name == "reroute")]
    assert reroute["policy"]["restart_s"] == usual.restart_s
    assert reroute["policy"]["without_spare"] == "reroute"


def test_what_cannot_be_followed_says_why(client: httpx.Client) -> None:
    told = post_simulation(client, dp=1, pp=24, policies=[{"name": "standby_swap"}]).raise_for_status().json()
    (row,) = told["policies"]
    assert "no live peer" in row["impossible"]
    assert (row["ettr"], row["lost_gpu_hours"], row["curve"]) == (None, None, [])


def test_the_policies_are_listed(client: httpx.Client) -> None:
    told = client.get("/v1/simulation-policies").raise_for_status().json()["items"]
    assert [one["name"] for one in told] == [name.value for name in POLICIES]
    assert told[0]["restart_s"] == 600.0


@pytest.mark.parametrize(
    ("changes", "where", "said"),
    [
        ({"nodes": 0}, ["body", "nodes"], "greater than or equal to 1"),
        ({"nodes": True}, ["body", "nodes"], "a number is wanted"),
        ({"days": 1e9}, ["body", "days"], "less than or equal to 3650"),
        ({"dp": 5}, ["body", "dp"], "5 x 4 x 8 is 160 ranks, but the nodes have 192 GPUs"),
        ({"policies": [{"name": "pray"}]}, ["body", "policies", 0, "name"], "disk_restart"),
        ({"policies": [{"name": "own"}, {"name": "own"}]}, ["body", "policies"], "each once"),
        ({"sweep": {"over": "spares", "values": [0.5]}}, ["body", "sweep", "values"], "whole numbers of spares"),
        ({"sweep": {"over": "mtbf_hours", "values": [0]}}, ["body", "sweep", "values"], "from 0.01"),
        ({"sweep": {"over": "luck"}}, ["body", "sweep", "over"], "mtbf_hours"),
        ({"mtbf_hours": 0.01, "seeds": 100}, ["body", "seeds"], "at most 500,000 can be"),
        ({"friday": 13}, ["body", "friday"], "Extra inputs"),
    ],
)
def test_a_refusal_names_the_field(client: httpx.Client, changes: Json, where: list[Any], said: str) -> None:
    answer = post_simulation(client, **changes)
    assert answer.status_code == 422
    (fault,) = answer.json()["errors"]
    assert fault["loc"] == where
    assert said in fault["msg"]


def test_too_much_work_is_refused_before_any_is_done(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(_: Scenario) -> None:
        raise AssertionError("was simulated")

    monkeypatch.setattr(planning, "simulate", never)
    huge = {"nodes": 100_000, "gpus_per_node": 1, "dp": 100_000, "pp": 1, "tp": 1, "days": 3650.0, "seeds": 10_000}
    answer = post_simulation(client, **huge, mtbf_hours=0.01)
    assert answer.status_code == 422
    assert answer.json()["type"] == "urn:mainstay:problem:invalid-scenario"


def test_only_a_few_are_simulated_at_once(client: httpx.Client) -> None:
    for _ in range(planning.AT_ONCE):
        assert planning._room.acquire(timeout=30.0)
    try:
        answer = post_simulation(client)
    finally:
        for _ in range(planning.AT_ONCE):
            planning._room.release()
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert answer.json()["type"] == "urn:mainstay:problem:simulation-in-progress"
    assert post_simulation(client).status_code == 200


def test_whoever_may_read_may_ask_and_nobody_else(lasting_service: Any) -> None:
    made = lasting_service.client().post("/v1/auth/tokens", json={"name": "viewer", "kind": "user", "scopes": ["read"]})
    viewer = lasting_service.client(made.raise_for_status().json()["token"])
    assert post_simulation(viewer).status_code == 200
    assert post_simulation(lasting_service.client("")).status_code == 401
