"""What failed is measured again: how often travels from the sweep to the node, with the criteria, and back."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from mainstay.detectors.validation.verdict import Criteria
from mainstay.probes.identity import describe_node
from mainstay.probes.node_tasks import ResultOutbox, TaskLoop
from mainstay.probes.samplers.host import HostConfig
from mainstay.probes.signals import SignalSource, catalog
from mainstay.probes.spool import Spool
from mainstay.probes.transport import Transport
from mainstay.probes.validation_tasks import ValidationProcess, ValidationTask
from mainstay.service.validation.tasks import Tasks

Json = dict[str, Any]


@pytest.fixture
def node(service: Any, enroll: Any) -> Any:
    return enroll(service, "n1")


def test_the_node_gets_the_criteria_by_which_it_will_be_judged(admin: httpx.Client, node: Any, criteria: Any) -> None:
    admin.put("/v1/criteria", json={"items": criteria("quick")})
    made = admin.post("/v1/validations", json={"node": "n1", "suite": "quick", "remeasure": 2}).json()
    assert made["remeasure"] == 2
    order = msgspec.convert(node.orders()[0], ValidationTask)
    assert order.remeasure == 2
    known = msgspec.convert(order.criteria, Criteria)
    cohort = admin.get("/v1/nodes/n1").json()["cohort"]
    assert known.judge_as == cohort
    told = {(c.benchmark, c.metric, c.low) for c in known.criteria if c.cohort == cohort}
    assert told == {(c["benchmark"], c["metric"], c["low"]) for c in criteria("quick")}


def test_who_measures_once_needs_no_criteria(admin: httpx.Client, node: Any, criteria: Any) -> None:
    admin.put("/v1/criteria", json={"items": criteria("quick")})
    made = admin.post("/v1/validations", json={"node": "n1", "suite": "quick"}).json()
    (order,) = node.orders()
    assert (made["remeasure"], order["remeasure"], order["criteria"]) == (0, 0, None)


def test_the_result_says_what_was_measured_again(admin: httpx.Client, node: Any, criteria: Any, results: Any) -> None:
    admin.put("/v1/criteria", json={"items": criteria("quick")})
    made = admin.post("/v1/validations", json={"node": "n1", "suite": "quick", "remeasure": 3}).json()
    body = results("quick")
    body["benchmarks"][0]["remeasured"] = 1
    name = body["benchmarks"][0]["benchmark"]
    assert node.client.post(f"/v1/validations/{made['id']}/results", json=body).status_code == 200
    read = admin.get(f"/v1/validations/{made['id']}").json()
    assert read["verdict"] == "pass"
    assert {one["benchmark"]: one["remeasured"] for one in read["results"] if one["remeasured"]} == {name: 1}
    assert read["reason"].endswith(f"; measured again: {name}")


VALIDATE = """
import json, sys
argv = sys.argv[1:]
named = dict(zip(argv, argv[1:]))
known = json.load(open(named["--criteria"]))
mine = [c for c in known["criteria"] if c["cohort"] == known["judge_as"]]
low = next(c["low"] for c in mine if c["benchmark"] == named["--benchmarks"])
metric = {"name": "rate", "unit": "B/s", "better": "higher", "values": [2 * low]}
run = {
    "benchmark": named["--benchmarks"], "state": "ok", "error": None, "seconds": 0.1,
    "device": "cpu", "metrics": [metric],
}
print(json.dumps({"benchmarks": [run | {"remeasured": int(named["--remeasure"])}]}))
"""


@pytest.mark.processes
def test_a_real_daemon_carries_it_out(service: Any, admin: httpx.Client, criteria: Any, tmp_path: Path) -> None:
    """All but the measurement is real: the long poll, the process beside the daemon, the spool, the verdict."""
    admin.put("/v1/criteria", json={"items": criteria("quick")})
    bearer = service.node_client("n1").headers["authorization"]
    transport = Transport(service.url, bearer.removeprefix("Bearer "))
    devices = HostConfig().build().devices()
    with Spool(tmp_path / "spool") as spool:
        results = ResultOutbox(spool, transport)
        control = TaskLoop("n1", transport, ValidationProcess((sys.executable, "-c", VALIDATE)), results)
        with results:
            control.start()
            control.report(describe_node(devices, catalog(SignalSource.HOST), cohort="cpu", started_at=1.0))
            assert control.reported.wait(30)
            made = admin.post("/v1/validations", json=ORDERED).json()
            read = _ended(admin, made["id"])
            control.stop()
    assert (read["verdict"], [one["remeasured"] for one in read["results"]]) == ("pass", [3]), read["reason"]


ORDERED = {"node": "n1", "suite": "quick", "benchmarks": ["memory"], "remeasure": 3}


def _ended(admin: httpx.Client, validation: str) -> Json:
    deadline = time.monotonic() + 60
    while True:
        read: Json = admin.get(f"/v1/validations/{validation}").json()
        if read["state"] == "done":
            return read
        assert time.monotonic() < deadline, read
        time.sleep(0.05)


def test_a_validation_that_measures_again_has_the_time_for_it(service: Any, admin: httpx.Client, node: Any) -> None:
    service.services.settings.validation.deadline_seconds = 1.0
    for again in (0, 2):
        admin.post("/v1/validations", json={"node": "n1", "suite": "deep", "remeasure": again})
    once, thrice = (order["deadline_at"] for order in node.orders())
    now = service.services.clock.now()
    assert (thrice - now) / (once - now) == pytest.approx(3, rel=0.1)


def test_a_sweep_hands_it_on_and_can_be_changed(admin: httpx.Client, node: Any, service: Any) -> None:
    made = admin.post("/v1/sweeps", json={"name": "s", "suite": "quick", "remeasure": 1}).json()
    assert made["remeasure"] == 1
    changed = admin.patch(f"/v1/sweeps/{made['id']}", json={"version": made["version"], "remeasure": 4})
    assert changed.json()["remeasure"] == 4, changed.text
    run = admin.post(f"/v1/sweeps/{made['id']}:run").json()["runs"][0]
    Tasks(service.services, lambda _: None).fan_out(run["id"])
    (order,) = node.orders()
    assert order["remeasure"] == 4


def test_a_plan_says_it_to_those_who_carry_it_out(admin: httpx.Client, node: Any) -> None:
    del node
    plan = admin.post("/v1/validation-plans", json={"nodes": ["n1"], "job_hours": 1, "remeasure": 2}).json()
    assert plan["remeasure"] == 2
    assert admin.get(f"/v1/validation-plans/{plan['id']}").json() == plan


@pytest.mark.parametrize("remeasure", [6, -1, True, None, "1", 0.5])
def test_a_number_that_makes_no_sense_is_refused(admin: httpx.Client, remeasure: Any) -> None:
    for path, body in (
        ("/v1/validations", {"node": "n1", "suite": "quick"}),
        ("/v1/sweeps", {"name": "s", "suite": "quick"}),
        ("/v1/validation-plans", {"nodes": ["n1"], "job_hours": 1}),
    ):
        answer = admin.post(path, json=body | {"remeasure": remeasure})
        assert answer.status_code == 422, path
        assert "remeasure" in answer.json()["detail"]
