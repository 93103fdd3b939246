"""Generated training runs with every fault of the catalog, through every detector: simulated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from bench.report import Row
from mainstay.detectors.finding import Finding
from mainstay.detectors.recording.replay import replay
from tests.scenarios.runs.faults import FAULTS, QUIET, Fault, outcome
from tests.scenarios.runs.world import World

SEEDS = 8
QUIET_SEEDS = 6
_DISTURBED = {"missing": 0.05, "skew": 0.05, "stuck": 0.01}
_NATURES: tuple[dict[str, float], ...] = ({}, {"last_stage": 1.6}, {"lengths": 0.1}, {"dp": 2, "pp": 1, "tp": 1})
"""Healthy runs of several kinds: balanced, a slow last stage, sequences of varying length, a pair of replicas."""
_NEVER = float("inf")


@dataclass
class Tally:
    """What came of the runs of one fault."""

    seconds: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    wrong: list[Finding] = field(default_factory=list)

    @property
    def found(self) -> int:
        return sum(np.isfinite(self.seconds))

    def p95(self, values: list[float]) -> float | None:
        """None when it is a miss."""
        worst = float(np.quantile(values, 0.95, method="higher"))
        return worst if np.isfinite(worst) else None


def play(fault: Fault, seed: int, tally: Tally, **shape: float) -> None:
    """One run; what was missed counts as never."""
    world = World(seed=seed, **shape)  # type: ignore[arg-type]
    truth = fault(world, world.steps * 2 // 3, np.random.default_rng(seed + 100))
    result = outcome(world, truth, replay(world.recording()))
    tally.seconds.append(_NEVER if result.seconds is None else result.seconds)
    tally.steps.append(_NEVER if result.steps is None else float(result.steps))
    tally.wrong.extend(result.wrong)


def rows() -> Iterator[Row]:
    """A row a fault, then the healthy ones."""
    for name, fault in FAULTS.items():
        plain, disturbed = Tally(), Tally()
        for seed in range(SEEDS):
            play(fault, 1000 + seed, plain)
            play(fault, 2000 + seed, disturbed, **_DISTURBED)
        yield _row(name, plain, "")
        yield _row(name, disturbed, ", 5 % missing, ± 50 ms, 1 % stuck")
    yield _quiet()


def _row(name: str, tally: Tally, how: str) -> Row:
    delay, steps = tally.p95(tally.seconds), tally.p95(tally.steps)
    said = "missed some" if delay is None else f"p95 {delay:.1f} s, {steps:.0f} steps of 4 s begun"
    wrong = len(tally.wrong)
    return Row(
        claim=f"run of 64 ranks: {name.replace('_', ' ')}{how}",
        figure=f"{tally.found} of {len(tally.seconds)} found, {wrong} wrong blame",
        unit="", target="all, 0", holds=tally.found == len(tally.seconds) and not wrong, kind="simulated",
        n=len(tally.seconds), note="; ".join([said, *{f"wrong: {f.kind} {f.entity.key}" for f in tally.wrong[:3]}]),
    )  # fmt: skip


def _quiet() -> Row:
    tally = Tally()
    for fault in QUIET.values():
        for nature in _NATURES:
            for seed in range(QUIET_SEEDS):
                play(fault, 3000 + seed, tally, **nature)
    return Row(
        claim="healthy runs with checkpoints, evaluation, compilation; balanced, stage and sequence imbalance, pairs",
        figure=len(tally.wrong), unit="wrong blame", target="0", holds=not tally.wrong, kind="simulated",
        n=len(tally.seconds), note="; ".join({f"{f.kind} {f.entity.key}" for f in tally.wrong[:5]}),
    )  # fmt: skip
