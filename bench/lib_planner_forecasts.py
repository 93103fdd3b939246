"""What the coordinator of 16,384 ranks pays for the plan of a loss."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bench.report import Row
from mainstay.recovery.planner import plan_recovery
from mainstay.recovery.planner_input import HeldSlot, PlannerInput, RankPlacement

DP, PP, TP, ON_A_NODE = 128, 16, 8, 8
SPARES = 20
"""Nodes with a standby for each place: 1 %."""
TRIED = 20


def situation() -> PlannerInput:
    """2,048 nodes of eight ranks; everybody holds the newest step in its tensors and in its slot."""
    ranks = tuple(
        RankPlacement(rank=r, dp=r // (PP * TP), pp=r // TP % PP, tp=r % TP, node=f"node-{r // ON_A_NODE}")
        for r in range(DP * PP * TP)
    )
    return PlannerInput(
        job="large", generation=3, step=41, step_seconds=10.0, ranks=ranks, state_bytes=(10**10,) * len(ranks),
        live=dict.fromkeys(range(len(ranks)), 41),
        slots=tuple(HeldSlot(node=place.node, rank=place.rank, epoch=41) for place in ranks),
        standbys={f"spare-{i}": ON_A_NODE for i in range(SPARES)},
    )  # fmt: skip


def rows() -> Iterator[Row]:
    now = situation()
    rng = random.Random(0)
    some = [now.ranks[rng.randrange(len(now.ranks))] for _ in range(TRIED)]
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    losses = {
        "rank": [replace(now, failed_ranks=(place.rank,)) for place in some],
        "node": [replace(now, lost_nodes=(place.node,)) for place in some],
    }
    for what, situations in losses.items():
        longest, cpu, median = _each(plan_recovery, situations)
        yield Row(
            claim=f"The plan of one {what}'s loss, 2,048 nodes x 8 ranks: median", figure=median * 1e3,
            unit="ms", target="<= 20", holds=median <= 0.02, kind="live", n=TRIED,
            note=f"p99 {longest * 1e3:.0f} ms, p99 of processor time {cpu * 1e3:.0f} ms, {load}",
        )  # fmt: skip


def _each(once: Callable[[Any], object], keys: Sequence[object]) -> tuple[float, float, float]:
    """Seconds: p99 of wall time, p99 of processor time, median of wall time."""
    took = np.empty((len(keys), 2))
    for i, key in enumerate(keys):
        began = time.perf_counter(), time.thread_time()
        once(key)
        took[i] = time.perf_counter() - began[0], time.thread_time() - began[1]
    wall, cpu = np.quantile(took, 0.99, axis=0).tolist()
    return wall, cpu, float(np.median(took[:, 0]))
