"""Published tables of recovery systems, reproduced: Oobleck's Table 2 for Oobleck and Varuna.

The figures and the authors' measurements are read from ``throughput_by_nodes.json`` (``MAINSTAY_TEST_DATA``): what is
checked is the model of failures and recovery, not a model of how fast these networks train.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.lib_elastic_job import ElasticJob, Saving, follow
from bench.lib_rates import falling_throughput
from bench.lib_redundant import RedundantJob, follow_redundant
from bench.report import Row
from mainstay.recovery.simulate.traces import TraceChange, read_changes

SOURCE = "Oobleck (SOSP'23), Table 2"
PERIODS = {"6h": 21600.0, "1h": 3600.0, "10m": 601.2}
"""Seconds between losses of its three columns; its 10-minute trace has 601.2 s."""


class Table2:
    """The inputs of Table 2 and its printed figures."""

    def __init__(self, folder: Path) -> None:
        self.raw: dict[str, Any] = json.loads((folder / "throughput_by_nodes.json").read_text())
        self.traces = {name: read_changes(folder / f"{name}.csv") for name in PERIODS}
        self.models: dict[str, float] = self.raw["samples_per_step"]

    def printed(self, system: str, model: str, column: str) -> float:
        return float(self.raw["paper_table2"][system][model][column])

    def rates(self, system: str, model: str) -> dict[int, float]:
        return {int(nodes): rate for nodes, rate in self.raw["throughput_by_nodes"][system][model].items()}

    def job(self, system: str, model: str) -> ElasticJob:
        """As the authors' simulator has it; Varuna's restart was measured with the checkpoint that it begins with."""
        down = float(self.raw["recovery_downtime_s"][system][model])
        saving = None
        if system == "varuna":
            cost = float(self.raw["varuna_checkpoint_s"][model])
            saving = Saving(cost_s=cost, every_steps=self.raw["varuna_checkpoint_every_steps"])
            down -= cost
        return ElasticJob(
            samples_per_s=self.rates(system, model), samples_per_step=self.models[model], regroup_s=down,
            ready_s=float(self.raw["instance_creation_s"]), saving=saving, works_on=True,
        )  # fmt: skip


def rows(folder: Path) -> Iterator[Row]:
    """Every cell of Table 2 that has a target, the columns of one model in one row."""
    table = Table2(folder)
    yield from _oobleck(table)
    yield from _varuna(table)
    yield _bamboo(table)


def _oobleck(table: Table2) -> Iterator[Row]:
    event, closed = {}, {}
    for model in table.models:
        job, rates = table.job("oobleck", model), table.rates("oobleck", model)
        for column, period in PERIODS.items():
            printed = table.printed("oobleck", model, column)
            event[model, column] = follow(table.traces[column], job).samples_per_s / printed - 1.0
            falling = tuple(rates[n] for n in range(30, 15, -1))
            closed[model, column] = (
                falling_throughput(falling, period, job.regroup_s, job.samples_per_step) / printed - 1.0
            )
    yield _cells("Oobleck's cells by event simulation", event, 0.01)
    yield _cells("Oobleck's cells in closed form", closed, 0.04)


def _varuna(table: Table2) -> Iterator[Row]:
    usual: dict[tuple[str, str], float] = {}
    hard: dict[tuple[str, str], float] = {}
    strict: dict[tuple[str, str], float] = {}
    for model in table.models:
        job = table.job("varuna", model)
        for column in ("6h", "1h"):
            printed = table.printed("varuna", model, column)
            error = follow(table.traces[column], job).samples_per_s / printed - 1.0
            (hard if (model, column) == ("GPT-3 6.7b", "1h") else usual)[model, column] = error
            honest = follow(table.traces[column], replace(job, works_on=False))
            strict[model, column] = honest.samples_per_s / printed - 1.0
    yield _cells("Varuna's cells, 6 h and 1 h", usual, 0.05)
    yield _cells("Varuna's cell 6.7b at 1 h", hard, 0.08)
    yield _cells("Varuna's cells, 6 h and 1 h, if no step counts while it restarts", strict, None)


@dataclass(order=True)
class _Tied:
    """An event as the authors' simulator compares it: by time and kind alone."""

    at_ms: int
    kind: int
    change: TraceChange = field(compare=False)


def _as_popped(trace: tuple[TraceChange, ...]) -> list[TraceChange]:
    """The trace with its ties in the order in which a binary heap gives them out.

    Thirty nodes come at one instant and which of them idle decides what a loss costs Bamboo; the authors' simulator
    leaves that to its heap, so that the printed figures hang on it.
    """
    heap: list[_Tied] = []
    for change in trace:
        heapq.heappush(heap, _Tied(round(change.at_s * 1000.0), 1 if change.kind == "add" else 2, change))
    heapq.heapify(heap)  # as the simulator does before it begins: among ties it is no idle step
    popped = []
    while heap:
        event = heapq.heappop(heap)
        if event.kind < 4:
            popped.append(event.change)
        if event.kind == 1:  # it queues that the node is ready, 45 s later, which moves the others about
            heapq.heappush(heap, _Tied(event.at_ms + 45_000, 4, event.change))
    return popped


def _bamboo(table: Table2) -> Row:
    errors, given = {}, {}
    for model, printed in table.raw["paper_table2"]["bamboo"].items():
        job = RedundantJob(
            samples_per_s=table.rates("bamboo", model), samples_per_step=table.models[model], stages=12,
            rendezvous_s=table.raw["bamboo"]["global_rendezvous_s"],
            reconfigure_s=table.raw["recovery_downtime_s"]["bamboo"][model],
            failover_factor=table.raw["bamboo"]["fallback_slowdown"], ready_s=table.raw["instance_creation_s"],
        )  # fmt: skip
        for column in PERIODS:
            found = follow_redundant(_as_popped(table.traces[column]), job).samples_per_s
            errors[model, column] = found / printed[column] - 1.0
            plain = follow_redundant(table.traces[column], job).samples_per_s
            given[model, column] = plain / printed[column] - 1.0
    row = _cells("Bamboo's cells by event simulation", errors, 0.02)
    worst = max(given.values(), key=abs)
    return replace(row, note=f"{row.note}; with nodes in the order of the file the worst is {worst:+.2%}")


def _cells(claim: str, errors: dict[tuple[str, str], float], bound: float | None) -> Row:
    worst = max(errors, key=lambda cell: abs(errors[cell]))
    within = sum(abs(error) <= (bound or 0.0) for error in errors.values())
    figure = f"{within} of {len(errors)}, worst {errors[worst]:+.2%}" if bound else f"worst {errors[worst]:+.2%}"
    return Row(
        claim=f"{SOURCE}: {claim}", figure=figure, unit="",
        target=f"all within {bound:.0%}" if bound else "-", holds=within == len(errors) if bound else None,
        kind="replayed", baseline="the printed figures", n=len(errors),
        note=", ".join(f"{model} {column} {error:+.2%}" for (model, column), error in errors.items()),
    )  # fmt: skip
