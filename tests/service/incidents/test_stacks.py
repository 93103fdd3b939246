"""Stacks appear with the incident that they explain, in either order of arrival."""

from __future__ import annotations

from typing import Any

from tests.service.conftest import wait_until
from tests.service.incidents.conftest import Job


def dump(job: Job, rank: int, **data: Any) -> dict[str, Any]:
    stacks = [{"thread": "MainThread", "frames": ["wait (threading.py:320)", "step (train.py:41)"]}]
    return job.event("stack_dump", rank=rank, node=f"n{rank // 2}", reason="hang", tool="py-spy", stacks=stacks, **data)


def shown(detail: dict[str, Any], kind: str = "stack_dump") -> list[dict[str, Any]]:
    return [entry for entry in detail["timeline"] if entry["kind"] == kind]


def test_a_dump_joins_the_open_incident_of_its_job(job: Job) -> None:
    job.kill()
    job.wait_for("open")
    job.send(dump(job, 3))
    entry = wait(job)[0]
    assert entry["text"] == "Stacks of rank 3 on n1: hang."
    assert entry["data"]["rank"] == 3
    assert entry["data"]["tool"] == "py-spy"
    (stack,) = entry["data"]["stacks"]
    assert stack == {"thread": "MainThread", "frames": ["wait (threading.py:320)", "step (train.py:41)"]}


def test_a_dump_that_came_first_is_shown_when_the_incident_opens(job: Job) -> None:
    job.send(dump(job, 1))
    job.kill()
    job.wait_for("open")
    assert [entry["data"]["rank"] for entry in wait(job)] == [1]


def test_what_comes_in_one_batch_with_the_kill_is_shown_once(job: Job) -> None:
    exit_ = job.event("process_exit", rank=1, node="n0", pid=101, signal="SIGKILL", expected=False)
    job.send(exit_, dump(job, 1), job.event("flight_recorder", summary="Rank 1 is missing.", ranks_missing=[1]))
    job.wait_for("open")
    job.send(dump(job, 2))
    wait_until(lambda: 2 in [entry["data"]["rank"] for entry in wait(job)])
    assert [entry["data"]["rank"] for entry in wait(job)] == [1, 2]
    assert len(shown(job.incident(), "flight_recorder")) == 1


def test_what_flight_recorders_show_is_one_line_of_the_incident(job: Job) -> None:
    told = {
        "summary": "Rank 3 has not entered all_reduce 7.",
        "certain": False,
        "ranks_missing": [3],
        "kind": "noncomm_hang",
    }
    event = job.event("flight_recorder", reason="hang")
    job.send(event | {"data": event["data"] | told})
    job.kill()
    job.wait_for("open")
    (entry,) = wait(job, "flight_recorder")
    assert entry["text"] == "Flight recorder: Rank 3 has not entered all_reduce 7. No dump from rank 3."
    assert (entry["data"]["certain"], entry["data"]["kind"]) == (False, "noncomm_hang")
    job.send(job.event("flight_recorder", summary=5, ranks_missing="none"))
    wait_until(lambda: len(shown(job.incident(), "flight_recorder")) == 2)


def test_what_is_no_stack_is_left_out_and_all_is_bounded(job: Job) -> None:
    job.kill()
    job.wait_for("open")
    event = job.event("stack_dump", rank=0)
    odd: list[Any] = [3, {"thread": 7, "frames": "no list"}, {"thread": 7, "frames": ["x" * 1000, 4, *["f"] * 500]}]
    event["data"] = {"stacks": odd + [{"thread": "t", "frames": []}] * 100, "reason": 5}
    job.send(event)
    (entry,) = wait(job)
    stacks = entry["data"]["stacks"]
    assert len(stacks) <= 64
    assert stacks[0]["thread"] == "7"
    assert len(stacks[0]["frames"]) <= 128
    assert max(len(frame) for frame in stacks[0]["frames"]) <= 300


def wait(job: Job, kind: str = "stack_dump") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = wait_until(lambda: shown(job.incident(), kind))
    return found
