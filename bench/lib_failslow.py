"""Jobs to try fail-slow detection on: simulated ones, and real traces with slowdowns put in or replicas drawn again."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mainstay.detectors.base import Floats, Samples
from mainstay.detectors.finding import Entity, Finding
from mainstay.detectors.job.mesh import JobMesh, regular
from mainstay.detectors.straggler.detector import StragglerDetector
from mainstay.probes.core_types import Severity

TRACES = (
    Path(os.environ.get("MAINSTAY_TEST_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
    / "straggler-traces"
)
RNG = np.random.Generator


@dataclass(frozen=True, kw_only=True)
class World:
    """What surrounds the fault; the defaults are of the order of the ST trace (0.3-0.5 % a rank)."""

    noise: float = 0.004
    """Deviation of log compute from step to step; a fifth of its variance is AR(1) with r = 0.6."""
    offset: float = 0.0
    """Lasting differences between healthy ranks."""
    spikes: float = 0.002
    """Share of rank-steps that take up to half as long again."""
    missing: float = 0.0
    stuck: float = 0.0
    """Share of ranks whose value never changes."""


DIRTY = {"missing": 0.05, "stuck": 0.01}


def noise(rng: RNG, world: World, steps: int, ranks: int) -> Floats:
    """[step, rank] log deviations of healthy ranks."""
    slow = np.empty((steps, ranks))
    slow[0] = rng.normal(size=ranks)
    for step in range(1, steps):
        slow[step] = 0.6 * slow[step - 1] + 0.8 * rng.normal(size=ranks)
    deviation = world.noise * (np.sqrt(0.8) * rng.normal(size=(steps, ranks)) + np.sqrt(0.2) * slow)
    spikes = (rng.random((steps, ranks)) < world.spikes) * np.log1p(0.5 * rng.random((steps, ranks)))
    result: Floats = deviation + spikes + world.offset * rng.normal(size=ranks)
    return result


def spoil(rng: RNG, world: World, seconds: Floats) -> Floats:
    """Missing samples and stuck sensors, as they would reach the detector."""
    seconds = seconds.copy()
    stuck = rng.random(seconds.shape[1]) < world.stuck
    seconds[:, stuck] = seconds[0, stuck]
    seconds[rng.random(seconds.shape) < world.missing] = np.nan
    return seconds


def samples(seconds: Floats, mesh: JobMesh, extra: dict[str, Floats] | None = None) -> Samples:
    """Steps of a job; ``extra`` signals are [step, rank] too. Roles are pipeline stages, as the service says them."""
    signals = {"compute_time_seconds": seconds, **(extra or {})}
    return Samples(
        entities=tuple(Entity(job="bench", rank=int(r), node=mesh.nodes[i]) for i, r in enumerate(mesh.ranks)),
        groups=tuple(f"stage {stage}" for stage in mesh.on("pp")),
        signals=tuple(signals),
        t=1.7e9 + 10.0 * np.arange(len(seconds), dtype=np.float64),
        x=np.stack(list(signals.values()), axis=1).astype(np.float32),
        mesh=mesh,
        steps=np.arange(len(seconds)),
    )


def balanced(rng: RNG, world: World, *, dp: int, pp: int, steps: int) -> Samples:
    """Equal work within a stage; the last stage carries the head; the whole job breathes by two per cent."""
    mesh = regular("bench", dp=dp, pp=pp)
    stages = np.where(mesh.on("pp") == pp - 1, 1.5, 1.0) if pp > 1 else np.ones(mesh.size)
    job = 0.02 * np.sin(np.arange(steps) / 15)[:, None]
    seconds = 4.0 * stages * np.exp(job + noise(rng, world, steps, mesh.size))
    return samples(spoil(rng, world, seconds), mesh)


def varying(rng: RNG, world: World, *, dp: int, pp: int, steps: int, covariates: bool) -> Samples:
    """Sequences of varying length: each replica and step draws documents until its token budget is full."""
    mesh = regular("bench", dp=dp, pp=pp)
    tokens, squares = documents(rng, steps, dp, 1 << 17, packed=not covariates)
    place = mesh.on("dp")
    fixed, token, square = (
        0.15,
        1.0,
        0.9,
    )  # attention as expensive as the rest at the mean length; the head has none of it
    work = fixed + token * tokens / tokens.mean() + square * squares / squares.mean()
    head = np.where(mesh.on("pp") == pp - 1, 1.0, 0.0) if pp > 1 else np.zeros(mesh.size)
    seconds = (work[:, place] + head * tokens[:, place] / tokens.mean()) * np.exp(noise(rng, world, steps, mesh.size))
    extra = {"tokens": tokens[:, place], "sequence_squares": squares[:, place]} if covariates else None
    return samples(spoil(rng, world, seconds), mesh, extra)


def documents(rng: RNG, steps: int, dp: int, budget: int, packed: bool) -> tuple[Floats, Floats]:
    """[step, replica] tokens and sums of squared lengths; lengths are log-normal, as in text corpora, at most 32k.

    Packed: the last document is cut so that every replica has the same number of tokens, as pre-training does; else
    it is left out, and tokens vary as well.
    """
    drawn = np.clip(rng.lognormal(7.5, 1.2, (steps, dp, 160)), 16, 32768).round()
    end = np.cumsum(drawn, axis=2)
    left = np.clip(budget - (end - drawn), 0.0, drawn)
    lengths = left if packed else np.where(end <= budget, drawn, 0.0)
    return lengths.sum(axis=2), (lengths**2).sum(axis=2)


# Faults

Shape = Callable[[int], Floats]


def step(length: int) -> Floats:
    return np.ones(length)


def ramp(length: int) -> Floats:
    return np.minimum(np.arange(1, length + 1) / 10.0, 1.0)


def bursts(length: int) -> Floats:
    """Four steps on, four off."""
    return np.where(np.arange(length) // 4 % 2 == 0, 1.0, 0.0)


def slowed(data: Samples, rows: Sequence[int], by: float, onset: int, shape: Shape = step) -> Samples:
    x = data.x.copy()
    own = data.signals.index("compute_time_seconds")
    for row in rows:
        x[onset:, own, row] *= 1.0 + by * shape(len(data.t) - onset)
    return replace(data, x=x)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one injection led to."""

    delays: tuple[float, ...]
    """Steps until each faulty rank was named, in order of naming; infinite for one that never was."""
    first_right: bool
    others: int
    """Healthy ranks blamed after the onset."""

    @property
    def delay(self) -> float:
        return self.delays[0]


def blamed(findings: Sequence[Finding]) -> list[Finding]:
    """What could cost a rank its position: compute_slow that is graver than advice."""
    return [f for f in findings if f.active and f.severity is not Severity.INFO]


def healthy_row(rng: RNG, data: Samples) -> int:
    """A rank whose sensor works: one that says nothing cannot be found, and is counted as unknown instead."""
    own = data.x[:, data.signals.index("compute_time_seconds")]
    moving = np.flatnonzero(np.nanmin(own, axis=0) < np.nanmax(own, axis=0))
    return int(rng.choice(moving))


def trials(
    data: Samples, injections: Sequence[tuple[Sequence[int], float, Shape]], onset: int
) -> tuple[list[Outcome], int]:
    """Each injection from the same healthy past; and how many ranks were blamed in that past."""
    before = StragglerDetector()
    false = len(blamed(before.update(data.part(0, onset))))
    return [
        _trial(copy.deepcopy(before), slowed(data, *i[:2], onset, i[2]), list(i[0]), onset) for i in injections
    ], false


def _trial(detector: StragglerDetector, data: Samples, rows: list[int], onset: int) -> Outcome:
    named: list[int] = []
    delays: dict[int, float] = {}
    for k in range(onset, len(data.t)):
        for finding in blamed(detector.update(data.part(k, k + 1))):
            rank = finding.entity.rank
            assert rank is not None
            named.append(rank)
            if rank in rows:
                delays.setdefault(rank, float(k - onset + 1))
        if len(delays) == len(rows):
            break
    found = sorted(delays.values()) + [float("inf")] * (len(rows) - len(delays))
    return Outcome(
        delays=tuple(found), first_right=bool(named) and named[0] in rows, others=sum(r not in rows for r in named)
    )


# Real traces


@dataclass(frozen=True, eq=False)
class Trace:
    """Own compute of a real job: [step, replica, stage] seconds of forward and backward passes."""

    forward: Floats
    backward: Floats

    @property
    def seconds(self) -> Floats:
        return self.forward + self.backward


def trace(name: str) -> Trace | None:
    """SE or ST, or None where the data is absent."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - an extra that the simulated rows do not need

    if not (TRACES / f"trace-{name}.parquet").exists():
        return None
    table = pq.read_table(TRACES / f"trace-{name}.parquet", columns=["dp_rank", "stage", "step", "optype", "duration"])
    columns = table.to_pydict()
    op = np.array([str(o) for o in columns["optype"]])
    dp, stage, at = (np.array(columns[c], np.int64) for c in ("dp_rank", "stage", "step"))
    steps, at = np.unique(at, return_inverse=True)
    parts = []
    for kind in ("forward-compute", "backward-compute"):
        total = np.zeros((len(steps), dp.max() + 1, stage.max() + 1))
        own = op == kind
        np.add.at(total, (at[own], dp[own], stage[own]), np.array(columns["duration"], np.float64)[own])
        parts.append(np.where(total > 0, total, np.nan))
    return Trace(*parts)


def of_trace(seconds: Floats, rng: RNG | None = None, world: World | None = None) -> Samples:
    """[step, replica, stage] as samples, spoilt if a world is given."""
    steps, dp, pp = seconds.shape
    flat = seconds.reshape(steps, dp * pp)
    if rng is not None and world is not None:
        flat = spoil(rng, world, flat)
    return samples(flat, regular("bench", dp=dp, pp=pp))


def resampled(rng: RNG, seconds: Floats, dp: int) -> Floats:
    """A healthy variant: ``dp`` replicas drawn with replacement as wholes, steps put in another order as wholes.

    What a rank is (its lasting difference) and how stages of a replica and a step belong together stays. A replica
    drawn twice gets 0.1 % of noise of its own, so that no two sensors agree to the last bit.
    """
    steps, width, _ = seconds.shape
    variant = seconds[rng.permutation(steps)][:, rng.integers(0, width, dp)]
    jitter: npt.NDArray[np.float64] = np.exp(0.001 * rng.normal(size=variant.shape))
    result: Floats = variant * jitter
    return result


def bootstrapped(rng: RNG, seconds: Floats, dp: int) -> Floats:
    """A harsher variant: each step and replica of the new job is some replica-step of the old, all stages together."""
    steps, width, _ = seconds.shape
    middle = np.nanmedian(seconds, axis=1, keepdims=True)
    relative = seconds / middle
    drawn = relative[rng.integers(0, steps, (steps, dp)), rng.integers(0, width, (steps, dp))]
    jitter: npt.NDArray[np.float64] = np.exp(0.001 * rng.normal(size=drawn.shape))
    result: Floats = drawn * middle * jitter
    return result


def section_rule(seconds: Floats, threshold: float = 0.75) -> npt.NDArray[np.bool_]:
    """NVIDIA Resiliency Extension's relative section score over [step, rank]: fastest median / own median < 0.75."""
    medians = np.nanmedian(seconds, axis=0)
    flagged: npt.NDArray[np.bool_] = np.nanmin(medians) / medians < threshold
    return flagged
