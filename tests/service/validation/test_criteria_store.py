"""Criteria over REST: a run of any age beside its criterion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from mainstay.service.criteria import store as criteria_store

Json = dict[str, Any]


@pytest.fixture
def measure(service: Any, admin: httpx.Client, enroll: Callable[..., Any]) -> Callable[[float], Json]:
    """Validate one node at a scale; the validation as it is read."""
    node = enroll(service, "n1")

    def run(scale: float) -> Json:
        node.scale = scale
        made = admin.post("/v1/validations", json={"node": "n1", "suite": "quick"}).json()
        (order,) = node.orders()
        assert node.obey(order).status_code == 200
        read: Json = admin.get(f"/v1/validations/{made['id']}").json()
        return read

    return run


def test_a_run_of_any_age_is_drawn_against_its_criterion(
    admin: httpx.Client, measure: Callable[[float], Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(criteria_store, "SHOWN_RUNS", 2)
    runs = [measure(1.0 + 0.005 * count)["id"] for count in range(6)]
    learned = admin.post("/v1/criteria:learn", json={"cohort": "cpu"}).json()["items"][0]
    key = {name: learned[name] for name in ("cohort", "benchmark", "metric")}

    def shown(**more: str) -> list[str]:
        answer = admin.get("/v1/criteria/detail", params=key | more)
        assert answer.status_code == 200, answer.text
        return [run["validation_id"] for run in answer.json()["runs"]]

    newest = [runs[5], runs[4]]
    assert shown() == newest
    assert shown(validation=runs[5]) == newest, "nothing is drawn twice"
    assert shown(validation=runs[0]) == [*newest, runs[0]]
    answer = admin.get("/v1/criteria/detail", params=key | {"validation": "absent"})
    assert (answer.status_code, answer.json()["type"]) == (404, "urn:mainstay:problem:not-measured")
    assert "'absent'" in answer.json()["detail"]


def test_a_criterion_knows_its_sessions(admin: httpx.Client, measure: Callable[[float], Json]) -> None:
    for count in range(6):
        measure(1.0 + 0.005 * count)
    learned = admin.post("/v1/criteria:learn", json={"cohort": "cpu"}).json()["items"][0]
    assert learned["sessions"]["count"] == 1, "all within one minute"
    assert learned["sessions"]["between"] is None
    failed = [one for one in measure(0.5)["results"] if one["verdict"] == "fail"]
    assert failed
    assert all("learned from one session" in one["reason"] for one in failed)
    stated = {name: learned[name] for name in ("cohort", "benchmark", "metric", "better", "low", "high")}
    known = {"count": 5, "within": 0.01, "between": 0.03, "freedom": 4}
    assert (
        admin.put("/v1/criteria", json={"items": [stated | {"sessions": known}]}).json()["items"][0]["sessions"]
        == known
    )
    answer = admin.put("/v1/criteria", json={"items": [stated | {"sessions": known | {"between": None}}]})
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:mainstay:problem:invalid")
