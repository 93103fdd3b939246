"""Step records of a job as columns for a chart."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mainstay.service.jobs.schemas import StepsRead
from mainstay.service.telemetry.steps import StepStore, StepWindow


def read(store: StepStore, job: str, *, start: int, stop: int | None, points: int) -> StepsRead:
    """Steps ``start`` up to but not including ``stop``, thinned by a stride to at most ``points``."""
    window = store.window(job, start, stop, points=points)
    return StepsRead(
        steps=[int(step) for step in window.steps],
        ranks=list(range(len(window.values))),
        step_time_seconds=[_nullable(row) for row in window.signal("step_time_seconds")],
        compute_time_seconds=[_nullable(row) for row in window.signal("compute_time_seconds")],
        loss=_nullable(_loss(window)),
    )


def _loss(window: StepWindow) -> NDArray[np.float64]:
    """The mean over the ranks that know it (those of the last stage); NaN where none does."""
    loss = window.signal("loss").astype(np.float64)
    known = np.isfinite(loss)
    total = np.where(known, loss, 0.0).sum(axis=0)
    count = known.sum(axis=0)
    mean: NDArray[np.float64] = np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)
    return mean


def _nullable(row: NDArray[Any]) -> list[float | None]:
    # Six digits: float32 holds no more, and a chart shows fewer.
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in row.tolist()]
