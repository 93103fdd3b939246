"""An operator pauses admission to a rack or to the fleet: new work is denied, jobs that run may restart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from mainstay.service.fleet.models import NodeRow
from mainstay.service.stream.changes import Topic, record_change
from tests.service.admission.conftest import codes
from tests.service.jobs.conftest import job_report
from tests.service.problems import assert_problem

Json = dict[str, Any]


@pytest.fixture
def racks(fleet: Any, service_anywhere: Any) -> None:
    """n1 and n2 stand in rack r1, n3 in r2, n4 nowhere that is known."""
    fleet("n1", "n2", "n3", "n4")
    with service_anywhere.services.database.session() as session:
        for rack, names in {"r1": ("n1", "n2"), "r2": ("n3",)}.items():
            session.execute(update(NodeRow).where(NodeRow.name.in_(names)).values(rack=rack))
        record_change(session, Topic.NODE, {"id": "n1", "reason": "test"})


@pytest.fixture
def act(service_anywhere: Any) -> Callable[..., httpx.Response]:
    client: httpx.Client = service_anywhere.client()
    return lambda verb, rack=None: client.post(f"/v1/admission:{verb}", json={"rack": rack, "reason": "power work"})


def paused(service_anywhere: Any) -> list[tuple[str | None, str]]:
    items = service_anywhere.client().get("/v1/admission/pauses").json()["items"]
    return [(item["rack"], item["reason"]) for item in items]


@pytest.mark.usefixtures("racks")
def test_a_paused_rack_takes_no_new_work_and_is_no_spare(
    check_admission: Any,
    act: Any,
    service_anywhere: Any,
) -> None:
    assert check_admission("n1", "n3")["decision"] == "allow"
    made = act("pause", "r1").json()
    assert (made["rack"], made["reason"]) == ("r1", "power work")
    told = check_admission("n1", "n3", spares=4)
    assert (told["decision"], told["allowed"], told["spares"]) == ("deny", 1, ["n4"])
    assert codes(told, "n1") == ["paused"]
    (reason,) = told["nodes"][0]["reasons"]
    assert reason["text"] == f"{made['actor']} paused admission to rack r1: power work"
    assert paused(service_anywhere) == [("r1", "power work")]
    assert act("resume", "r1").status_code == 200
    assert check_admission("n1", "n3")["decision"] == "allow"
    assert paused(service_anywhere) == []


@pytest.mark.usefixtures("racks")
def test_a_paused_fleet_takes_none_and_pauses_of_racks_hold_on(
    check_admission: Any,
    act: Any,
    service_anywhere: Any,
) -> None:
    act("pause", "r2")
    act("pause")
    act("pause")  # again: once is enough
    assert paused(service_anywhere) == [(None, "power work"), ("r2", "power work")]
    told = check_admission("n1", "n3", "n4", spares=4)
    assert (told["decision"], told["allowed"], told["spares"]) == ("deny", 0, [])
    assert "paused admission to the fleet: power work" in told["nodes"][0]["reasons"][0]["text"]
    act("resume")
    assert {node["node"] for node in check_admission("n1", "n3", "n4")["nodes"]} == {"n3"}


@pytest.mark.usefixtures("racks")
def test_a_job_that_runs_may_restart(
    check_admission: Any,
    act: Any,
    service_anywhere: Any,
) -> None:
    client = service_anywhere.client()
    rank = {"rank": 0, "dp": 0, "pp": 0, "tp": 0, "node": "n1", "device": None, "pid": 1, "state": "running"}
    where = {"dp": 1, "pp": 1, "tp": 1, "world_size": 1, "ranks": [rank]}
    assert client.put("/v1/jobs/llm", json=job_report(topology=where)).status_code == 200
    act("pause")
    assert check_admission("n1", "n2")["decision"] == "allow", "the job llm runs"
    assert codes(check_admission("n1", job="new"), "n1") == ["paused", "busy"]


def test_what_is_not_paused_is_not_resumed(act: Any) -> None:
    assert_problem(act("resume"), 409, "admission-not-paused")
    act("pause", "r1")
    answer = act("resume", "r2")
    assert_problem(answer, 409, "admission-not-paused")
    assert answer.json()["detail"] == "admission to rack r2 is not paused"
