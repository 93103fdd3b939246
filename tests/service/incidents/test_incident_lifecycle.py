"""The whole loop in one process: an exit is noticed, answered, recovered, verified, closed, and told completely."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from mainstay.service.jobs.models import RecoveryRow

Json = dict[str, Any]
QUICK = {"incidents": {"close_after_seconds": 0.2, "detection_interval_seconds": 0.1}}


def test_a_killed_rank_from_exit_to_closed(
    start: Callable[..., Any], job_of: Callable[..., Any], database_url: str
) -> None:
    job = job_of(start(database_url=database_url, **QUICK))
    job.kill(rank=1)
    opened = job.wait_for("open")
    assert opened["severity"] == "critical"
    assert (opened["job"], opened["node"], opened["ranks"], opened["kinds"]) == ("demo-1", "n0", [1], ["process_exit"])
    assert "SIGKILL" in opened["title"]
    plan = job.plan()
    job.wait_for("recovering")
    started = job.event("action_started", recovery=plan["id"], action="spawn", detail="rank 1 on n0")
    done = job.event("action_finished", recovery=plan["id"], action="spawn", ok=True, seconds=0.25, detail="rank 1")
    job.send(started, done)
    job.recover(plan["id"])
    recovered = job.wait_for("recovered")
    assert not [finding for finding in recovered["findings"] if finding["active"]]
    job.verify(plan["id"])
    closed = job.wait_for("closed")
    assert [entry["kind"] for entry in closed["timeline"]].count("opened") == 1
    kinds = {entry["kind"] for entry in closed["timeline"]}
    assert kinds == {
        "opened", "finding", "recovery_planned", "action_started", "action_finished", "recovered", "finding_cleared",
        "verified", "quiet",
    }  # fmt: skip
    times = [closed[f"{state}_at"] for state in ("opened", "recovering", "recovered", "verified", "closed")]
    assert times == sorted(times)
    assert [entry["time"] for entry in closed["timeline"]] == sorted(entry["time"] for entry in closed["timeline"])
    assert closed["needs_operator"] is False


def test_the_timeline_says_which_rules_judged(job: Any) -> None:
    job.kill()
    job.wait_for("open")
    job.plan()
    detail = job.wait_for("recovering")
    chosen = next(entry for entry in detail["timeline"] if entry["kind"] == "recovery_planned")
    assert chosen["data"]["rules"] == ["allowed_transition"]
    assert (chosen["data"]["from"], chosen["data"]["to"], chosen["data"]["trigger"]) == (
        "open",
        "recovering",
        "recovery_planned",
    )


def test_predicted_and_actual_stand_side_by_side(job: Any) -> None:
    job.kill()
    plan = job.plan()
    job.recover(plan["id"])
    detail = job.wait_for("recovered")
    read = detail["plan"]
    assert [way["strategy"] for way in read["alternatives"]] == ["peer_copy", "disk_restart"]
    assert read["alternatives"][0]["seconds"] == 0.8
    assert read["actual_steps_lost"] == 0
    assert read["actual_seconds"] is not None
    assert read["actual_parts"] == {"detect": 0.05, "spawn": 0.2, "fetch": 0.12, "regroup": 0.3}
    assert job.client.get(f"/v1/recovery-plans/{plan['id']}").json() == read
    assert job.client.get("/v1/recovery-plans").json()["items"] == [read]
    (recovery,) = job.client.get("/v1/jobs/demo-1/recoveries").json()["items"]
    assert (recovery["restore_strategy"], recovery["planned_seconds"], recovery["outcome"]) == (
        "peer_copy",
        0.8,
        "recovered",
    )
    assert recovery["incident"] == detail["id"]
    assert recovery["failed_at"] < recovery["planned_at"] < recovery["recovered_at"]
    assert job.client.get("/v1/jobs/demo-1").json()["recoveries"] == 1


def test_absent_ranks_are_counted_after_each_recovery(job: Any, service: Any, eventually: Any) -> None:
    for absent in ({"absent_ranks": [2, 3], "absent_replicas": [1]}, {}, {"absent_ranks": "many"}):
        job.recover(job.plan(requested=True)["id"], **absent)

    def stored() -> list[int]:
        with service.services.database.reading() as session:
            rows = session.query(RecoveryRow).filter_by(outcome="recovered").order_by(RecoveryRow.recovered_at)
            return [row.absent_ranks for row in rows]

    eventually(lambda: len(stored()) == 3)
    assert stored() == [2, 0, 0]


def test_an_incident_opens_within_a_fraction_of_a_second_of_its_event(job: Any) -> None:
    """On an idle machine it takes milliseconds; the bound leaves room for a busy one."""
    waits = []
    for rank in range(4):
        began = time.monotonic()
        job.kill(rank)
        while not any(rank in incident["ranks"] for incident in job.incidents()):
            assert time.monotonic() - began < 5.0
        waits.append(time.monotonic() - began)
    assert sorted(waits)[1] < 0.5


def test_duplicate_events_change_nothing(job: Any) -> None:
    event = job.kill()
    first = job.wait_for("open")
    answer = job.client.post("/v1/events", json={"items": [event, event]})
    assert answer.json() == {"accepted": 0, "duplicates": 2, "set_aside": 0}
    job.plan()
    again = job.wait_for("recovering")
    assert again["id"] == first["id"]
    assert [entry["kind"] for entry in again["timeline"]].count("finding") == 1


def test_the_same_rank_dying_later_is_a_new_incident(
    start: Callable[..., Any], job_of: Callable[..., Any], eventually: Any
) -> None:
    job = job_of(start(**QUICK))
    for count in (1, 2):
        job.kill()
        eventually(lambda: len(job.incidents()) == count)  # noqa: B023 - called at once
        plan = job.plan()
        job.recover(plan["id"])
        job.verify(plan["id"])
        eventually(lambda: job.incidents()[0]["state"] == "closed")
    assert len(job.client.get("/v1/recovery-plans").json()["items"]) == 2


def test_a_second_rank_dying_during_recovery_joins_the_incident(job: Any, eventually: Any) -> None:
    job.kill(rank=1)
    job.plan([1])
    job.wait_for("recovering")
    job.kill(rank=2)
    eventually(lambda: job.incident()["ranks"] == [1, 2])
    second = job.plan([1, 2])
    job.recover(second["id"])
    detail = job.wait_for("recovered")
    assert detail["plan"]["id"] == second["id"]
    assert "relapsed" in {entry["kind"] for entry in detail["timeline"]}


def test_a_plan_that_overtakes_the_news_of_the_failure_opens_the_incident(job: Any, eventually: Any) -> None:
    exit_event = job.event("process_exit", rank=1, node="n0", signal=9, expected=False)
    plan = job.plan()
    job.wait_for("recovering")
    job.recover(plan["id"])
    job.wait_for("recovered")
    job.send(exit_event)
    eventually(lambda: job.incident()["findings"])
    detail = job.incident()
    assert detail["state"] == "recovered"
    assert [finding["active"] for finding in detail["findings"]] == [False]


def test_an_expected_exit_is_no_incident(job: Any, eventually: Any) -> None:
    job.send(job.event("process_exit", rank=1, node="n0", exit_code=0, expected=True))
    marker = job.kill(rank=3)
    eventually(job.incidents)
    assert job.incident()["ranks"] == [3]
    assert job.incident()["findings"][0]["event"] == marker["id"]


def test_no_plan_in_time_needs_a_human(start: Callable[..., Any], job_of: Callable[..., Any], eventually: Any) -> None:
    running = start(incidents={"plan_timeout_seconds": 0.2, "detection_interval_seconds": 0.1})
    job = job_of(running)
    job.kill()
    detail = eventually(lambda: job.incidents() and job.incidents()[0]["needs_operator"] and job.incident())
    assert detail["state"] == "open"
    assert "No plan came" in detail["timeline"][-1]["text"]
    overview = job.client.get("/v1/overview").json()
    assert [incident["id"] for incident in overview["needs_operator"]] == [detail["id"]]
    job.plan()
    assert job.wait_for("recovering")["needs_operator"] is False


@pytest.mark.parametrize("late", ["recovery_timeout_seconds", "verify_timeout_seconds"])
def test_what_takes_too_long_needs_a_human(
    start: Callable[..., Any], job_of: Callable[..., Any], eventually: Any, late: str
) -> None:
    job = job_of(start(incidents={late: 0.2, "detection_interval_seconds": 0.1}))
    job.kill()
    plan = job.plan()
    if late == "verify_timeout_seconds":
        job.recover(plan["id"])
    eventually(lambda: job.incidents() and job.incidents()[0]["needs_operator"])
    assert (
        job.incident()["state"]
        == {"recovery_timeout_seconds": "recovering", "verify_timeout_seconds": "recovered"}[late]
    )


def test_a_failed_recovery_needs_a_human(job: Any) -> None:
    job.kill()
    plan = job.plan()
    job.wait_for("recovering")
    job.send(job.event("recovery_failed", recovery=plan["id"], reason="the spare died too"))
    detail = job.wait_for("open")
    assert detail["needs_operator"] is True
    assert "the spare died too" in detail["timeline"][-1]["text"]
    (recovery,) = job.client.get("/v1/jobs/demo-1/recoveries").json()["items"]
    assert recovery["outcome"] == "failed"


def test_a_plan_without_a_feasible_way_needs_a_human(job: Any, eventually: Any) -> None:
    job.kill()
    job.plan(chosen=None, explanation="Nothing holds the state.")
    eventually(lambda: job.incidents() and job.incidents()[0]["needs_operator"])
    assert job.incident()["state"] == "open"


def test_restored_parameters_that_differ_are_not_verified(job: Any, eventually: Any) -> None:
    job.kill()
    plan = job.plan()
    job.recover(plan["id"])
    job.verify(plan["id"], digest_match=False)
    job.wait_for("open")  # it was open before the recovery, too
    eventually(lambda: job.incident()["needs_operator"])
    assert job.incident()["state"] == "open"


def test_a_job_that_dies_for_good_stays_open_for_a_human(job: Any, eventually: Any) -> None:
    job.kill()
    job.wait_for("open")
    job.send(job.event("job_finished", state="failed", exit_code=1, reason="max-restarts are used up"))
    eventually(lambda: job.incident()["needs_operator"])
    detail = job.incident()
    assert detail["state"] == "open"
    assert not any(finding["active"] for finding in detail["findings"])


def test_reports_that_fit_nothing_change_nothing(job: Any, eventually: Any) -> None:
    job.send(
        job.event("recovery_completed", recovery="absent", seconds={}, steps_lost="many"),
        job.event("recovery_verified", recovery="absent"),
        job.event("action_finished", recovery="absent", action="spawn", ok="yes"),
        job.event("recovery_failed"),
    )
    job.kill()
    eventually(job.incidents)
    assert job.incident()["state"] == "open"


def test_one_trouble_that_stops_two_jobs_is_recovered_when_both_are(
    service: Any, job_of: Callable[..., Any], eventually: Any
) -> None:
    one, two = job_of(service, id="one"), job_of(service, id="two")
    one.kill(rank=0)
    one.wait_for("open")
    two.kill(rank=1)  # on the same node, at the same time
    eventually(two.incidents)
    assert one.incident()["id"] == two.incident()["id"]
    plans = [one.plan([0]), two.plan([1])]
    one.recover(plans[0]["id"])
    eventually(lambda: one.incident()["timeline"][-1]["kind"] in {"refused", "finding_cleared"})
    assert one.incident()["state"] == "recovering"
    assert one.client.get("/v1/jobs/two").json()["open_incidents"] == 1
    two.recover(plans[1]["id"])
    two.wait_for("recovered")


def test_a_recovery_cut_short_by_the_next_failure_is_verified_with_it(job: Any, eventually: Any) -> None:
    job.kill(rank=1)
    first = job.plan([1])
    job.recover(first["id"])
    job.wait_for("recovered")
    job.kill(rank=2)
    eventually(lambda: len(job.incidents()) == 2)
    second = job.plan([2])
    job.recover(second["id"])
    job.verify(second["id"])
    eventually(lambda: {incident["state"] for incident in job.incidents()} == {"verified"})
    assert {tuple(incident["ranks"]) for incident in job.incidents()} == {(1,), (2,)}
