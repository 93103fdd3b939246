"""The gate, live: how long a scheduler waits for the answer about 1,024 nodes, over real HTTP.

``python -m bench.admission [--json FILE]``. The service is a process of its own. Stored beforehand: a fleet of 2,048
nodes, a tenth of it with something amiss, and a job of 6,144 ranks on nodes that are not asked for. Beside it, in
turns: ``/healthz``, what the same machine needs for an answer that asks nothing. The detection loop runs once a minute
only: the bench sends no frames, and it would spend every second on 2,048 lost nodes.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np

from bench.report import Row, publish, target_file
from mainstay.service.common import migrate
from mainstay.service.common.db import Database
from mainstay.service.fleet.models import NodeRow
from mainstay.service.jobs.models import JobRow
from mainstay.service.validation.models import NodeVerdictRow

NODES: Final = 2048
FREE: Final = 1280
ASKED: Final = 1024
TIMES: Final = 400
LIMIT_MS: Final = 10.0
SETTLE_SECONDS: Final = 10.0
"""For the first pass of the detection loop."""


def fill(url: str, now: float) -> None:
    """A fleet as it is: most of it healthy and validated, some of it not."""
    database = Database(url)
    migrate.upgrade(database)
    draw = random.Random(5)
    with database.session() as session:
        for i in range(NODES):
            name, good = f"n{i:04}", draw.random() > 0.1
            state = "healthy" if good else draw.choice(["suspect", "draining", "quarantined", "unknown"])
            seen = {"first_seen_at": now, "last_seen_at": now + 86_400, "cohort": "h100", "gpus": 8}
            session.add(NodeRow(name=name, state=state, **seen))
            verdict = "pass" if good else draw.choice(["pass", "warn", "fail", "unknown"])
            at = now - draw.random() * 5e5
            session.add(NodeVerdictRow(node=name, verdict=verdict, power=1, suite="quick", validation_id="v", at=at))
        ranks = [_rank(r) for r in range(8 * (NODES - FREE))]
        places = {
            "topology": {"dp": len(ranks), "pp": 1, "tp": 1, "world_size": len(ranks), "ranks": ranks},
            "protection": {},
        }
        times = {"started_at": now, "last_seen_at": now, "finished_at": None}
        session.add(JobRow(id="big", name="big", state="running", generation=1, command="", **places, **times))
    database.close()


def _rank(rank: int) -> dict[str, Any]:
    node = f"n{FREE + rank // 8:04}"
    return {"rank": rank, "dp": rank, "pp": 0, "tp": 0, "node": node, "device": None, "pid": None, "state": "running"}


@contextmanager
def served(folder: Path, url: str) -> Iterator[httpx.Client]:
    """A service process on a free port."""
    command = [sys.executable, "-m", "mainstay", "serve", "--port", "0"]
    environment = os.environ | {
        "MAINSTAY_DATA_DIR": str(folder),
        "MAINSTAY_DATABASE_URL": url,
        "MAINSTAY_INCIDENTS__DETECTION_INTERVAL_SECONDS": "60",
    }
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        address = _address(folder / "log", process)
        token = (folder / "admin-token").read_text().strip()
        with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {token}"}, timeout=30) as client:
            yield client
    finally:
        process.terminate()
        process.wait(20)


def _address(log: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if found := re.search(r"http://127\.0\.0\.1:\d+", log.read_text()):
            return found.group()
        time.sleep(0.05)
    raise SystemExit(f"the service did not start:\n{log.read_text()[-2000:]}")


def measure(client: httpx.Client) -> dict[str, list[float]]:
    """Milliseconds of each question, asked in turns."""
    draw = random.Random(7)
    names = [f"n{i:04}" for i in range(FREE)]

    def request_with(**changes: Any) -> Callable[[], httpx.Response]:
        nodes = draw.sample(names, ASKED)
        return lambda: client.post("/v1/admission", json={"job": "llm", "nodes": nodes, **changes})

    questions: dict[str, Callable[[], Callable[[], httpx.Response]]] = {
        "plain": request_with,
        "with GPU counts and 32 spares": lambda: request_with(gpus_per_node=8, spares=32),
        "healthz": lambda: lambda: client.get("/healthz"),
    }
    taken: dict[str, list[float]] = {name: [] for name in questions}
    for turn in range(TIMES + 20):
        for name, make in questions.items():
            ask = make()
            begun = time.perf_counter()
            answer = ask()
            seconds = time.perf_counter() - begun
            answer.raise_for_status()
            if turn >= 20:
                taken[name].append(1e3 * seconds)
    return taken


def rows(taken: dict[str, list[float]], store: str) -> list[Row]:
    """The slowest hundredth of each question, in milliseconds.

    Beside it the empty answer of the same run, and how many times as long the question took: what a busy machine adds,
    it adds to both.
    """
    floor, floor_high = np.percentile(taken["healthz"], [50, 99])
    made = []
    for name in ("plain", "with GPU counts and 32 spares"):
        p50, p99 = np.percentile(taken[name], [50, 99])
        made.append(
            Row(
                claim=f"admission of {ASKED} nodes, {name}, {store}: p99",
                figure=float(p99),
                unit="ms",
                target=f"<= {LIMIT_MS:g}",
                holds=bool(p99 <= LIMIT_MS),
                kind="live",
                baseline=f"healthz p50 {floor:.2f} ms, p99 {floor_high:.2f} ms",
                n=len(taken[name]),
                note=f"p50 {p50:.2f} ms, {p50 / floor:.1f} times healthz (p99 {p99 / floor_high:.1f} times);"
                f" fleet of {NODES}, one in ten with something amiss",
            )
        )
    return made


def main() -> None:
    file = target_file("admission")
    folder = Path(tempfile.mkdtemp(prefix="mainstay-bench-admission-"))
    try:
        url = f"sqlite:///{folder / 'store.db'}"
        fill(url, time.time())
        with served(folder, url) as client:
            time.sleep(SETTLE_SECONDS)
            publish("admission", rows(measure(client), "SQLite"), file)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
