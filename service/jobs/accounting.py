"""Effective training time: how much of a job's wall time moved training forward."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """One stretch in which the job did not train, and the steps it had to repeat afterwards."""

    failed_at: float
    recovered_at: float | None
    """None while it lasts."""
    steps_lost: int = 0


def ettr(*, started_at: float, until: float, last_step: int | None, outages: Iterable[Outage]) -> float | None:
    """Productive seconds over wall seconds, 0..1; None where it cannot be known.

    ``wall = until - started_at``; ``up = wall - (union of the outages within it)``. Of the steps executed while up,
    ``done = last_step`` count (steps are numbered from 1) and ``lost = sum(steps_lost)`` were thrown away and repeated,
    each taking the same time on average, so

        ratio = up / wall * done / (done + lost)

    This is the effective training time of "The Llama 3 Herd of Models" (2024, 3.3.4): useful training time over
    elapsed time. Start-up counts as productive: the service cannot see when a script's own set-up ends.
    """
    wall = until - started_at
    known = list(outages)
    lost = sum(outage.steps_lost for outage in known)
    if wall <= 0 or (lost and last_step is None):
        return None
    down = _union(known, started_at, until)
    kept = 1.0 if not lost else (last_step or 0) / ((last_step or 0) + lost)
    return max(0.0, min(1.0, (wall - down) / wall * kept))


def _union(outages: list[Outage], start: float, end: float) -> float:
    """Seconds of ``[start, end]`` covered by at least one outage."""
    total, reached = 0.0, start
    spans = sorted((o.failed_at, end if o.recovered_at is None else o.recovered_at) for o in outages)
    for begin, stop in spans:
        begin, stop = max(begin, reached), min(stop, end)  # noqa: PLW2901 - clipping the span is the algorithm
        if stop > begin:
            total += stop - begin
            reached = stop
    return total
