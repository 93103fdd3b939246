"""How long a decision over all ways takes on a large cluster, and several jobs' shares against brute force."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from bench.lib_allocation import allocate
from bench.lib_monte_carlo import Kind, ettr, scattered
from bench.lib_planner_runs import DAYS, LLAMA_DAYS, LLAMA_INTERRUPTIONS, SEEDS
from bench.lib_prepare import prepare
from bench.report import Row
from mainstay.recovery.cost_inputs import (
    CostInputs,
    FailureOdds,
    FaultKind,
    ProgramCapability,
    RollbackCosts,
    SpareCapacity,
)
from mainstay.recovery.cost_model.allocation import Tenant
from mainstay.recovery.cost_model.ettr import SaveSchedule
from mainstay.recovery.cost_model.iteration import IterationShape
from mainstay.recovery.cost_model.redundancy import RedundancyScheme
from mainstay.recovery.cost_model.resources import ScalingSample
from mainstay.recovery.planner_input import MachineCosts
from mainstay.recovery.save_intervals import LOCAL_SHARE
from mainstay.recovery.simulate.failure_processes import estimate
from mainstay.recovery.strategies import WAYS
from mainstay.recovery.strategy_choice import choose_strategy

WARM_UP, COLD, CACHED = 20, 500, 20_000
PP = 16


def large() -> CostInputs:
    """2,048 nodes of eight GPUs, dp 128 x pp 16; a 175B model's layers; every ability, so that nothing is masked early.

    Costs are a GPU cluster's budget (``failure_cost.BUDGET``), failures Llama 3's per node: only the time counts here.
    """
    return CostInputs(
        shape=IterationShape(dp=128, pp=PP, micro_batches=64),
        slot_s=0.06,
        layers=96, state_bytes=8e10, fault=FaultKind.NODE, lost=(1,) + (0,) * (PP - 1), gpus=8,
        odds=FailureOdds(worker_rate=3.79e-3 / 86400.0, confidence=0.9, confirm_s=10.0),
        held=RollbackCosts(local_s=5.0, peer_s=5.0, parity_s=60.0, disk_s=900.0),
        pool=SpareCapacity(
            spares=4, least_stages=8,
            others=tuple(
                Tenant(name=f"job-{i}", workers=64, achieved=tuple(map(float, range(65))), transition_s=60.0)
                for i in range(5)
            ),
            schemes=tuple(RedundancyScheme(data=k, extra=2, every_s=60.0, save_s=0.1) for k in (1, 4, 8)),
            samples=tuple(ScalingSample(n, 1.0 + 5000.0 / n) for n in (512, 1024, 2048)),
        ),
        costs=MachineCosts(fence_s=2.0, spawn_warm_s=1.0, spawn_cold_s=90.0, regroup_s=10.5, net_Bps=2.5e10,
        copy_Bps=5e10),
        detect_s=2.65, warm_up_s=10.0, restart_s=120.0, able=frozenset(ProgramCapability),
    )  # fmt: skip


def _seconds(calls: int, once: Callable[[int], object]) -> NDArray[np.float64]:
    """Wall and processor seconds of each call: shape (calls, 2)."""
    took = np.empty((calls, 2))
    for i in range(calls):
        began = time.perf_counter(), time.thread_time()
        once(i)
        took[i] = time.perf_counter() - began[0], time.thread_time() - began[1]
    return took


def decision_rows() -> Iterator[Row]:
    """Cold: another stage and kind of failure each time. Cached: looked up among those made ahead."""
    one = large()
    faults = list(FaultKind)
    cases = [
        replace(one, fault=faults[i % len(faults)], lost=tuple(int(s == i % PP) for s in range(PP)))
        for i in range(COLD + WARM_UP)
    ]
    cold = _seconds(len(cases), lambda i: choose_strategy(cases[i]))[WARM_UP:]
    began = time.perf_counter()
    ready = prepare(one)
    made_s = time.perf_counter() - began
    keys = list(ready)
    cached = _seconds(CACHED, lambda i: ready[keys[i % len(keys)]])
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    for name, took, most_s, n in (("cold", cold, 5e-3, COLD), ("cached", cached, 1e-4, CACHED)):
        p99, cpu = np.quantile(took, 0.99, axis=0).tolist()
        yield Row(
            claim=f"A decision over {len(WAYS)} ways, 2,048 nodes, pp 16, dp 128, {name}: p99", figure=p99 * 1e3,
            unit="ms", target=f"< {most_s * 1e3:g}", holds=p99 < most_s, kind="live", n=n,
            note=f"median {float(np.median(took[:, 0])) * 1e3:.4f} ms, p99 of processor time {cpu * 1e3:.4f} ms, {load}"
                 + (f"; the {len(ready)} classes of single failures took {made_s * 1e3:.0f} ms" * (name == "cached")),
        )  # fmt: skip


SIZES = ((1, 16), (2, 16), (3, 16), (4, 12), (5, 9), (6, 8), (6, 16))
"""Jobs x workers; all shares of 6 x 16 are 74,613."""


def allocation_rows() -> Iterator[Row]:
    rng = random.Random(16)
    equal, tried = 0, []
    for count, workers in SIZES:
        jobs = [
            Tenant(
                name=f"job-{i}", workers=rng.randint(0, workers // count), weight=rng.choice((1.0, 3.0)),
                achieved=tuple(0.0 if k < least else k**0.9 for k in range(workers + 1)),
                transition_s=rng.uniform(0.0, 300.0), faulted=rng.random() < 0.3,
            )
            for i in range(count)
            for least in [rng.randint(0, 3)]
        ]  # fmt: skip
        run_s = rng.uniform(10.0, 10_000.0)
        gains = [[job.gain(k, run_s) for k in range(workers + 1)] for job in jobs]
        best = max(sum(row[k] for row, k in zip(gains, given, strict=True)) for given in _shares(count, workers))
        total, _ = allocate(jobs, workers, run_s)
        same = abs(total - best) <= 1e-9 * max(1.0, abs(best))
        equal += same
        tried.append(f"{count}x{workers} {'equal' if same else 'NOT equal'}")
    yield Row(
        claim="Several jobs (Unicron): shares by dynamic programming equal the best of all shares, up to 6 x 16",
        figure=f"{equal} of {len(SIZES)}", unit="", target="all", holds=equal == len(SIZES), kind="simulated",
        baseline="every allocation tried", n=len(SIZES), note=", ".join(tried),
    )  # fmt: skip


def _shares(count: int, workers: int) -> Iterator[tuple[int, ...]]:
    if count == 1:
        yield from ((k,) for k in range(workers + 1))
        return
    for first in range(workers + 1):
        yield from ((first, *more) for more in _shares(count - 1, workers - first))


LLAMA_NODES_LOST = 1.0 - LOCAL_SHARE
"""Of failures, that take a node with its memory; the others leave it fit to continue."""


CARRIED_OUT = tuple(way for way in WAYS if way.executed_as is not None)
"""Ways that a coordinator carries out."""


def llama_rows() -> Iterator[Row]:
    """The planner's own choices for 54 days of 16,384 GPUs: what it expects each failure to cost, over 200 seeds.

    Snapshots are made each minute, as in the fixed policies; a node's cold start takes 150 s, so that a restart from
    memory takes some three minutes; 1 % spares are 20 warm nodes. Only ways that a coordinator carries out.
    """
    cold = replace(large().costs, spawn_cold_s=150.0)
    held = RollbackCosts(local_s=30.0, peer_s=30.0, disk_s=900.0)
    one = replace(large(), costs=cold, held=held, odds=FailureOdds(worker_rate=3.79e-3 / 86400.0))
    pools = {
        "snapshots only": (SpareCapacity(spares=20), ">= 0.97", 0.97),
        "1 % spares": (SpareCapacity(standbys=20), ">= 0.99", 0.99),
    }
    for name, (pool, target, least) in pools.items():
        kinds, said = [], []
        for fault, share in ((FaultKind.NODE, LLAMA_NODES_LOST), (FaultKind.PROCESS, LOCAL_SHARE)):
            decision = choose_strategy(replace(one, pool=pool, fault=fault), CARRIED_OUT)
            option = next(option for option in decision.options if option.strategies == decision.chosen)
            repeated = option.parts.get("repeated", 0.0)
            down = (option.expected_s or 0.0) - repeated
            kinds.append(Kind(share, SaveSchedule(interval_s=2.0 * repeated, save_s=0.0, restart_s=down)))
            said.append(f"{fault}: {', then '.join(option.strategies)}, {down:.0f} s down, {repeated:.0f} s repeated")
        rng = np.random.default_rng(0)
        horizon = LLAMA_DAYS * DAYS
        kept = estimate(ettr(scattered(LLAMA_INTERRUPTIONS, horizon, SEEDS, rng), horizon, tuple(kinds), rng))
        yield Row(
            claim=f"Llama 3, 54 days, 466 interruptions, the planner's choices: {name}", figure=kept.mean, unit="ETTR",
            target=target, holds=kept.low >= least, kind="simulated", n=SEEDS,
            note=f"95 % of the mean {kept.low:.4f} to {kept.high:.4f}; {'; '.join(said)}; costs are a budget",
        )  # fmt: skip
