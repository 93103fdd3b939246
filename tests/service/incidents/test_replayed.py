"""What a job's replays and speed checks found opens an incident that names the rank, its node and the evidence."""

from __future__ import annotations

from typing import Any

from tests.service.conftest import wait_until
from tests.service.incidents.conftest import Job

CULPRIT = {"rank": 2, "node": "n1", "replays": 7, "shown": 3, "steps": [50, 51], "groups": ["row-2"]}


def replayed(job: Job, outcome: str, *culprits: dict[str, Any]) -> dict[str, Any]:
    return job.event(
        "step_replay_finished", outcome=outcome, culprits=list(culprits), reason="digests differ", replays=28
    )


def test_a_culprit_opens_an_incident_and_its_replacement_is_told_there(job: Job) -> None:
    job.send(replayed(job, "found", CULPRIT))
    opened = job.wait_for("open")
    assert (opened["kinds"], opened["ranks"], opened["node"]) == (["sdc_suspect"], [2], "n1")
    assert opened["severity"] == "critical"
    (finding,) = opened["findings"]
    assert (finding["cause"], finding["recommended_action"], finding["detector"]) == (
        "silent_corruption",
        "inspect_node",
        "step_replay",
    )
    assert "3 of 7 replays" in finding["evidence"]["summary"]
    plan = job.plan(failed=[2])
    job.wait_for("recovering")
    job.recover(plan["id"])
    assert [f["active"] for f in job.wait_for("recovered")["findings"]] == [True]  # the device is as bad as before


def test_replays_that_found_nobody_open_nothing(job: Job) -> None:
    job.send(replayed(job, "clean"), replayed(job, "no_majority"), job.event("job_finished", state="finished"))
    assert job.client.get("/v1/events", params={"job": job.id, "kind": "step_replay_finished"}).json()["items"]
    assert job.incidents() == []


def test_a_slow_device_opens_an_incident_until_another_check_clears_it(job: Job) -> None:
    def checked(*, slow: bool) -> dict[str, Any]:
        rank = {"rank": 2, "node": "n1", "slow": slow, "ratios": {"matmul": 1.6, "host": 1.0}}
        return job.event("speed_check_finished", summary="s", reason="r", peers=[0, 1], ranks=[rank])

    job.send(checked(slow=True))
    opened = job.wait_for("open")
    assert (opened["kinds"], opened["ranks"], opened["node"]) == (["device_slow"], [2], "n1")
    (finding,) = opened["findings"]
    assert (finding["recommended_action"], finding["detector"]) == ("migrate_ranks", "speed_check")
    assert "needs 1.60 times as long as its peers for the same matmul kernel" in finding["evidence"]["summary"]
    job.send(checked(slow=False))
    wait_until(lambda: [f["active"] for f in job.incident()["findings"]] == [False])
