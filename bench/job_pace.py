"""A job's own pace: slowdowns of the whole job, found and imagined, in uneven healthy runs and in published ones.

Healthy runs that swing, drift, pause, or get longer sequences are simulated (``bench.lib_pace_series``), and published
step times of Megatron runs are replayed (``MAINSTAY_TEST_DATA`` names the folder that holds step-times). Every limit of
the detector was chosen on the odd seeds. The figures below are of the even seeds, which no choice has seen. Of the
published runs, the earlier form of the detector was tuned on all, so their figures are in-sample.
``python -m bench.job_pace [--json FILE]``
"""

from __future__ import annotations

from typing import Final

import numpy as np

from bench.lib_pace import CURVES, curve, pace_of, spacing
from bench.lib_pace_series import KINDS, STEP_SECONDS, draw
from bench.report import Row, publish, target_file
from mainstay.detectors.base import Floats, Samples
from mainstay.detectors.finding import Finding
from mainstay.detectors.job.slowdown import SlowdownDetector
from mainstay.probes.core_types import Severity

SEED: Final = 3
HEALTHY_SEEDS: Final = range(0, 12, 2)
HEALTHY_STEPS: Final = 5400
INJECTED_SEEDS: Final = range(0, 100, 2)
INJECTIONS: Final = 25
"""A published run; a hundred in all."""
BEFORE, AFTER = 100, 40
UNICRON: Final = 1.1
_MISSED = float("inf")


def slowdowns(data: Samples) -> list[Finding]:
    """Findings that hold, without information, which opens no incident."""
    return [f for f in SlowdownDetector().update(data) if f.active and f.severity is not Severity.INFO]


def delay(data: Samples, since: int) -> float:
    """Samples from the injection to the finding, the first slow one counted as one."""
    at = [int(np.searchsorted(data.t, f.time)) - since + 1 for f in slowdowns(data)]
    return min((float(samples) for samples in at if samples > 0), default=_MISSED)


def healthy_row() -> Row:
    false = {
        kind: sum(len(slowdowns(draw(kind, seed, HEALTHY_STEPS).samples())) for seed in HEALTHY_SEEDS) for kind in KINDS
    }
    steps = len(KINDS) * len(HEALTHY_SEEDS) * HEALTHY_STEPS
    days = steps * STEP_SECONDS / 86_400
    rate = sum(false.values()) / days
    return Row(claim="false job slowdowns a day of uneven healthy runs", figure=rate, unit="/day", target="<= 0.1",
               holds=rate <= 0.1, kind="simulated", n=steps,
               note=f"{days:.1f} days; {', '.join(f'{kind} {count}' for kind, count in false.items())}")  # fmt: skip


def injected_row(by: float) -> Row:
    """Into the same kinds of run, at any point of their swings."""
    delays: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for kind in KINDS:
        for seed in INJECTED_SEEDS:
            rng = np.random.default_rng([SEED, seed])
            before, start = int(rng.integers(60, 400)), int(rng.integers(0, 2000))
            part = draw(kind, seed, 3000).part(start, start + before + AFTER)
            delays[kind].append(delay(part.slower(before, by).samples(), before))
    missed = ", ".join(f"{kind} {sum(np.isinf(each))}" for kind, each in delays.items())
    together = [one for each in delays.values() for one in each]
    return _delay_row(f"uneven run {by - 1:.0%} slower", together, "simulated", f"missed in {AFTER} samples: {missed}")


def published_rows() -> list[Row]:
    times = {name: curve(name, "iteration_time") for name in CURVES}
    found = {name: len(slowdowns(pace_of(seconds))) for name, seconds in times.items()}
    days = sum(float(seconds.sum()) * spacing(name) / 86_400 for name, seconds in times.items())
    rate = sum(found.values()) / days
    peer = sum(
        int(np.count_nonzero(seconds[20:] > UNICRON * (np.cumsum(seconds)[:-1] / np.arange(1, len(seconds)))[19:]))
        for seconds in times.values()
    )
    false = Row(
        claim="false job slowdowns a day of published step times", figure=rate, unit="/day", target="<= 0.1",
        holds=rate <= 0.1, kind="replayed", n=sum(map(len, times.values())),
        baseline=f"one step above 1.1 x running mean (Unicron): {peer / days:.3g} /day",
        note=f"{days:.2f} days if unlogged steps equal logged ones",
    )  # fmt: skip
    return [false, *(_published_injections(times, by) for by in (1.1, 1.2))]


def _published_injections(times: dict[str, Floats], by: float) -> Row:
    rng, delays = np.random.default_rng(SEED), []
    for seconds in times.values():
        for _ in range(INJECTIONS):
            at = int(rng.integers(60, len(seconds) - AFTER))
            start = max(0, at - BEFORE)
            part = seconds[start : at + AFTER].copy()
            if _moves(part):
                continue  # a stretch that is slow already, or ends being so: what is added is not what is seen
            part[at - start :] *= by
            delays.append(delay(pace_of(part), at - start))
    return _delay_row(f"published run {by - 1:.0%} slower", delays, "replayed")


def _moves(seconds: Floats) -> bool:
    """Whether the run's own pace changes by four per cent for twenty samples."""
    levels = [float(np.median(seconds[k : k + 20])) for k in range(0, len(seconds) - 19, 5)]
    return max(levels) > 1.04 * min(levels)


def _delay_row(what: str, delays: list[float], kind: str, note: str = "") -> Row:
    p95 = float(np.quantile(delays, 0.95, method="inverted_cdf"))
    share = float(np.mean(np.isfinite(delays)))
    return Row(
        claim=f"{what} → finding, p95", figure=p95 if np.isfinite(p95) else None, unit="samples",
        target="<= 10, found >= 99 %", holds=p95 <= 10 and share >= 0.99,
        kind="replayed" if kind == "replayed" else "simulated", n=len(delays),
        note="; ".join(filter(None, (f"found {share:.1%}, median {np.median(delays):.0f}", note))),
    )  # fmt: skip


def main() -> None:
    file = target_file("job_pace")
    publish("job_pace", [healthy_row(), injected_row(1.1), *published_rows()], file)


if __name__ == "__main__":
    main()
