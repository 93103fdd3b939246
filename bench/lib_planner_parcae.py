"""Parcae's recorded slices (NSDI'24): our choice of (dp, pp) against its own, both paid by one cost table.

Costs are Parcae's (its cost table for p3.2xlarge at 10 Gb/s). Throughputs by layout are not in the data: they come from
our model of 1F1B with stages of equal depth, so that samples are relative and only the comparison counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.lib_forecast import FORECASTS, Forecast, best, error, last_value
from bench.lib_liveput import AHEAD, Market, Nodes, follow, plan, trained
from bench.lib_planner_comparison import HOURS
from bench.lib_traces import CHOICES, counts, read_intervals, read_polls
from bench.report import Row
from mainstay.recovery.cost_model.iteration import IterationShape
from mainstay.recovery.cost_model.layouts import Layout
from mainstay.recovery.simulate.traces import read_changes

RENDEZVOUS_S, PROCESS_S, BUILD_LAYER_S = 6.6, 0.24, 0.43
"""Measured by Parcae's authors: a rendezvous, a process's start, one layer's build."""
GROUP_REMOVED_S, GROUP_ADDED_S = 0.039, 0.5
"""A communicator after a removal, after an addition; there are dp + pp + 1 + dp pp of them."""
MODELS = {"bert": (24, 128, 2), "gpt-1.5b": (48, 128, 6)}
"""Layers, micro-batches of the whole job, and the fewest stages that hold the model."""
MOST_NODES, MOST_STAGES = 32, 32
INTERVAL_S = 60.0
SLOT_S = 1.0
"""Of the whole model for one micro-batch; any value gives the same comparison."""
COMMUNICATE = 0.02
"""Of it, that each stage adds for passing activations on: without it, depth would cost only its bubble."""


def market(model: str) -> Market:
    layers, batch, _ = MODELS[model]

    def throughput(layout: Layout) -> float:
        dp, pp = layout
        each = -(-batch // dp)
        slot_s = SLOT_S * -(-layers // pp) / layers + SLOT_S * COMMUNICATE
        return batch / (IterationShape(dp=dp, pp=pp, micro_batches=each).slots * slot_s)

    def switch_s(before: Layout | None, after: Layout, lost: bool) -> float:
        if before == after and not lost:
            return 0.0
        dp, pp = after
        grows = before is None or dp * pp > before[0] * before[1]
        groups = (dp + pp + 1 + dp * pp) * (GROUP_ADDED_S if grows else GROUP_REMOVED_S)
        moved = before is None or before[1] != pp
        rebuilt = BUILD_LAYER_S * -(-layers // pp) if moved else 0.0
        return PROCESS_S + groups + rebuilt + (RENDEZVOUS_S if grows else 0.0)

    return Market(throughput=throughput, switch_s=switch_s, interval_s=INTERVAL_S)


@dataclass(frozen=True, slots=True)
class Slice:
    """One of its files: what happened, what may be chosen, and what its own optimisers chose."""

    name: str
    market: Market
    layouts: list[Layout]
    changes: list[Nodes]
    theirs: dict[str, list[Layout]]


def slices(folder: Path) -> Iterator[Slice]:
    for file in sorted(folder.glob("*_trace_*.txt")):
        model = file.name.partition("_trace_")[0]
        intervals, least = read_intervals(file), MODELS[model][2]
        yield Slice(
            name=file.stem, market=market(model),
            layouts=[(dp, pp) for pp in range(least, MOST_STAGES + 1) for dp in range(1, MOST_NODES // pp + 1)],
            changes=[Nodes(each.nodes, each.added, each.removed) for each in intervals],
            theirs={name: [each.chosen[i] for each in intervals] for i, name in enumerate(CHOICES)},
        )  # fmt: skip


def rows(traces: Path) -> Iterator[Row]:
    """Our samples over those of its recorded choices, with the future known and without; and how good forecasts are."""
    known, unknown, said, told = [], [], [], []
    for each in slices(traces / "parcae"):
        ours, _ = plan(each.changes, each.layouts, each.market)
        theirs = {name: trained(chosen, each.changes, each.market) for name, chosen in each.theirs.items()}
        known.append(ours / max(theirs.values()))
        said.append(f"{each.name}: " + ", ".join(f"{ours / value:.3f} x {name}" for name, value in theirs.items()))
        shares = {name: _trained(each, forecast) / ours for name, forecast in FORECASTS.items()}
        reactive, recorded = _trained(each, last_value, ahead=0) / ours, max(theirs.values()) / ours
        picked = best([change.alive for change in each.changes[: len(each.changes) // 2]], AHEAD)
        unknown.append((shares[picked], reactive, recorded))
        told.append(
            f"{each.name} ({picked}): " + ", ".join(f"{name} {share:.3f}" for name, share in shares.items())
            + f", no look ahead {reactive:.3f}, its own at best {recorded:.3f}"
        )  # fmt: skip
    yield Row(
        claim="Parcae (NSDI'24), recorded slices: samples of our choices over the best of its own, least of all",
        figure=min(known), unit="x", target=">= 1", holds=min(known) >= 1.0, kind="replayed", n=len(known),
        baseline="its recorded choices, same costs",
        note="; ".join(said) + "; the future is known, as to its 'truth' optimizer; throughputs by our 1F1B model",
    )  # fmt: skip
    least, reactive, recorded = (min(column) for column in zip(*unknown, strict=True))
    yield Row(
        claim=f"The same, the future unknown: planned {AHEAD} minutes ahead each minute, over the known future, least",
        figure=least, unit="x", target="each slice: > no look ahead, > its own", kind="replayed", n=len(unknown),
        holds=all(share > max(others) for share, *others in unknown),
        baseline=f"least of no look ahead {reactive:.3f}, of the best of its recorded choices {recorded:.3f}",
        note="forecast by its error on the slice's first half; samples of all as shares of the known future's: "
             + "; ".join(told),
    )  # fmt: skip
    yield from _forecasts(traces)


def _trained(each: Slice, forecast: Forecast, ahead: int = AHEAD) -> float:
    return trained(follow(each.changes, each.layouts, each.market, forecast, ahead), each.changes, each.market)


def _forecasts(traces: Path) -> Iterator[Row]:
    """Chosen on the first half of a trace, judged on the other."""
    ratios, said = [], []
    for name, seen in _recorded(traces):
        half = len(seen) // 2
        picked = best(seen[:half], AHEAD)
        ours, plain = (error(each, seen, AHEAD, half) for each in (FORECASTS[picked], last_value))
        ratios.append(ours / plain if plain else 1.0)
        said.append(f"{name} ({len(seen)} min): {picked} {ours:.2f} nodes, last value {plain:.2f}")
    yield Row(
        claim=f"Nodes of spot markets in the next {AHEAD} minutes: error of the forecast that was best on a trace's "
              "first half, on its other half, against that all stays as it is; mean of all traces",
        figure=float(np.mean(ratios)), unit="x", target="< 1", holds=float(np.mean(ratios)) < 1.0, kind="replayed",
        n=len(ratios), baseline="last value", note="; ".join(said),
    )  # fmt: skip


def _recorded(traces: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    for file in sorted((traces / "oobleck").glob("[!s]*-trace.csv")):
        yield file.stem, counts(read_changes(file), INTERVAL_S)
    polled = (file for pattern in ("aws*.csv", "*x1-*.txt") for file in (traces / "bamboo").glob(pattern))
    for file in sorted(file for file in polled if "_scaled" not in file.name):
        yield file.stem, counts(read_polls(file, 3600.0 if file.stem in HOURS else 1.0), INTERVAL_S)
    for file in sorted((traces / "parcae").glob("bert_trace_*.txt")):
        yield file.stem, tuple(each.nodes for each in read_intervals(file))
