"""What a job trains at when its grid, or the depths of its pipelines, change, in closed form.

Layers are assigned to stages in whole numbers, so that a stage of ceil(L / S) layers sets the pace. Oobleck (SOSP'23)
lets pipelines of unlike depth train together, each from a template; Varuna (EuroSys'22) and Parcae (NSDI'24) restart or
move the job to another (dp, pp). The batch stays what it was, so that rates are those of samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

Layout = tuple[int, int]
"""dp, pp."""
FRONT = 3
"""Mixes that are worked out exactly after all were ranked by a formula without rounding: near the best it is flat."""
EDGE = 8
"""Counts of one depth that are tried from either end: between them the rest divides as it did before."""
ROUNDING = 1e-12
"""Far above what a double loses in a division, far below a slot."""
Mix = tuple[tuple[int, int, float], ...]
"""(How many pipelines, stages, slot in seconds) of each depth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutModel:
    """What every layout has in common."""

    layers: int
    """Also the most stages: with more, some would be empty."""
    layer_s: float
    """One micro-batch through one layer, forward and backward."""
    batch: int
    """Micro-batches of one step of the whole job."""
    least: int
    """Fewest stages that hold the model."""

    def slot_s(self, stages: int) -> float:
        """One micro-batch on the fullest stage."""
        return -(-self.layers // stages) * self.layer_s


def layout_s(model: LayoutModel, layout: Layout) -> float:
    """Seconds of one step at (dp, pp): ceil(B / D) micro-batches through P stages under 1F1B."""
    dp, pp = layout
    return (-(-model.batch // dp) + pp - 1) * model.slot_s(pp)


def layouts(model: LayoutModel, workers: int) -> list[Layout]:
    """For each depth as many pipelines as there are workers for, and micro-batches to keep them busy."""
    depths = range(model.least, min(model.layers, workers) + 1)
    return [(min(workers // pp, model.batch), pp) for pp in depths]


def best_layout(model: LayoutModel, workers: int) -> Layout | None:
    """The fastest (dp, pp) on so many workers; None if they cannot hold the model."""
    return min(layouts(model, workers), key=lambda layout: layout_s(model, layout), default=None)


def mixes(nodes: int, sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every way to make ``nodes`` of templates with these sizes: how many of each, as Oobleck enumerates them."""
    if len(sizes) == 1:
        if nodes % sizes[0] == 0:
            yield (nodes // sizes[0],)
        return
    for count in range(nodes // sizes[0] + 1):
        for rest in mixes(nodes - count * sizes[0], sizes[1:]):
            yield (count, *rest)


def mix_s(model: LayoutModel, pipelines: Mix) -> float:
    """Seconds of one step with the batch split best over unlike pipelines.

    A pipeline of S stages with slot t ends b micro-batches after (b + S - 1) t; each gets at least one. No split is
    faster than one without rounding, and from there the step ends with the next slot of some pipeline, or the next.

    Args:
        model: whose batch is split.
        pipelines: of each depth.
    """
    pace = sum(count / slot for count, _, slot in pipelines)
    fill = sum(count * (stages - 1) for count, stages, _ in pipelines)
    seconds = max((model.batch + fill) / pace, *(stages * slot for _, stages, slot in pipelines))
    while _ended(pipelines, seconds) < model.batch:
        seconds = min((int(seconds / slot * (1.0 + ROUNDING)) + 1) * slot for _, _, slot in pipelines)
    return seconds


def _ended(pipelines: Mix, seconds: float) -> int:
    """Micro-batches that end by then. A rounding error must not lose one that ends just then."""
    return sum(count * (int(seconds / slot * (1.0 + ROUNDING)) - stages + 1) for count, stages, slot in pipelines)


def mixable(model: LayoutModel, workers: int) -> bool:
    """Whether so many workers hold the model, with a micro-batch for each pipeline."""
    return workers >= model.least and workers // model.layers <= model.batch


def depths(model: LayoutModel) -> list[int]:
    """Numbers of stages worth having: one less would make the fullest stage fuller."""
    more = range(model.least + 1, model.layers + 1)
    return [model.least, *(stages for stages in more if model.slot_s(stages) < model.slot_s(stages - 1))]


def best_mix(model: LayoutModel, workers: int) -> tuple[float, Mix] | None:
    """The fastest mix of pipelines of at most two depths, and its seconds; None if nothing can be made.

    Workers that no pipeline takes idle. Mixes are ranked by the time that a batch without rounding would take,
    T = (B + sum of n (S - 1)) / sum of n / t, and the best few worked out exactly. Of all mixes of up to 14 nodes none
    is faster (``tests/recovery/cost_model/test_layouts.py``).
    """
    if not mixable(model, workers):
        return None
    ranked: dict[Mix, float] = {}
    for mix in _two_depths(model, workers):
        ranked[mix] = mix_s(model, mix)
        if len(ranked) == FRONT:
            break
    best = min(ranked, key=lambda mix: ranked[mix])
    return ranked[best], best


def _two_depths(model: LayoutModel, workers: int) -> Iterator[Mix]:
    """A few counts of pipelines of one depth, and of a second as many as fit into the rest; the fastest first."""
    stages = np.array(depths(model))
    slots = -(-model.layers // stages) * model.layer_s
    one, two = np.triu_indices(len(stages))  # one is the shallower, or both are the same
    most = np.minimum(workers // stages[two], model.batch)[:, None]
    near = np.arange(EDGE + 1)
    many = np.clip(np.concatenate([near + 0 * most, most - near], axis=1), 0, most)
    few = np.minimum((workers - many * stages[two][:, None]) // stages[one][:, None], model.batch - many)
    few[one == two] = 0
    pace = few / slots[one][:, None] + many / slots[two][:, None]
    fill = few * (stages[one][:, None] - 1) + many * (stages[two][:, None] - 1)
    with np.errstate(divide="ignore"):
        rough = np.where(pace > 0.0, (model.batch + fill) / pace, np.inf)
    for place in np.argsort(rough, axis=None, kind="stable"):
        pair, tried = divmod(int(place), rough.shape[1])
        if np.isinf(rough[pair, tried]):
            return
        parts = ((few[pair, tried], one[pair]), (many[pair, tried], two[pair]))
        yield tuple((int(count), int(stages[at]), float(slots[at])) for count, at in parts if count)
