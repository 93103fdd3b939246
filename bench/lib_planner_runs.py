"""Long runs with random failures: Monte Carlo against Daly's exact formula, and the 54 days of Llama 3."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from bench.lib_monte_carlo import Kind, ettr, scattered
from bench.report import Row
from mainstay.recovery.cost_model.ettr import SaveSchedule, best_interval, exact_ettr
from mainstay.recovery.simulate.failure_processes import Estimate, estimate, exponential

SEEDS = 200
DAYS = 86400.0
LLAMA_DAYS, LLAMA_INTERRUPTIONS = 54, 466
"""The Llama 3 report, section 3.3.4: 419 unexpected and 47 planned interruptions of 16,384 GPUs."""
SETTINGS = ((11135.0, 60.0, 900.0), (11135.0, 5.0, 900.0), (3600.0, 30.0, 300.0), (1800.0, 30.0, 300.0))
"""MTBF, save and restart in seconds; 11,135 s is Llama 3's between unexpected interruptions."""


def daly_rows() -> Iterator[Row]:
    """Four settings, from a healthy cluster to a bad one; 2,000 mtbf a run: the truncated end weighs nothing."""
    errors = {}
    for mtbf, save, restart in SETTINGS:
        cadence = SaveSchedule(interval_s=best_interval(save, mtbf), save_s=save, restart_s=restart)
        rng = np.random.default_rng(int(mtbf))
        horizon = 2000.0 * mtbf
        kept = ettr(exponential(mtbf, horizon, SEEDS, rng), horizon, (Kind(1.0, cadence),), rng)
        exact = exact_ettr(cadence, mtbf)
        errors[mtbf, save, restart] = (estimate(kept), exact)
    worst = max(abs(found.mean / exact - 1.0) for found, exact in errors.values())
    yield Row(
        claim="Daly (FGCS 2006): Monte Carlo against the exact formula, worst of four settings", figure=worst * 100.0,
        unit="%", target="< 0.3", holds=worst < 0.003, kind="simulated", n=SEEDS * len(SETTINGS),
        note="; ".join(f"mtbf {m:.0f} s, save {c:.0f} s, restart {r:.0f} s: {found.mean:.4f}, exact {exact:.4f}"
                       for (m, c, r), (found, exact) in errors.items()),
    )  # fmt: skip


def _policy(kinds: tuple[Kind, ...]) -> tuple[Estimate, float]:
    """All seeds of the 54 days, and the seconds that they took."""
    rng = np.random.default_rng(0)
    began = time.perf_counter()
    horizon = LLAMA_DAYS * DAYS
    kept = ettr(scattered(LLAMA_INTERRUPTIONS, horizon, SEEDS, rng), horizon, kinds, rng)
    return estimate(kept), time.perf_counter() - began


def _only(interval_s: float, restart_s: float) -> tuple[Kind, ...]:
    return (Kind(1.0, SaveSchedule(interval_s=interval_s, save_s=0.0, restart_s=restart_s)),)


POLICIES: dict[str, tuple[tuple[Kind, ...], str, float, float]] = {
    "16.7 min lost a time (checkpoint each 20 min, restart 6.7)": (_only(1200.0, 402.0), "0.90 +- 0.005", 0.895, 0.905),
    "checkpoint each 30 min, restart 10 min": (_only(1800.0, 600.0), "", 0.0, 1.0),
    "checkpoint each 20 min, 79 % node swap 15 min, 21 % soft 5 min": (
        (Kind(0.79, SaveSchedule(interval_s=1200.0, save_s=0.0, restart_s=900.0)),
         Kind(0.21, SaveSchedule(interval_s=1200.0, save_s=0.0, restart_s=300.0))), "", 0.0, 1.0),
    "snapshots alone: each minute, restart 3 min": (_only(60.0, 180.0), ">= 0.97", 0.97, 1.0),
    "spares: live swap in 20 s, half a step of 4 s": (_only(4.0, 20.0), ">= 0.99", 0.99, 1.0),
}  # fmt: skip
"""Name -> kinds of failure, target, and its bounds. That saving costs nothing is the replay's assumption, not ours."""


def llama_rows() -> Iterator[Row]:
    slowest = 0.0
    for name, (kinds, target, low, high) in POLICIES.items():
        found, took = _policy(kinds)
        slowest = max(slowest, took)
        yield Row(
            claim=f"Llama 3 (section 3.3.4), 54 days, 466 interruptions: {name}", figure=found.mean, unit="ETTR",
            target=target or "-", holds=low <= found.mean <= high if target else None, kind="simulated", n=SEEDS,
            note=f"95 % of the mean {found.low:.4f} to {found.high:.4f}, between seeds +- {found.spread:.4f}; a "
                 "failure during a restart repeats it, so a loss never exceeds its gap",
        )  # fmt: skip
    yield Row(
        claim="54 days, all 200 seeds, the slowest policy", figure=slowest, unit="s", target="< 1", holds=slowest < 1.0,
        kind="simulated", n=len(POLICIES),
    )  # fmt: skip
