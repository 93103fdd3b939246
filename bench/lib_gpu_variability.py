"""The runs of TACC Longhorn's V100s (hal-uw/blox-pal) as samples, and who counts as healthy.

The data have no labels. A GPU is **not** counted as healthy where its median is more than 5 % above the fleet's, where
its later runs are more than 5 % above its earlier ones, or where it is part of a naturally slow whole node: every
measured GPU of the node (two at least) is more than 2 % and more than four robust deviations above the fleet's median.
Medians of all of its runs decide, with hindsight that no criterion under test has.
"""

from __future__ import annotations

import csv
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mainstay.detectors.base import Floats
from mainstay.detectors.validation.criterion_limits import robust_scale

FOLDER = (
    Path(os.environ.get("MAINSTAY_TEST_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
    / "gpu-variability"
)
BENCHMARKS = ("sgemm", "bert", "pagerank", "resnet")
SLOW = 1.05
"""Slower than this times the fleet's median, or its own past's, is no healthy GPU."""
LEAST_RUNS = 4
"""Two before and two after; 11 SGEMM GPUs have fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU's runs in order of time."""

    name: str
    node: str
    """Its own name where the node is not known: then it stands alone."""
    times: Floats
    """[runs]; ``perf``, milliseconds."""
    clocks: Floats
    """[runs]; megahertz."""

    @property
    def median(self) -> float:
        return float(np.median(self.times))

    @property
    def halves(self) -> tuple[Floats, Floats]:
        middle = len(self.times) // 2
        return self.times[:middle], self.times[middle:]


def load(benchmark: str, folder: Path = FOLDER) -> list[Gpu]:
    """GPUs with four runs or more, by name.

    Raises:
        OSError: the data are not there.
    """
    with (folder / f"{benchmark}-longhorn-agg.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    groups: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        groups[row["uuid"]].append(row)
    return [_gpu(name, runs) for name, runs in sorted(groups.items()) if len(runs) >= LEAST_RUNS]


def _gpu(name: str, runs: list[dict[str, str]]) -> Gpu:
    runs = sorted(runs, key=lambda row: float(row["ts"]))
    places = {f"{row['cabinet']}-{row['node']}" for row in runs} - {"-1--1"}
    return Gpu(
        name=name,
        node=min(places, default=name),
        times=np.array([float(row["perf"]) for row in runs]),
        clocks=np.array([float(row["freq"]) if row["freq"] not in ("", "-") else np.nan for row in runs]),
    )


def slow_nodes(gpus: Sequence[Gpu]) -> set[str]:
    """Nodes of two GPUs or more that are slow as a whole."""
    logs = np.log([gpu.median for gpu in gpus])
    edge = float(np.median(logs)) + max(np.log(1.02), 4 * robust_scale(logs))
    by_node: Mapping[str, list[bool]] = defaultdict(list)
    for gpu, value in zip(gpus, logs, strict=True):
        by_node[gpu.node].append(bool(value > edge))
    return {node for node, slow in by_node.items() if len(slow) > 1 and all(slow)}


def is_healthy(gpus: Sequence[Gpu]) -> list[bool]:
    """By the definition at the head of this module."""
    fleet = float(np.median([gpu.median for gpu in gpus]))
    bad = slow_nodes(gpus)
    return [
        gpu.median <= SLOW * fleet
        and float(np.median(gpu.halves[1])) <= SLOW * float(np.median(gpu.halves[0]))
        and gpu.node not in bad
        for gpu in gpus
    ]


def splits(gpus: Sequence[Gpu], times: int, seed: int = 0) -> Iterator[tuple[list[int], list[int]]]:
    """Two halves of the nodes, drawn ``times`` times: indices of the GPUs to learn from and of those to judge."""
    nodes = sorted({gpu.node for gpu in gpus})
    random = np.random.default_rng(seed)
    for _ in range(times):
        learn = {nodes[int(i)] for i in random.permutation(len(nodes))[: len(nodes) // 2]}
        yield (
            [i for i, gpu in enumerate(gpus) if gpu.node in learn],
            [i for i, gpu in enumerate(gpus) if gpu.node not in learn],
        )
