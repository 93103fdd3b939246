"""The durability figure from report to answer and metrics, and node_warnings in the answer to a report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mainstay.probes.ids import uuid7
from mainstay.service.fleet.models import NodeRow
from mainstay.service.incidents.models import FindingRow
from mainstay.service.stream.changes import Topic, record_change

FIGURE: dict[str, Any] = {
    "time": 1_700_000_000.0, "survival_hour": 0.999, "survival_hour_with_disk": 1.0, "exact": True,
    "description": "Memory outlives the loss of any one node, not of n1 with n2.",
    "min_fatal_nodes": 2, "fatal": [["n1", "n2"]],
    "newest": 40, "parity_epoch": 30, "disk_epoch": 20, "degraded": ["n1: slow disk"],
    "suspects": [{"node": "n1", "reason": "hot", "factor": 10.0, "since": 1.0, "ranks": [0, 1],
                  "copies_wanted": [0, 1], "copies": [0]}],
    "corrupt_steps": [{"node": "n2", "since": 2.0, "reason": "wrong bits", "clean": 35, "corrupt": True}],
    "scrub": {
        "passes": 9, "bytes": 1 << 40, "drills": 4, "drills_failed": 1,
        "found": 6, "flipped": 5, "repaired": 4, "lost": 1,
        "nodes": [{"node": "n1", "found": 6, "flipped": 5, "repaired": 4, "lost": 1, "last": "rank 0 was repaired"}],
    },
}  # fmt: skip


def put(client: Any, report: dict[str, Any], figure: dict[str, Any] | None = None, job: str = "demo") -> Any:
    report["protection"]["durability"] = figure
    return client.put(f"/v1/jobs/{job}", json=report)


def test_the_newest_figure_is_stored_and_answered(service: Any, report_job: Callable[..., Any]) -> None:
    client = service.client()
    assert put(client, report_job()).json()["protection"]["durability"] is None
    assert put(client, report_job(), FIGURE).status_code == 200
    assert client.get("/v1/jobs/demo").json()["protection"]["durability"] == FIGURE


@pytest.mark.parametrize("wrong", [{"survival_hour": 1.5}, {"fatal": "n1"}, {"min_fatal_nodes": 0}])
def test_nonsense_is_refused(service: Any, report_job: Callable[..., Any], wrong: dict[str, Any]) -> None:
    answer = put(service.client(), report_job(), FIGURE | wrong)
    assert answer.status_code == 422
    assert next(iter(wrong)) in answer.text


def test_metrics(service: Any, report_job: Callable[..., Any]) -> None:
    client = service.client()
    put(client, report_job(), FIGURE)
    text = client.get("/metrics").text
    stem = "mainstay_job_durability_"
    told = {
        name: float(value) for name, value in (line.split(" ") for line in text.splitlines() if line.startswith(stem))
    }
    wanted = {
        "survival_probability": 0.999, "survival_probability_with_disk": 1.0, "min_fatal_nodes": 2,
        "parity_age_steps": 10, "degraded": 1, "extra_copies": 1, "corrupt_steps": 1,
        "timestamp_seconds": 1_700_000_000.0, "corruption_found": 6, "corruption_repaired": 4, "corruption_lost": 1,
        "bit_flips": 5, "restore_drills_failed": 1,
    }  # fmt: skip
    assert told == {f'{stem}{name}{{job="demo"}}': value for name, value in wanted.items()}
    put(client, report_job(), FIGURE | {"survival_hour": None, "parity_epoch": None, "scrub": None})
    text = client.get("/metrics").text
    assert f"{stem}corruption_found{{" not in text, "no scrub means no sample, not zero"
    assert f"{stem}survival_probability{{" not in text
    assert f"{stem}parity_age_steps{{" not in text


def finding(
    node: str,
    kind: str,
    severity: str,
    *,
    job: str | None = None,
    cause: str | None = None,
    active: bool = True,
    recommended_action: str = "none",
) -> FindingRow:
    return FindingRow(
        id=uuid7(), key=uuid7(), kind=kind, node=node, job=job, time=100.0, severity=severity, detector="test",
        confidence=0.9, evidence={"summary": f"{kind} on {node}", "numbers": {}, "series": []}, active=active,
        recommended_action=recommended_action, cause=cause,
    )  # fmt: skip


def test_what_is_found_on_the_nodes_of_a_job_comes_with_the_answer(
    service: Any, report_job: Callable[..., Any]
) -> None:
    report = report_job()
    for rank, node in enumerate(("n1", "n2", "n3", "n4")):
        report["topology"]["ranks"][rank]["node"] = node
    with service.services.database.session() as session:
        session.add_all(
            [
                finding("n1", "thermal_throttle", "warning"),
                finding("n1", "ecc_uncorrectable", "critical"),
                finding("n2", "data_stall", "critical"),  # the script's
                finding("n2", "xid", "critical", active=False),
                finding("n3", "validation_failed", "critical", cause="silent_corruption"),
                finding("n4", "sdc_suspect", "critical", job="demo"),  # its own replay found that
                finding("other-node", "xid", "critical"),
            ]
        )
    node_warnings = put(service.client(), report).json()["node_warnings"]
    assert {node: (h["factor"], h["corrupt"], h["since"]) for node, h in node_warnings.items()} == {
        "n1": (100.0, False, 100.0),
        "n3": (100.0, True, 100.0),
        "n4": (100.0, False, 100.0),
    }
    assert node_warnings["n1"]["reason"] == "ecc_uncorrectable on n1"


def test_nodes_that_take_no_work_are_named_with_their_state(service: Any, report_job: Callable[..., Any]) -> None:
    """Those with standbys only count too: a rank may go there."""
    states = {
        "n1": "healthy",
        "n2": "suspect",
        "n3": "draining",
        "n4": "quarantined",
        "s1": "validating",
        "s2": "unknown",
    }
    report = report_job()
    for rank, node in enumerate(("n1", "n2", "n3", "n4")):
        report["topology"]["ranks"][rank]["node"] = node
    report["topology"]["standbys"] = {"n1": 1, "s1": 2, "s2": 1}
    with service.services.database.session() as session:
        for node, state in states.items():
            session.add(
                NodeRow(name=node, state=state, state_reason="a fan is loose", state_since=7.0, first_seen_at=1.0)
            )
            record_change(session, Topic.NODE, {"id": node, "state": state})
        session.add_all(
            [
                finding("n2", "ecc_corrected", "warning", recommended_action="monitor"),
                finding("n1", "xid", "critical", recommended_action="reset_gpu"),
                finding("n1", "xid", "critical", recommended_action="restart_job"),
                finding("n3", "thermal_throttle", "warning", recommended_action="migrate_ranks"),
            ]
        )
    told = put(service.client(), report).json()["node_warnings"]
    assert {node: (w["factor"], w["cordoned"]) for node, w in told.items()} == {
        "n1": (100.0, True), "n2": (10.0, False), "n3": (10.0, True), "n4": (1.0, True), "s1": (1.0, True),
    }  # fmt: skip
    assert (told["s1"]["reason"], told["s1"]["since"]) == ("it is validating: a fan is loose", 7.0)
    with service.services.database.session() as session:
        session.get(NodeRow, "n4").state = "healthy"
        record_change(session, Topic.NODE, {"id": "n4", "state": "healthy"})
    assert "n4" not in put(service.client(), report).json()["node_warnings"]
