"""A job as its coordinator reports it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest


def job_report(**changes: Any) -> dict[str, Any]:
    ranks = [
        {"rank": r, "dp": r // 2, "pp": r % 2, "tp": 0, "node": "n1", "device": None, "pid": None, "state": "running"}
        for r in range(4)
    ]
    return {
        "name": "demo", "state": "running", "generation": 1, "command": "train.py",
        "topology": {"dp": 2, "pp": 2, "tp": 1, "world_size": 4, "ranks": ranks},
        "protection": {"slots": 2, "parity_every": None, "parity_group": None, "disk_every": None, "state_bytes": []},
        "steps_total": 90, "last_step": 10, "started_at": time.time() - 100, "finished_at": None, **changes,
    }  # fmt: skip


@pytest.fixture
def report_job() -> Callable[..., dict[str, Any]]:
    return job_report
