"""Responses of the service about a run of 16 ranks on four nodes.

Rank 5 is slow, rank 9 is behind the others in its pipeline, rank 3 sends late.
"""

from __future__ import annotations

import json
import math
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import Page, Route

from tests.web.job_timeline import JOB

SLOW, BEHIND, LATE = 5, 9, 3
STEPS = range(1000, 1120)
KINDS = ["world", "dp", "pp", "tp"]


def topology(ranks: int = 16, pp: int = 2, per_node: int = 4) -> dict[str, Any]:
    places = [
        {
            "rank": r, "dp": r // pp, "pp": r % pp, "tp": 0,
            "node": f"node-{r // per_node:03d}", "device": None, "pid": 100 + r, "state": "running",
        }
        for r in range(ranks)
    ]  # fmt: skip
    return {"dp": ranks // pp, "pp": pp, "tp": 1, "world_size": ranks, "ranks": places}


def _compute(rank: int, step: int) -> float:
    """Stage 1 takes 1.5 times as long, with a noise of 1%. The slow rank is 20% slower from step 1060."""
    usual = (1.0 + 0.5 * (rank % 2)) * (1 + 0.01 * math.sin(12.9 * rank + 7.1 * step))
    return usual * (1.2 if rank == SLOW and step >= 1060 else 1.0)


def signals(names: list[str], ranks: int = 16) -> dict[str, Any]:
    def table(name: str) -> list[list[float | None]]:
        if name == "compute_time_seconds":
            return [[_compute(r, s) for s in STEPS] for r in range(ranks)]
        if name == "step_time_seconds":
            return [[2.0 for _ in STEPS] for _ in range(ranks)]
        if name == "loss":
            return [[3 - s / 1000 if r % 2 else None for s in STEPS] for r in range(ranks)]
        if name == "gradient_norm":
            return [[6.0 if s == 1080 else 1.0 for s in STEPS] for r in range(ranks)]
        return [[None for _ in STEPS] for _ in range(ranks)]

    return {"steps": list(STEPS), "ranks": list(range(ranks)), "signals": {name: table(name) for name in names}}


def progress(state: str = "hung", ranks: int = 16, age: float = 0.5) -> dict[str, Any]:
    """Rank BEHIND has not started its group's last pipeline call; all other ranks wait in theirs."""
    rows = [
        {
            "rank": r, "node": f"node-{r // 4:03d}", "step": 1119, "phase": 0,
            "in_collective_seconds": 0.0 if r == BEHIND else 12.0, "age_seconds": 6.5 if r == BEHIND else 0.4,
            "enqueued": {"world": 50, "dp": 300, "pp": 899 if r == BEHIND else 900, "tp": 0},
            "completed": {"world": 50, "dp": 300, "pp": 898 if r == BEHIND else 899, "tp": 0},
        }
        for r in range(ranks)
    ]  # fmt: skip
    known = state != "unknown"
    return {
        "time": time.time() - age, "state": state, "quiet_seconds": 12.4 if known else None,
        "limit_seconds": 8.9 if known else None, "phase": 0 if known else None, "kinds": KINDS,
        "ranks": rows if known else [], "omitted": 0,
    }  # fmt: skip


def pairs(ranks: int = 16) -> dict[str, Any]:
    """Return a ring of small transfers and one of large ones; transfers of LATE take twice as long."""
    seconds: list[list[float | None]] = [[None] * ranks for _ in range(ranks)]
    sizes: list[list[float | None]] = [[None] * ranks for _ in range(ranks)]
    for r in range(ranks):
        for hop, size, took in ((1, 1 << 20, 0.002), (2, 1 << 26, 0.04)):
            seconds[r][(r + hop) % ranks] = took * (2.0 if r == LATE else 1.0 + 0.001 * (r % 7))
            sizes[r][(r + hop) % ranks] = float(size)
    return {"first": 1100, "last": 1119, "ranks": list(range(ranks)), "seconds": seconds, "bytes": sizes}


def detectors() -> dict[str, Any]:
    def status(name: str, state: str, reason: str = "", **numbers: float) -> dict[str, Any]:
        return {"name": name, "state": state, "reason": reason, "numbers": numbers}

    return {
        "detectors": [
            status("hang", "active", limit_seconds=8.9),
            status("straggler", "abstaining", "Too noisy: 9.4% of at most 6%.", noise=0.094),
            status("slowdown", "learning", "It has seen 41 of 64 steps.", steps=41),
            status("digests", "idle", "No digest was reported."),
        ]
    }


def finding(
    kind: str, summary: str, *, rank: int | None = None, peer: int | None = None, **more: Any
) -> dict[str, Any]:
    return {
        "id": f"0190a0a0-0000-7000-8000-{abs(hash((kind, rank))) % 10**12:012d}",
        "kind": kind, "entity": {"node": None, "device": None, "job": JOB, "rank": rank, "peer": peer},
        "time": time.time() - 30, "severity": "warning", "detector": "test", "confidence": 0.97,
        "evidence": {"summary": summary, "numbers": more.pop("numbers", {}), "series": more.pop("series", [])},
        "active": True, "recommended_action": "none", "cause": None, "event": None, "incident": None,
        "cleared_at": None, **more,
    }  # fmt: skip


def findings() -> list[dict[str, Any]]:
    return [
        finding("straggler", "Rank 5 computes 1.20 × as long as its peers.", rank=SLOW, numbers={"step": 1066}),
        finding(
            "congestion", "Transfers from rank 3 to rank 4 take 2 × as long.", rank=LATE, peer=4, numbers={"step": 1100}
        ),
        finding("stage_imbalance", "Stage 1 computes 1.5 times as long.", numbers={"excess_ratio": 0.5}),
        finding("gc_jitter", "An old one.", active=False),
    ]


def answer(page: Page, what: str, body: dict[str, Any], status: int = 200) -> None:
    """Replace one response about the job."""
    page.route(
        f"**/v1/jobs/{JOB}/{what}*",
        lambda route: route.fulfill(status=status, content_type="application/json", body=json.dumps(body)),
    )


def serve(page: Page, ranks: int = 16) -> None:
    """Replace the job by one of 16 ranks or more, with its analysis; other responses come from the service."""

    def job(route: Route) -> None:
        response = route.fetch()
        body = response.json()
        per_node = 4 if ranks <= 16 else 8
        route.fulfill(response=response, json={**body, "topology": topology(ranks, per_node=per_node)})

    def requested(route: Route) -> None:
        names = parse_qs(urlsplit(route.request.url).query)["names"][0].split(",")
        route.fulfill(json=signals(names, ranks))

    page.route(f"**/v1/jobs/{JOB}", job)
    page.route(f"**/v1/jobs/{JOB}/signals*", requested)
    page.route("**/v1/findings*", lambda route: route.fulfill(json={"items": findings(), "next_cursor": None}))
    answer(page, "progress", progress(ranks=ranks))
    answer(page, "transfers", pairs(ranks))
    answer(page, "detectors", detectors())
