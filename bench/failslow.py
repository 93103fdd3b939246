"""Compute fail-slow: how soon the slow rank is named, how often the right one; healthy imbalance is not blamed.

Simulated jobs with noise of the order of a real balanced job's, and two real traces (``straggler-traces``: SE with
sequences of varying length, ST with a slow last stage, both healthy) with slowdowns put in, and healthy variants.
A delay counts steps from the first slow one, that one included; a rank never named counts as infinite.
``python -m bench.failslow [--json FILE]``
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from bench import lib_failslow as lib
from bench.lib_failslow import DIRTY, Outcome, World
from bench.report import Row, publish, target_file
from mainstay.detectors.base import Samples
from mainstay.detectors.straggler.config import StragglerConfig
from mainstay.detectors.straggler.detector import StragglerDetector

WARM, HORIZON = 30, 40
"""Healthy steps before the fault, and steps within which it must be named to count as found."""
Make = Callable[[np.random.Generator], Samples]


def percentile(values: Sequence[float], q: float) -> float:
    """The smallest value that at least q per cent do not exceed: exact with infinities."""
    return float(np.percentile(np.array(values), q, method="inverted_cdf"))


def p95(outcomes: Sequence[Outcome]) -> float:
    return percentile([o.delay for o in outcomes], 95)


def recall(outcomes: Sequence[Outcome]) -> float:
    return float(np.mean([np.isfinite(o.delay) for o in outcomes]))


def first_right(outcomes: Sequence[Outcome]) -> float:
    return float(np.mean([o.first_right for o in outcomes]))


def about(outcomes: Sequence[Outcome]) -> str:
    return (
        f"p50 {percentile([o.delay for o in outcomes], 50):.0f}, recall {recall(outcomes):.1%}, right rank first "
        f"{first_right(outcomes):.1%}, other ranks blamed {sum(o.others for o in outcomes)}"
    )


class Tally:
    """Outcomes by size of the slowdown, over several jobs; and blame before any fault."""

    def __init__(self) -> None:
        self.by: dict[float, list[Outcome]] = defaultdict(list)
        self.false = 0

    def run(
        self,
        seed: Sequence[int],
        make: Make,
        factors: Sequence[float],
        *,
        jobs: int,
        each: int,
        shape: lib.Shape = lib.step,
    ) -> Tally:
        for job in range(jobs):
            rng = np.random.default_rng([*seed, job])
            data = make(rng)
            injections = [([lib.healthy_row(rng, data)], by, shape) for by in factors for _ in range(each)]
            outcomes, false = lib.trials(data, injections, WARM)
            self.false += false
            for (_, by, _), outcome in zip(injections, outcomes, strict=True):
                self.by[by].append(outcome)
        return self

    def outcomes_at(self, *factors: float) -> list[Outcome]:
        return [o for by in factors for o in self.by[by]]

    @property
    def all(self) -> list[Outcome]:
        return self.outcomes_at(*self.by)


def delay_row(
    claim: str, outcomes: Sequence[Outcome], limit: int | None, *, kind: str = "simulated", note: str = ""
) -> Row:
    figure = p95(outcomes)
    target = "-" if limit is None else f"<= {limit}"
    return Row(
        claim=claim, figure=figure if np.isfinite(figure) else "never", unit="steps p95", target=target,
        holds=None if limit is None else figure <= limit, kind=kind, n=len(outcomes),  # type: ignore[arg-type]
        note="; ".join(filter(None, (about(outcomes), note))),
    )  # fmt: skip


def share_row(claim: str, figure: float, least: float, n: int, *, kind: str = "simulated", note: str = "") -> Row:
    return Row(
        claim=claim, figure=round(100 * figure, 2), unit="%", target=f">= {100 * least:g} %", holds=figure >= least,
        kind=kind, n=n, note=note,  # type: ignore[arg-type]
    )  # fmt: skip


def balanced_job(world: World, dp: int, pp: int) -> Make:
    return lambda rng: lib.balanced(rng, world, dp=dp, pp=pp, steps=WARM + HORIZON)


def least_mean(by: float, noise: float, peers: int) -> float:
    """Mean steps that no test with as few false alarms can beat: Lorden 1971, 2 ln(ARL) / (shift / sigma)^2.

    sigma is that of a rank against the median of its peers, ARL Siegmund's for the detector's k and h on normal noise.
    """
    config = StragglerConfig()
    log_arl = 2 * config.k * (config.h + 1.17 * config.k) - math.log(2 * config.k**2)
    sigma = noise * math.sqrt(1 + math.pi / 2 / peers)
    return max(1.0, 2 * log_arl / (math.log1p(by) / sigma) ** 2)


SMALL, LARGE = (0.02, 0.03, 0.04), (0.05, 0.10, 0.20)


def balanced() -> list[Row]:
    rows: list[Row] = []
    for name, world in (
        ("noise 0.4 %", World()),
        ("noise 0.4 %, 5 % missing, 1 % stuck", World(**DIRTY)),
        ("noise 0.7 %", World(noise=0.007)),
        ("noise 1 %", World(noise=0.01)),
    ):
        tally = Tally().run((1,), balanced_job(world, 16, 4), (*SMALL, *LARGE), jobs=10, each=7)
        each = ", ".join(
            f"{by:.0%}: {p95(tally.outcomes_at(by)):.0f} (any test: mean >= {least_mean(by, world.noise, 16):.1f})"
            for by in SMALL
        )
        rows.append(delay_row(f"balanced, 64 ranks, {name}: >= 5 % slow", tally.outcomes_at(*LARGE), 6))
        rows.append(
            delay_row(
                f"balanced, 64 ranks, {name}: 2-4 % slow", tally.outcomes_at(*SMALL), 12, note=f"p95 by size {each}"
            )
        )
    for name, shape, limit in (("ramp over 10 steps to", lib.ramp, None), ("4 steps on, 4 off, of", lib.bursts, None)):
        tally = Tally().run((2,), balanced_job(World(**DIRTY), 16, 4), (0.05, 0.10), jobs=10, each=5, shape=shape)
        rows.append(delay_row(f"balanced, 64 ranks, missing and stuck: {name} 5 and 10 %", tally.all, limit))
    return rows


def large() -> list[Row]:
    rows: list[Row] = []
    for ranks, pp, jobs, each, least in ((2048, 4, 10, 4, 0.985), (8192, 8, 5, 4, 0.97), (16384, 8, 2, 3, 0.95)):
        world = World(offset=0.002, **DIRTY)
        make = balanced_job(world, ranks // pp, pp)
        tally = Tally().run((3, ranks), make, (*SMALL, *LARGE), jobs=jobs, each=each)
        note = (
            f"blame before the fault: {tally.false} in {jobs * WARM * ranks:.2g} rank-steps; 2-20 % slow, noise 0.4 %"
        )
        name = f"balanced, {ranks} ranks, missing and stuck"
        rows.append(share_row(f"{name}: right rank first", first_right(tally.all), least, len(tally.all), note=note))
        rows.append(delay_row(f"{name}: >= 5 % slow", tally.outcomes_at(*LARGE), 6))
        rows.append(delay_row(f"{name}: 2-4 % slow", tally.outcomes_at(*SMALL), 12))
    rows.append(two_faults())
    return rows


def two_faults() -> Row:
    hits, n = 0, 0
    for job in range(10):
        rng = np.random.default_rng([4, job])
        data = balanced_job(World(**DIRTY), 512, 4)(rng)
        pairs = [
            ([lib.healthy_row(rng, data), lib.healthy_row(rng, data)], by, lib.step)
            for by in (0.03, 0.05, 0.1)
            for _ in range(4)
        ]
        outcomes, _ = lib.trials(data, pairs, WARM)
        hits += sum(bool(np.isfinite(o.delays).all()) and o.others == 0 for o in outcomes)
        n += len(outcomes)
    note = "3, 5 and 10 % slow at the same step; no other rank named before both are"
    return share_row("balanced, 2048 ranks, two slow at once: both named, no other rank", hits / n, 0.9, n, note=note)


def varying() -> list[Row]:
    rows: list[Row] = []
    for way, dp, pp, covariates in (
        ("one stage, by its tokens", 64, 1, True),
        ("two stages, by the other stage", 32, 2, False),
    ):
        world = World(noise=0.005, offset=0.005, **DIRTY)

        def make(
            rng: np.random.Generator, world: World = world, dp: int = dp, pp: int = pp, told: bool = covariates
        ) -> Samples:
            return lib.varying(rng, world, dp=dp, pp=pp, steps=WARM + HORIZON, covariates=told)

        tally = Tally().run((5, pp), make, (0.05, 0.07, 0.10, 0.20), jobs=12, each=5)
        rows += varying_rows(f"varying lengths, 64 ranks, missing and stuck, {way}", tally, "simulated")
    return rows


def varying_rows(name: str, tally: Tally, kind: str) -> list[Row]:
    mild, strong = tally.outcomes_at(*tally.by), tally.outcomes_at(*(by for by in tally.by if by >= 0.10))
    return [
        share_row(f"{name}: >= 5 % slow, found", recall(mild), 0.95, len(mild), kind=kind),
        delay_row(f"{name}: >= 5 % slow", mild, 15, kind=kind),
        share_row(f"{name}: >= 10 % slow, found", recall(strong), 1.0, len(strong), kind=kind),
        delay_row(f"{name}: >= 10 % slow", strong, 8, kind=kind),
    ]


def replayed(name: str, world: World | None, factors: Sequence[float]) -> Tally:
    """Every rank of the trace slowed by every factor, from early steps on: the trace has few."""
    real = lib.trace(name)
    assert real is not None
    tally = Tally()
    for onset in (10, 13, 16) if name == "SE" else (15, 16, 17):
        data = lib.of_trace(real.seconds, np.random.default_rng([6, onset]), world)
        own = data.x[:, 0]
        able = np.flatnonzero(np.nanmin(own, axis=0) < np.nanmax(own, axis=0))
        injections = [([int(row)], by, lib.step) for by in factors for row in able]
        outcomes, false = lib.trials(data, injections, onset)
        tally.false += false
        for (_, by, _), outcome in zip(injections, outcomes, strict=True):
            tally.by[by].append(outcome)
    return tally


def traces() -> list[Row]:
    if lib.trace("SE") is None:
        print(f"{lib.TRACES} is absent: set MAINSTAY_TEST_DATA; the replayed rows are left out")
        return []
    rows: list[Row] = []
    for world, how in ((None, ""), (World(**DIRTY), ", missing and stuck")):
        rows += varying_rows(f"SE trace{how}", replayed("SE", world, (0.05, 0.10, 0.20)), "replayed")
        tally = replayed("ST", world, (0.02, 0.03, 0.04, 0.05, 0.10, 0.20))
        rows.append(delay_row(f"ST trace (pairs){how}: >= 5 % slow", tally.outcomes_at(*LARGE), 6, kind="replayed"))
        rows.append(delay_row(f"ST trace (pairs){how}: 2-4 % slow", tally.outcomes_at(*SMALL), 12, kind="replayed"))
    rows += healthy()
    return rows


VARIANTS = {"SE": 600, "ST": 400}


def healthy() -> list[Row]:
    ours, theirs, total, variants, rank_steps = 0, 0, 0, 0, 0
    notes = []
    for name, count in VARIANTS.items():
        real = lib.trace(name)
        assert real is not None
        findings = StragglerDetector().update(lib.of_trace(real.seconds))
        flagged = lib.section_rule(real.seconds.reshape(len(real.seconds), -1))
        notes.append(
            f"{name} as it is: {len(lib.blamed(findings))} blamed, section rule {flagged.sum()} of {flagged.size}"
        )
        for number in range(count):
            rng = np.random.default_rng([7, number])
            dp = real.seconds.shape[1] if name == "SE" else int(rng.integers(2, 9))
            draw = lib.resampled if number % 2 else lib.bootstrapped
            seconds = draw(rng, real.seconds, dp)
            world = World(**DIRTY) if number % 4 >= 2 else World()
            data = lib.of_trace(seconds, rng, world)
            ours += len(lib.blamed(StragglerDetector().update(data)))
            flagged = lib.section_rule(seconds.reshape(len(seconds), -1))
            theirs, total = theirs + int(flagged.sum()), total + flagged.size
            variants, rank_steps = variants + 1, rank_steps + data.x.size
    return [
        Row(claim="healthy imbalanced jobs: SE, ST and variants of them, evict-grade blame", figure=ours, unit="ranks",
            target="0", holds=ours == 0, kind="replayed", n=variants,
            baseline=f"section rule (0.75 of the fastest): {theirs} of {total} ranks",
            note=f"{'; '.join(notes)}; {rank_steps:.2g} rank-steps, half with missing and stuck"),
    ]  # fmt: skip


def quiet() -> Row:
    """Healthy simulated jobs of the less quiet kind: lasting differences, spikes, varying lengths."""
    false, rank_steps = 0, 0
    for seed in range(4):
        rng = np.random.default_rng([8, seed])
        noisy = World(noise=0.007, offset=0.01, spikes=0.01, **DIRTY)
        jobs = (
            lib.balanced(rng, noisy, dp=256, pp=4, steps=200),
            lib.balanced(rng, noisy, dp=2, pp=4, steps=400),
            lib.varying(rng, noisy, dp=64, pp=4, steps=200, covariates=False),
            lib.varying(rng, noisy, dp=256, pp=1, steps=200, covariates=True),
        )
        for data in jobs:
            false += len(lib.blamed(StragglerDetector().update(data)))
            rank_steps += len(data.t) * len(data.entities)
    return Row(claim="healthy simulated jobs, lasting differences of 1 %, spikes, missing, stuck: blame", figure=false,
               unit="ranks", target="0", holds=false == 0, kind="simulated", n=16,
               note=f"{rank_steps:.2g} rank-steps")  # fmt: skip


def main() -> None:
    file = target_file("failslow")
    publish("failslow", [*balanced(), *large(), *varying(), quiet(), *traces()], file)


if __name__ == "__main__":
    main()
