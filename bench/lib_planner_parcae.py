"""Parcae's recorded slices (NSDI'24): our choice of (dp, pp) against its own, both paid by one cost table.

Costs are Parcae's (its cost table for p3.2xlarge at 10 Gb/s). Throughputs by layout are not in the data: they come from
our model of 1F1B with stages of equal depth, so that samples are relative and only the comparison counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bench.report import Row
from recovery.pricing.iteration import Shape, Stage, iteration_s
from recovery.pricing.liveput import Layout, Market, Nodes, plan, trained
from recovery.simulate.traces import CHOICES, read_intervals

RENDEZVOUS_S, PROCESS_S, BUILD_LAYER_S = 6.6, 0.24, 0.43
"""Measured by Parcae's authors: a rendezvous, a process's start, one layer's build."""
GROUP_REMOVED_S, GROUP_ADDED_S = 0.039, 0.5
"""A communicator after a removal, after an addition; there are dp + pp + 1 + dp pp of them."""
MODELS = {"bert": (24, 128, 2), "gpt-1.5b": (48, 128, 6)}
"""Layers, micro-batches of the whole job, and the fewest stages that hold the model."""
MOST_NODES, MOST_STAGES = 32, 32
SLOT_S = 1.0
"""Of the whole model for one micro-batch; any value gives the same comparison."""
COMMUNICATE = 0.02
"""Of it, that each stage adds for passing activations on: without it, depth would cost only its bubble."""


def market(model: str) -> Market:
    layers, batch, _ = MODELS[model]

    def throughput(layout: Layout) -> float:
        dp, pp = layout
        each = -(-batch // dp)
        slot = (SLOT_S * -(-layers // pp) / layers + SLOT_S * COMMUNICATE) / 3.0
        stage = Stage(forward_s=slot, backward_s=slot, weight_s=slot)
        return batch / iteration_s(Shape(dp=dp, pp=pp, micro_batches=each), [stage])

    def switch_s(before: Layout | None, after: Layout, change: Nodes) -> float:
        if before == after and not change.removed:
            return 0.0
        dp, pp = after
        grows = before is None or dp * pp > before[0] * before[1]
        groups = (dp + pp + 1 + dp * pp) * (GROUP_ADDED_S if grows else GROUP_REMOVED_S)
        moved = before is None or before[1] != pp
        rebuilt = BUILD_LAYER_S * -(-layers // pp) if moved else 0.0
        return PROCESS_S + groups + rebuilt + (RENDEZVOUS_S if grows else 0.0)

    return Market(throughput=throughput, switch_s=switch_s, interval_s=60.0)


def rows(folder: Path) -> Iterator[Row]:
    """One row: every slice, our samples over the best of its recorded choices."""
    ratios, said = [], []
    for file in sorted(folder.glob("*_trace_*.txt")):
        model = file.name.partition("_trace_")[0]
        intervals = read_intervals(file)
        changes = [Nodes(each.nodes, each.added, each.removed) for each in intervals]
        least = MODELS[model][2]
        layouts = [(dp, pp) for pp in range(least, MOST_STAGES + 1) for dp in range(1, MOST_NODES // pp + 1)]
        ours, _ = plan(changes, layouts, market(model))
        theirs = {
            name: trained([each.chosen[i] for each in intervals], changes, market(model))
            for i, name in enumerate(CHOICES)
        }
        ratios.append(ours / max(theirs.values()))
        said.append(f"{file.stem}: " + ", ".join(f"{ours / value:.3f} x {name}" for name, value in theirs.items()))
    yield Row(
        claim="Parcae (NSDI'24), recorded slices: samples of our choices over the best of its own, least of all",
        figure=min(ratios), unit="x", target=">= 1", holds=min(ratios) >= 1.0, kind="replayed", n=len(ratios),
        baseline="its recorded choices, same costs",
        note="; ".join(said) + "; the future is known, as to its 'truth' optimiser; throughputs by our 1F1B model",
    )  # fmt: skip
