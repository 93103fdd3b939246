"""Wrong bits count since they were last seen right, not since their detection; jobs that ran there get a warning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mainstay.probes.ids import uuid7
from mainstay.service.fleet.models import NodeRow
from mainstay.service.incidents.models import FindingRow
from mainstay.service.validation.last_known_good import LastKnownGood, last_sound
from mainstay.service.validation.models import ResultRow, ValidationRow

START = 1_700_000_000.0
Json = dict[str, Any]


@pytest.fixture
def past(service: Any, enrolled_at: Callable[..., None]) -> Callable[..., None]:
    """Stores a validation of n1 that ended at START + ``at``: benchmark → its verdict on bits."""
    enrolled_at("n1", START - 1000.0)

    def store(at: float, unit: str = "", **verdicts: str) -> None:
        with service.services.database.session() as session:
            row = ValidationRow(
                id=uuid7(), node="n1", suite="quick", state="done", verdict="pass", reason="",
                created_at=START + at - 9, deadline_at=START + at, started_at=START + at - 5, finished_at=START + at,
            )  # fmt: skip
            session.add(row)
            session.flush()
            for position, (benchmark, verdict) in enumerate(verdicts.items()):
                session.add(
                    ResultRow(
                        id=uuid7(), validation_id=row.id, position=position, cohort="cpu", benchmark=benchmark,
                        metric="bits", unit=unit, better="equal", values=[1], value=1.0, verdict=verdict, device="cpu",
                        reason="",
                    )
                )  # fmt: skip

    return store


@pytest.fixture
def enrolled_at(service: Any, report: Json) -> Callable[..., None]:
    def enroll(name: str, at: float) -> None:
        assert service.node_client(name).put(f"/v1/nodes/{name}", json=report).status_code == 200
        with service.services.database.session() as session:
            row = session.get(NodeRow, name)
            row.first_seen_at = at

    return enroll


def find_last_known_good(service: Any, before: float, *benchmarks: str) -> LastKnownGood | None:
    with service.services.database.reading() as session:
        return last_sound(session, "n1", before=START + before, benchmarks=benchmarks)


def test_the_newest_run_with_right_bits_counts_from_its_start(service: Any, past: Any) -> None:
    past(100.0, deterministic="pass", gemm="pass")
    past(200.0, deterministic="pass", gemm="pass")
    past(300.0, deterministic="fail", gemm="pass")
    assert find_last_known_good(service, 1000.0) == LastKnownGood(START + 195.0, shown=True)
    assert find_last_known_good(service, 200.0) == LastKnownGood(START + 95.0, shown=True), (
        "a run is no proof of what came before its end"
    )
    expected = LastKnownGood(START + 295.0, shown=True)
    assert find_last_known_good(service, 1000.0, "gemm") == expected, "gemm had no wrong result then"


def test_what_compares_no_bits_or_not_these_proves_nothing(service: Any, past: Any) -> None:
    past(100.0, unit="F/s", gemm="pass")
    past(200.0, peer="pass", dcgm="pass")
    past(300.0, burn="pass")
    past(400.0, deterministic="unknown")
    assert find_last_known_good(service, 1000.0, "deterministic", "gemm") == LastKnownGood(START - 1000.0, shown=False)
    assert find_last_known_good(service, 1000.0) == LastKnownGood(START + 295.0, shown=True)


def test_of_a_node_that_never_reported_nothing_is_known(service: Any) -> None:
    assert find_last_known_good(service, 0.0) is None


def results_of(results: Any, bits: float, at: float) -> Json:
    body: Json = results("quick")
    body |= {"started_at": at - 5.0, "finished_at": at}
    for benchmark in body["benchmarks"]:
        if benchmark["benchmark"] == "deterministic":
            benchmark["metrics"] = [{"name": "bits", "unit": "", "better": "equal", "values": [bits, bits, bits]}]
    return body


def test_a_validation_that_fails_late_taints_what_a_job_did_since_the_last_good_one(
    service: Any, enroll: Any, criteria: Any, results: Any
) -> None:
    admin, node = service.client(), enroll(service, "n1")
    rules = [one for one in criteria("quick") if one["benchmark"] != "deterministic"]
    bits = {"benchmark": "deterministic", "metric": "bits", "cohort": "cpu", "better": "equal", "low": 7, "high": 7}
    assert admin.put("/v1/criteria", json={"items": [*rules, bits]}).status_code == 200

    def validate(value: float, at: float) -> str:
        ordered = admin.post("/v1/validations", json={"node": "n1", "suite": "quick"})
        assert ordered.status_code < 300, ordered.text
        (order,) = node.orders()
        body = results_of(results, value, at)
        done = node.client.post(f"/v1/validations/{order['validation_id']}/results", json=body)
        assert done.status_code == 200, done.text
        verdict: str = admin.get(f"/v1/validations/{order['validation_id']}").json()["verdict"]
        return verdict

    assert validate(7.0, START) == "pass"
    assert validate(8.0, START + 7200.0) == "fail"
    (incident,) = admin.get("/v1/incidents").json()["items"]
    assert incident["cause"] == "silent_corruption"
    assert incident["summary"].endswith("Its bits were last seen right 2.0 h before.")

    ranks = [{"rank": 0, "dp": 0, "pp": 0, "tp": 0, "node": "n1", "device": None, "pid": 1, "state": "running"}]
    job = {
        "name": "demo", "state": "running", "generation": 1, "command": "train.py",
        "topology": {"dp": 1, "pp": 1, "tp": 1, "world_size": 1, "ranks": ranks},
        "protection": {"slots": 2, "parity_every": None, "parity_group": None, "disk_every": None, "state_bytes": []},
        "steps_total": None, "last_step": 1, "started_at": START + 10.0, "finished_at": None,
    }  # fmt: skip
    hazard = admin.put("/v1/jobs/demo", json=job).json()["node_warnings"]["n1"]
    assert (hazard["corrupt"], hazard["since"]) == (True, START - 5.0)


def test_another_jobs_replay_counts_since_the_last_proof_too(service: Any, past: Any) -> None:
    from mainstay.service.jobs import node_warnings

    past(100.0, deterministic="pass")
    with service.services.database.session() as session:
        session.add(
            FindingRow(
                id=uuid7(), key="k", kind="sdc_suspect", node="n1", job="other", time=START + 900.0,
                severity="critical", detector="step_replay", confidence=0.9,
                evidence={"summary": "wrong", "numbers": {}, "series": []}, active=True,
                recommended_action="inspect_node",
                cause="silent_corruption",
            )
        )  # fmt: skip
    with service.services.database.reading() as session:
        told = node_warnings.of_nodes(session, "demo", {}, {"n1"})["n1"]
        own = node_warnings.of_nodes(session, "other", {}, {"n1"})["n1"]
    assert (told.corrupt, told.since) == (True, START + 95.0)
    assert (own.corrupt, own.since) == (False, START + 900.0), "it has gone back already"
