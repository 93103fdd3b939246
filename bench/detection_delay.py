"""SIGKILL of a rank → incident in the API, and → next committed step: live, the demo job, one kill after another.

Everything runs on this machine: service with embedded defaults, two launchers with two ranks each, real SIGKILLs.
``python -m bench.detection_delay [--json FILE]``
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import tempfile
import time
from pathlib import Path

from bench.report import Row, publish, target_file
from mainstay.service.demo.client import Json
from mainstay.service.demo.stack import JOB, Stack, free_port

KILLS = 20
STEPS = 4000
"""More than the kills need; the job is ended when they are through."""
SEED = 11


def p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20, method="inclusive")[-1] if len(values) > 1 else values[0]


def incident_after(stack: Stack, killed_at: float) -> Json | None:
    found = [i for i in stack.api.get("/incidents", job=JOB)["items"] if i["opened_at"] >= killed_at]
    return found[0] if found else None


def timeline_entry(stack: Stack, incident: str, kind: str) -> Json | None:
    entries: list[Json] = stack.api.get(f"/incidents/{incident}")["timeline"]
    return next((entry for entry in entries if entry["kind"] == kind), None)


def one_kill(stack: Stack, rank: int) -> dict[str, float]:
    """Kill ``rank``; seconds from the SIGKILL until each thing happened."""
    before: dict[int, int] = {r["rank"]: r["pid"] for r in stack.api.get(f"/jobs/{JOB}")["topology"]["ranks"]}
    killed_at = time.time()
    os.kill(before[rank], signal.SIGKILL)
    stack.until(lambda: incident_after(stack, killed_at) is not None, 30.0, "an incident", vital=("service",))
    visible = time.time() - killed_at
    incident = incident_after(stack, killed_at)
    assert incident is not None
    stack.until(lambda: timeline_entry(stack, incident["id"], "recovered") is not None, 60.0, "the recovery")
    recovered = timeline_entry(stack, incident["id"], "recovered")
    assert recovered is not None
    stack.until(lambda: timeline_entry(stack, incident["id"], "verified") is not None, 60.0, "the verification")
    after = {r["rank"]: r["pid"] for r in stack.api.get(f"/jobs/{JOB}")["topology"]["ranks"]}
    return {
        "opened": incident["opened_at"] - killed_at,
        "visible": visible,
        "next_step": recovered["time"] - killed_at,
        "steps_lost": recovered["data"]["steps_lost"],
        "survivors_restarted": sum(before[r] != after[r] for r in before if r != rank),
    }


def measure(kills: int, directory: Path) -> list[dict[str, float]]:
    stack = Stack(directory, free_port())
    chance = random.Random(SEED)
    try:
        stack.start_service()
        stack.start_job(steps=STEPS, seed=SEED, save=directory / "job", options={"--max-restarts": kills + 1})
        stack.until(lambda: _last_step(stack) >= 10, 120.0, "ten steps")
        rows = []
        for _ in range(kills):
            step = _last_step(stack)
            stack.until(lambda at=step: _last_step(stack) >= at + 3, 60.0, "three more steps")  # type: ignore[misc]
            time.sleep(chance.uniform(0.0, 0.3))  # anywhere within a step
            rows.append(one_kill(stack, chance.randrange(4)))
        return rows
    finally:
        stack.close()


def _last_step(stack: Stack) -> int:
    jobs = {job["id"]: job for job in stack.api.get("/jobs")["items"]}
    return int((jobs.get(JOB) or {}).get("last_step") or 0)


def report(rows: list[dict[str, float]]) -> list[Row]:
    n = len(rows)
    opened, visible, step = ([row[name] for row in rows] for name in ("opened", "visible", "next_step"))
    restarted = int(sum(row["survivors_restarted"] for row in rows))
    note = "2 cores, 4 gloo ranks as 2 nodes, service and probe on the same machine"
    return [
        Row(claim="SIGKILL of a rank → incident opened, p95", figure=p95(opened), unit="s", target="<= 1",
            holds=p95(opened) <= 1, kind="live", n=n, note=f"median {statistics.median(opened):.3f} s; {note}"),
        Row(claim="SIGKILL of a rank → incident visible in the API, p95", figure=p95(visible), unit="s", target="<= 1",
            holds=p95(visible) <= 1, kind="live", n=n, note=f"median {statistics.median(visible):.3f} s"),
        Row(claim="SIGKILL → next committed step, p95", figure=p95(step), unit="s", target="<= 3",
            holds=p95(step) <= 3, kind="live", n=n, note=f"median {statistics.median(step):.3f} s; {note}"),
        Row(claim="survivors restarted", figure=restarted, unit="processes", target="0", holds=restarted == 0,
            kind="live", n=n),
        Row(claim="steps lost a kill, worst", figure=max(r["steps_lost"] for r in rows), unit="steps", target="<= 1",
            holds=max(r["steps_lost"] for r in rows) <= 1, kind="live", n=n),
    ]  # fmt: skip


def main() -> None:
    file = target_file("detection_delay")
    with tempfile.TemporaryDirectory(prefix="mainstay-bench-") as directory:
        rows = measure(KILLS, Path(directory))
    publish("detection_delay", report(rows), file)


if __name__ == "__main__":
    main()
