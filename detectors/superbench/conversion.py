"""SuperBench results as native ones, so that criteria are learned from them and applied to them.

``benchmark/[run/]metric:rank`` is a metric of a benchmark on the device ``rank:N``, or ``host`` without a rank. Which
way a metric improves follows from its name; a metric whose name does not tell is left out, with the reason. Return
codes are no metrics: a benchmark that returned another code than 0 on a node measured nothing there. Results of
monitoring are left out. SuperBench writes neither units nor times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from mainstay.detectors.base import Floats
from mainstay.detectors.cli_errors import InputError, read_json
from mainstay.detectors.superbench.names import direction
from mainstay.detectors.superbench.results import Results, read_results
from mainstay.detectors.validation.criteria import RefusedMetric
from mainstay.probes.benchmarks.result import (
    RAW,
    BenchmarkResult,
    BenchmarkState,
    MetricValues,
    SuiteResult,
)
from mainstay.probes.decoding import UNREADABLE

COHORT: Final = "superbench"
"""Of all nodes of SuperBench files, which do not name the hardware: fit files of one model at a time."""
NO_DIRECTION: Final = "its name does not say whether more or less is better"
Columns = dict[str, dict[str, int]]
"""Metric -> device -> place in ``Results.metrics``."""


def read_runs(file: Path) -> list[SuiteResult]:
    """The runs of a file: that of ``mainstay validate --output``, or of each node of a SuperBench file.

    A SuperBench file is JSONL (``results-summary.jsonl``) or one JSON object. An object without ``node`` belongs to the
    node that its folder names (``nodes/HOST/results.json``), or else its file. Runs ended when the file was written.

    Raises:
        InputError: names the file and what is wrong.
    """
    try:
        content = file.read_bytes()
        whole = msgspec.json.decode(content, type=dict[str, Any])
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from error
    except UNREADABLE:
        whole = {}
    if "suite" in whole or not (any("/" in name for name in whole) or _is_table(content)):
        return [read_json(file, SuiteResult)]
    if whole:
        name = file.absolute().parent.name if file.stem.startswith("results") else file.stem
        content = msgspec.json.encode({"node": name} | whole)
    try:
        return suite_results(read_results(content.splitlines()), file.stat().st_mtime)
    except InputError as error:
        raise InputError(f"{file}: {error}") from error


def unread_metrics(runs: Sequence[SuiteResult]) -> list[RefusedMetric]:
    """What was left out of SuperBench files, each metric once, as criteria tell it."""
    found = {name: why for run in runs if run.cohort == COHORT for name, why in run.left_out.items()}
    split = ((*name.split("/", 1), why) for name, why in sorted(found.items()))
    return [RefusedMetric(benchmark=b, metric=m, cohort=COHORT, reason=why) for b, m, why in split]


def _is_table(content: bytes) -> bool:
    """Whether the first line is an object with names of SuperBench's form."""
    first = next((line for line in content.splitlines() if line.strip()), b"")
    return first.lstrip().startswith(b"{") and b"/" in first and b'"node"' in first


def suite_results(results: Results, time: float) -> list[SuiteResult]:
    """One run a node; ``time`` (Unix seconds) stands for that of all."""
    gates, codes, left_out = _columns(results)
    return [
        SuiteResult(
            suite="superbench",
            started_at=time,
            finished_at=time,
            host=node,
            device="SuperBench results",
            cohort=COHORT,
            software="",
            benchmarks=tuple(_node_results(results.values[number], gates, codes)),
            left_out=left_out,
        )
        for number, node in enumerate(results.nodes)
    ]


def _columns(results: Results) -> tuple[dict[str, Columns], dict[str, list[int]], dict[str, str]]:
    """Benchmark -> its gates; benchmark -> places of its return codes; what is left out -> why."""
    gates: dict[str, Columns] = defaultdict(lambda: defaultdict(dict))
    codes: dict[str, list[int]] = defaultdict(list)
    left_out: dict[str, str] = {}
    for place, name in enumerate(results.metrics):
        benchmark, _, rest = name.partition("/")
        if not rest or benchmark == "monitor":
            continue
        metric, _, rank = rest.rpartition(":") if rest.rpartition(":")[2].isdigit() else (rest, "", "")
        if metric.endswith("return_code"):
            codes[benchmark].append(place)
        elif direction(metric) is None:
            left_out[f"{benchmark}/{metric}"] = NO_DIRECTION
        else:
            gates[benchmark][metric][f"rank:{rank}" if rank else "host"] = place
    return gates, codes, left_out


def _node_results(values: Floats, gates: dict[str, Columns], codes: dict[str, list[int]]) -> list[BenchmarkResult]:
    """A result of one node for each benchmark and device.

    Metrics that a benchmark has on other devices than its others are a benchmark of their own, named after the first of
    the devices: they are not missing on the rest.
    """
    found: dict[tuple[str, str], BenchmarkResult] = {}
    for benchmark, metrics in gates.items():
        failed = next(
            (f"return code {values[at]:g}" for at in codes[benchmark] if values[at] > 0 or values[at] < 0), None
        )
        alike = len({frozenset(places) for places in metrics.values()}) == 1
        for metric, places in metrics.items():
            better = direction(metric)
            assert better is not None  # _columns left the others out
            name = benchmark if alike else f"{benchmark} from {min(places)}"
            for device, at in places.items():
                measured = failed is None and np.isfinite(values[at])
                one = MetricValues(
                    name=metric, unit=RAW, better=better, values=(float(values[at]),) if measured else ()
                )
                before = found.get((name, device))
                found[name, device] = BenchmarkResult(
                    benchmark=name,
                    state=BenchmarkState.OK if failed is None else BenchmarkState.ERROR,
                    error=failed or "a metric without a number is not measured",
                    seconds=0.0,
                    device=device,
                    metrics=(*(before.metrics if before else ()), one),
                )
    return list(found.values())
