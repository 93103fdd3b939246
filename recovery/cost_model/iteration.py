"""How long one training iteration takes under 1F1B, healthy and after losses, in closed form.

M micro-batches pass through P stages in each of D pipelines. A slot t is one micro-batch on one stage: a third each for
forward F, gradient of inputs, gradient of weights. Stages are alike; at unequal speeds they fill and drain at their own
pace: (M - 1) max t + sum t.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

REDUNDANT_FAILOVER = 1.5
"""The iteration in which a Bamboo node takes over its successor lasts this many times as long: the constant of
Bamboo's own simulator (NSDI'23 artifact), which Oobleck's kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationShape:
    """A grid of ranks, and the micro-batches that each pipeline passes in one iteration."""

    dp: int
    pp: int
    micro_batches: int
    tp: int = 1

    def __post_init__(self) -> None:
        if min(self.dp, self.pp, self.micro_batches, self.tp) < 1:
            raise ValueError(f"dp, pp, tp and micro-batches are at least 1, not {self}")

    @property
    def slots(self) -> int:
        """Of one healthy iteration."""
        return self.micro_batches + self.pp - 1


def dropped_rate(shape: IterationShape, lost: int) -> float:
    """Rate of samples after ``lost`` pipelines are left out and the others take their work; 0 with none left."""
    if lost >= shape.dp:
        return 0.0
    share = math.ceil(shape.micro_batches * shape.dp / (shape.dp - lost))
    return shape.slots / (share + shape.pp - 1)


@dataclass(frozen=True, slots=True)
class Rerouted:
    """Seconds of an iteration with micro-batches of dead workers at their peers, by what hides the work."""

    coupled_s: float
    decoupled_s: float
    """The gradient of weights waits for bubbles."""
    staggered_s: float
    """And a stage begins the next iteration after its own optimizer step: from one iteration to the next."""


def rerouted(shape: IterationShape, slot_s: float, lost: Sequence[int]) -> Rerouted | None:
    """ReCycle's three ways (SOSP'24) with equal stages; None where a stage has no worker left.

    With L = ceil(M D / (D - f)) t, the load of a helper: coupled T0 + ceil(M f / (D - f)) t; decoupled
    max(T0, L + s F); staggered max(T0, L). The formulas are derived, and checked by ``schedule``.

    Args:
        shape: of the healthy job.
        slot_s: one micro-batch on one stage.
        lost: workers lost of each stage, pp numbers.
    """
    if len(lost) != shape.pp:
        raise ValueError(f"losses of {len(lost)} stages are given for pp {shape.pp}")
    if max(lost) >= shape.dp:
        return None
    healthy, forward_s = shape.slots * slot_s, slot_s / 3.0
    loads = [math.ceil(shape.micro_batches * shape.dp / (shape.dp - f)) * slot_s for f in lost]
    extra = max(math.ceil(shape.micro_batches * f / (shape.dp - f)) for f in lost)
    shifted = [load + s * forward_s for s, (load, f) in enumerate(zip(loads, lost, strict=True)) if f]
    return Rerouted(healthy + extra * slot_s, max([healthy, *shifted]), max(healthy, *loads))


def spread_rate(shape: IterationShape, lost: int) -> float:
    """Rate after ``lost`` workers spread evenly over stages, with the staggered optimizer.

    ReCycle's planner swaps workers logically so that each stage absorbs ceil(F / P) (failure normalization).
    """
    worst = math.ceil(lost / shape.pp)
    if worst >= shape.dp:
        return 0.0
    load = shape.micro_batches * shape.dp / (shape.dp - worst)
    return min(1.0, shape.slots / load)


def slowed_rate(shape: IterationShape, speeds: Sequence[float]) -> float:
    """Rate with stages at these speeds (1 = healthy, 0 = stopped), nothing re-split."""
    if min(speeds) <= 0.0:
        return 0.0
    slow = [1.0 / speed for speed in speeds]
    return shape.slots / ((shape.micro_batches - 1) * max(slow) + sum(slow))
