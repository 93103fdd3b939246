"""A training job that reports what happens to it, as its coordinator would."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from mainstay.probes.ids import uuid7
from tests.service.conftest import wait_until

Json = dict[str, Any]


def job_report(**changes: Any) -> Json:
    ranks = [
        {"rank": r, "dp": r // 2, "pp": r % 2, "tp": 0, "node": f"n{r // 2}", "device": None, "pid": 100 + r,
         "state": "running"}
        for r in range(4)
    ]  # fmt: skip
    return {
        "name": "demo", "state": "running", "generation": 1, "command": ["train.py", "--steps", "90"],
        "topology": {"dp": 2, "pp": 2, "tp": 1, "world_size": 4, "ranks": ranks},
        "protection": {"slots": 3, "parity_every": 4, "parity_group": 2, "disk_every": None, "state_bytes": [64] * 4},
        "steps_total": 90, "last_step": 10, "started_at": time.time() - 100, "finished_at": None, **changes,
    }  # fmt: skip


@pytest.fixture
def report_job() -> Callable[..., Json]:
    return job_report


def make_plan(job: str, generation: int, failed: list[int], **changes: Any) -> Json:
    def way(strategy: str, seconds: float | None, reason: str) -> Json:
        return {
            "strategy": strategy, "feasible": seconds is not None, "reason": reason, "epoch": 10, "seconds": seconds,
            "steps_lost": 0, "cost_seconds": seconds, "parts": {"spawn": 0.2, "fetch": 0.1},
            "restores": [
                {"rank": failed[0], "node": "n0", "source": "peer_copy", "from_rank": 3, "from_nodes": ["n1"]}
            ],
        }  # fmt: skip

    ways = [way("peer_copy", 0.8, "a peer holds it"), way("disk_restart", None, "nothing on disk")]
    return {
        "id": uuid7(), "job": job, "generation": generation, "failed_ranks": failed, "alternatives": ways,
        "chosen": "peer_copy", "explanation": "The peer's copy is the cheapest.", **changes,
    }  # fmt: skip


@dataclass
class Job:
    """Speaks for one job; keeps count of its generation."""

    client: httpx.Client
    id: str = "demo-1"
    generation: int = 1
    sent: list[Json] = field(default_factory=list)

    def report(self, **changes: Any) -> httpx.Response:
        return self.client.put(f"/v1/jobs/{self.id}", json=job_report(generation=self.generation, **changes))

    def event(self, kind: str, *, rank: int | None = None, node: str | None = None, **data: Any) -> Json:
        return {
            "id": uuid7(), "time": time.time(), "kind": kind, "node": node, "device": None, "job": self.id,
            "rank": rank, "generation": self.generation, "data": data,
        }  # fmt: skip

    def send(self, *events: Json) -> None:
        self.sent.extend(events)
        answer = self.client.post("/v1/events", json={"items": list(events)})
        assert answer.status_code == 200, answer.text

    def kill(self, rank: int = 1) -> Json:
        event = self.event(
            "process_exit", rank=rank, node=f"n{rank // 2}", pid=100 + rank, signal="SIGKILL", expected=False
        )
        self.send(event)
        return event

    def plan(
        self, failed: list[int] | None = None, *, requested: bool = False, recovery: str = "", **changes: Any
    ) -> Json:
        plan = make_plan(self.id, self.generation + 1, failed or [1], **changes)
        event = self.event("recovery_planned", plan=plan, recovery=recovery or plan["id"], requested=requested)
        self.generation += 1
        self.send(event)
        return plan

    def recover(self, recovery: str, **data: Any) -> None:
        seconds = {"detect": 0.05, "spawn": 0.2, "fetch": 0.12, "regroup": 0.3}
        self.send(self.event("recovery_completed", recovery=recovery, seconds=seconds, steps_lost=0, epoch=10, **data))

    def verify(self, recovery: str, **data: Any) -> None:
        self.send(
            self.event(
                "recovery_verified", **{"recovery": recovery, "steps_committed": 2, "digest_match": True, **data}
            )
        )

    def incidents(self) -> list[Json]:
        found: list[Json] = self.client.get("/v1/incidents", params={"job": self.id}).json()["items"]
        return found

    def incident(self) -> Json:
        """The only incident, in detail."""
        (one,) = self.incidents()
        detail: Json = self.client.get(f"/v1/incidents/{one['id']}").json()
        return detail

    def wait_for(self, state: str, seconds: float = 60.0) -> Json:
        def there() -> Json | None:
            found = self.incidents()
            return self.incident() if len(found) == 1 and found[0]["state"] == state else None

        detail: Json = wait_until(there, seconds)
        return detail


@pytest.fixture
def job(service: Any) -> Job:
    made = Job(service.client())
    assert made.report().status_code == 200
    return made


@pytest.fixture
def job_of() -> Callable[[Any], Job]:
    """A job on a service that the test started itself."""

    def make(running: Any, **changes: Any) -> Job:
        made = Job(running.client(), **changes)
        assert made.report().status_code == 200
        return made

    return make
