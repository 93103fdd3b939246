"""A job's own pace: slowdowns of the whole job, found and imagined, in uneven healthy runs and in published ones.

Healthy runs that swing, drift, pause, or get longer sequences are simulated (``bench.lib_pace_series``), and published
step times of Megatron runs are replayed (``MAINSTAY_TEST_DATA`` names the folder that holds step-times). Every limit of
the detector was chosen on the odd seeds. The figures below are of the even seeds, which no choice has seen. Of the
published runs, the earlier form of the detector was tuned on all, so their figures are in-sample.
Runs that are slow from their first step are compared with five healthy runs of their job: other stretches of the same
series, as much slower or faster as nodes and neighbors make them.
``python -m bench.job_pace [--json FILE]``
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from bench.lib_pace import CURVES, curve, pace_of, spacing
from bench.lib_pace_series import KINDS, STEP_SECONDS, draw
from bench.report import Row, publish, target_file
from mainstay.detectors.base import Floats, Samples
from mainstay.detectors.finding import Finding
from mainstay.detectors.job.earlier_runs import EarlierRuns, RunPace
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
EARLIER: Final = 5
SLOW_START: Final = (1.08, 1.10)
BETWEEN_RUNS: Final = (0.01, 0.02)
"""Deviation between healthy runs of a job."""
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


@dataclass(frozen=True, kw_only=True)
class Restarts:
    """The paces of several healthy runs of one job, and in how many samples that of the newest was known."""

    kind: str
    paces: Sequence[RunPace]
    samples: int

    def slower(self, rng: np.random.Generator, between: float, by: float) -> tuple[bool, bool]:
        """Whether the newest run, made slower, is reported, and whether it is 5 % slower than the run before."""
        factors = np.exp(rng.normal(0.0, between, len(self.paces)))
        factors[-1] *= by
        made = [replace(one, seconds=one.seconds * float(f)) for one, f in zip(self.paces, factors, strict=True)]
        reported = EarlierRuns(paces=tuple(made[:-1])).compare(made[-1]) is not None
        return reported, made[-1].seconds > 1.05 * made[-2].seconds


def restarts(kind: str, seed: int) -> Restarts:
    """Runs begin anywhere in a series, or near one another where its work grows."""
    rng, series = np.random.default_rng([SEED, 1, seed]), draw(kind, seed, 3000)
    paces, first = [], int(rng.integers(0, 1900))
    for _ in range(EARLIER + 1):
        start = first + int(rng.integers(0, 100)) if kind == "growing" else int(rng.integers(0, 2000))
        detector, samples = SlowdownDetector(), 0
        data = series.part(start, start + 200).samples()
        while detector.pace is None:
            detector.update(data.part(samples, samples + 1))
            samples += 1
        paces.append(detector.pace)
    return Restarts(kind=kind, paces=paces, samples=samples)


def start_rows() -> Iterator[Row]:
    """Slow starts found, and healthy runs reported, once a run of ``HEALTHY_STEPS``."""
    jobs = [restarts(kind, seed) for kind in KINDS for seed in INJECTED_SEEDS]
    days = len(jobs) * HEALTHY_STEPS * STEP_SECONDS / 86_400
    for between in BETWEEN_RUNS:
        rng = np.random.default_rng([SEED, int(1000 * between)])
        slow = [job.slower(rng, between, float(rng.uniform(*SLOW_START)))[0] for job in jobs]
        healthy = [job.slower(rng, between, 1.0) for job in jobs]
        delays = [float(job.samples) if found else _MISSED for job, found in zip(jobs, slow, strict=True)]
        missed = {k: sum(job.kind == k and not found for job, found in zip(jobs, slow, strict=True)) for k in KINDS}
        what = f"run 8-10% slow from its first step, runs differ by {between:.0%}"
        note = f"missed: {', '.join(f'{kind} {count}' for kind, count in missed.items())}"
        yield _delay_row(what, delays, "simulated", note, most=70, share=0.95)
        false, rule = (sum(one[of] for one in healthy) / days for of in (0, 1))
        yield Row(claim=f"healthy runs reported as slow from their start, runs differ by {between:.0%}", figure=false,
                  unit="/day", target="<= 0.1", holds=false <= 0.1, kind="simulated", n=len(jobs),
                  baseline=f"5 % slower than the run before: {rule:.3g} /day",
                  note=f"{EARLIER} earlier runs; a run lasts 6 h")  # fmt: skip


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


def _delay_row(
    what: str, delays: list[float], kind: str, note: str = "", *, most: int = 10, share: float = 0.99
) -> Row:
    p95 = float(np.quantile(delays, 0.95, method="inverted_cdf"))
    found = float(np.mean(np.isfinite(delays)))
    return Row(
        claim=f"{what} → finding, p95", figure=p95 if np.isfinite(p95) else None, unit="samples",
        target=f"<= {most}, found >= {100 * share:.0f} %", holds=p95 <= most and found >= share,
        kind="replayed" if kind == "replayed" else "simulated", n=len(delays),
        note="; ".join(filter(None, (f"found {found:.1%}, median {np.median(delays):.0f}", note))),
    )  # fmt: skip


def main() -> None:
    file = target_file("job_pace")
    publish("job_pace", [healthy_row(), injected_row(1.1), *start_rows(), *published_rows()], file)


if __name__ == "__main__":
    main()
