"""Strategies that a coordinator evaluated and their accuracy: kept with the recovery, in the API and in metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.service.conftest import wait_until

Json = dict[str, Any]


def option(way: str, seconds: float | None, **changes: Any) -> Json:
    return {
        "strategies": [way], "feasible": seconds is not None, "executable": True, "reason": "A sentence.",
        "expected_s": seconds, "gpu_seconds": seconds, "rate": None if seconds is None else 0.5,
        "parts": {} if seconds is None else {"downtime": seconds}, **changes,
    }  # fmt: skip


def decision(**changes: Any) -> Json:
    return {
        "act": True, "chosen": ["drop_and_heal"], "explanation": "It costs least.", "fault": "process", "lost": [1, 0],
        "seconds": 0.001, "ready": True,
        "options": [option("drop_and_heal", 1.5), option("local_slot", 3.0), option("morph", None)], **changes,
    }  # fmt: skip


def outcome(measured: float, **changes: Any) -> Json:
    told = {"strategy": "local_slot", "predicted_s": 0.6, "measured_s": measured, "error": 0.1, "excess_cost_s": 0.25}
    return told | changes


def recovered(job: Any, weighed: Any, told: Any) -> Json:
    """The newest recovery, after one from a failure to its end."""
    job.kill()
    job.wait_for("open")
    plan = job.plan()
    job.send(job.event("recovery_planned", plan=plan, recovery=plan["id"], decision=weighed))
    job.recover(plan["id"], outcome=told)
    job.wait_for("recovered")
    found: Json = job.client.get("/v1/jobs/demo-1/recoveries").json()["items"][0]
    return found


def metrics(job: Any) -> dict[str, float]:
    text = job.client.get("/metrics").text
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels == {"job": "demo-1"} and sample.name.endswith("_total")
    }


def test_a_decision_is_kept_with_what_then_happened(job: Any) -> None:
    found = recovered(job, decision(), outcome(0.67))
    assert (found["strategy"], found["predicted_seconds"], found["excess_cost_seconds"]) == ("local_slot", 0.6, 0.25)
    assert found["seconds"] == 0.67
    kept = found["decision"]
    assert kept["chosen"] == ["drop_and_heal"]
    assert [each["expected_s"] for each in kept["options"]] == [1.5, 3.0, None]
    timeline = job.incident()["timeline"]
    assert all("decision" not in entry["data"] for entry in timeline), "it stands once"


def test_what_was_promised_is_counted(job: Any) -> None:
    recovered(job, decision(), outcome(0.67))
    told = metrics(job)
    assert told["mainstay_job_recoveries_predicted_total"] == 1.0
    assert told["mainstay_job_recoveries_within_prediction_total"] == 1.0, "0.67 s of 0.6"
    assert told["mainstay_job_recovery_excess_cost_seconds_total"] == 0.25


def test_what_was_not_kept_is_not_counted_as_kept(job: Any) -> None:
    recovered(job, decision(), outcome(0.67, predicted_s=0.2))
    assert metrics(job)["mainstay_job_recoveries_within_prediction_total"] == 0.0


BROKEN: dict[str, Callable[[], tuple[Any, Any]]] = {
    "nothing said": lambda: (None, None),
    "not objects": lambda: ([1], "soon"),
    "no options": lambda: ({"chosen": None}, {"strategy": "x"}),
    "prices below nothing": lambda: (decision(options=[option("morph", -1.0)]), outcome(0.5, excess_cost_s=-1.0)),
    "too many": lambda: (decision(options=[option("morph", 1.0)] * 65), outcome(0.5, strategy="w" * 65)),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_cannot_be_read_costs_nothing_else(job: Any, what: str) -> None:
    weighed, told = BROKEN[what]()
    found = recovered(job, weighed, told)
    assert found["outcome"] == "recovered"
    assert (found["decision"], found["strategy"], found["predicted_seconds"]) == (None, None, None)


def test_a_recovery_that_was_requested_opens_no_incident_until_something_fails(job: Any, service: Any) -> None:
    plan = job.plan(failed=[2], requested=True)
    job.recover(plan["id"])

    def recovered() -> Any:
        items = service.client().get("/v1/jobs/demo-1/recoveries").json()["items"]
        return items if items and items[0]["outcome"] == "recovered" else None

    (recovery,) = wait_until(recovered)
    assert (recovery["failed_ranks"], recovery["incident"]) == ([2], None)
    assert job.incidents() == []
    job.plan(failed=[1, 2], recovery=plan["id"])  # a rank died meanwhile
    assert job.wait_for("recovering")["ranks"] == [1, 2]
