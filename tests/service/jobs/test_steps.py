"""Step records of a job, from frames on the wire to columns for a chart."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest

from mainstay.probes.frame import Axis, Frame, encode
from mainstay.probes.signals import SignalSource, catalog
from mainstay.service.jobs.live_views import step_times
from mainstay.service.telemetry.catalogs import compile_catalog
from mainstay.service.telemetry.check import check
from mainstay.service.telemetry.steps import StepStore

RANKS = catalog(SignalSource.RANK)


def step_frame(start: int, steps: int, ranks: int = 4, job: str = "demo-1") -> Frame:
    """Rank r takes r + 1 seconds a step; only the last knows the loss, which is the step number."""
    narrow = np.full((ranks, len(RANKS.narrow), steps), np.nan, "<f4")
    for rank in range(ranks):
        narrow[rank, RANKS.narrow.index("step_time_seconds")] = rank + 1
        narrow[rank, RANKS.narrow.index("compute_time_seconds")] = (rank + 1) / 2
    narrow[-1, RANKS.narrow.index("loss")] = np.arange(start, start + steps)
    wide = np.full((ranks, len(RANKS.wide), steps), int(time.time() * 1e9), "<i8")
    values, big = narrow.tobytes(), wide.tobytes()
    return Frame(
        version=1, subject=job, axis=Axis.STEP, stream="s", sequence=start, t0=float(start), dt=1.0,
        catalog=RANKS.digest, entities=tuple(str(r) for r in range(ranks)), samples=steps, values=values, wide=big,
        crc32=zlib.crc32(big, zlib.crc32(values)),
    )  # fmt: skip


@pytest.fixture
def store() -> StepStore:
    made = StepStore(depth=64)
    made.write(check(step_frame(1, 40), compile_catalog(RANKS)))
    return made


def test_columns_by_rank_and_step(store: StepStore) -> None:
    steps = step_times(store, "demo-1", start=10, stop=13, points=600)
    assert steps.steps == [10, 11, 12]
    assert steps.ranks == [0, 1, 2, 3]
    assert steps.step_time_seconds == [[float(rank + 1)] * 3 for rank in range(4)]
    assert steps.compute_time_seconds[3] == [2.0] * 3
    assert steps.loss == [10.0, 11.0, 12.0]


def test_thinned_by_a_stride(store: StepStore) -> None:
    steps = step_times(store, "demo-1", start=0, stop=None, points=10)
    assert len(steps.steps) <= 10
    assert len(set(np.diff(steps.steps))) == 1
    assert all(len(row) == len(steps.steps) for row in steps.step_time_seconds)


def test_an_unknown_job_has_no_steps(store: StepStore) -> None:
    assert step_times(store, "absent", start=0, stop=None, points=10).steps == []


def test_over_the_wire(service: Any, report_job: Callable[..., Any]) -> None:
    client: httpx.Client = service.client()
    client.put("/v1/jobs/demo-1", json=report_job())
    body = encode(step_frame(1, 5))
    sent = client.post("/v1/telemetry/frames", content=body, headers={"content-type": "application/msgpack"})
    assert sent.status_code == 204, sent.text
    steps = client.get("/v1/jobs/demo-1/steps", params={"from_step": 2, "to_step": 4}).json()
    assert steps["steps"] == [2, 3]
    assert steps["loss"] == [2.0, 3.0]


def test_losses_and_outages_lower_the_effective_ratio(service: Any, report_job: Callable[..., Any]) -> None:
    from mainstay.service.jobs.models import RecoveryRow

    client: httpx.Client = service.client()
    began = time.time() - 100
    client.put("/v1/jobs/demo-1", json=report_job(started_at=began, last_step=90))
    with service.services.database.session() as session:
        session.add(
            RecoveryRow(
                id="r1", job="demo-1", failed_at=began + 20, recovered_at=began + 30, failed_ranks=[1], parts={},
                outcome="recovered", steps_lost=10,
            )
        )  # fmt: skip
    job = client.get("/v1/jobs/demo-1").json()
    assert job["ettr"] == pytest.approx(0.9 * 0.9, abs=0.01)
    assert job["recoveries"] == 1
