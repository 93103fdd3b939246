"""SuperBench results as native ones, so that criteria are learned from them and applied to them.

``benchmark/[run/]metric:rank`` is a metric of a benchmark on the device ``rank:N``, or ``host`` without a rank. Which
way a metric improves comes from the caller (rules, criteria) or follows from its name; a metric without either is left
out, with the reason. Return codes are no metrics: a benchmark that returned another code than 0 on a node
measured nothing there. Results of monitoring are left out. SuperBench writes neither units nor times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from mainstay.detectors.base import Floats
from mainstay.detectors.cli_errors import InputError, naming, read_json
from mainstay.detectors.superbench.names import direction
from mainstay.detectors.superbench.results import Results, read_results
from mainstay.detectors.validation.verdict import RefusedMetric
from mainstay.probes.benchmarks.result import (
    RAW,
    BenchmarkResult,
    BenchmarkState,
    Better,
    MetricValues,
    SuiteResult,
)
from mainstay.probes.decoding import UNREADABLE

COHORT: Final = "superbench"
"""Of all nodes of SuperBench files, which do not name the hardware: fit files of one model at a time."""
NO_DIRECTION: Final = "neither its name nor a rule (--rules) says whether more or less is better"
Columns = dict[str, dict[str, int]]
"""Metric -> device -> place in ``Results.metrics``."""
Directions = Callable[[str], Better | None]
"""Full name of a metric -> which way it improves; None: its name decides."""


def read_runs(file: Path, directions: Directions = lambda _: None) -> list[SuiteResult]:
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
    with naming(file):
        return suite_results(read_results(content.splitlines()), file.stat().st_mtime, directions)


def unread_metrics(runs: Sequence[SuiteResult]) -> list[RefusedMetric]:
    """What was left out of SuperBench files, each metric once, as criteria tell it."""
    found = {name: why for run in runs if run.cohort == COHORT for name, why in run.left_out.items()}
    split = ((*name.split("/", 1), why) for name, why in sorted(found.items()))
    return [RefusedMetric(benchmark=b, metric=m, cohort=COHORT, reason=why) for b, m, why in split]


def _is_table(content: bytes) -> bool:
    """Whether the first line is an object with names of SuperBench's form."""
    first = next((line for line in content.splitlines() if line.strip()), b"")
    return first.lstrip().startswith(b"{") and b"/" in first and b'"node"' in first


def full_names(run: SuiteResult) -> Iterator[tuple[str, str, str]]:
    """Benchmark, metric, and SuperBench's full name of each metric on each device of a converted run."""
    for one in run.benchmarks:
        rank = one.device.removeprefix("rank") if one.device != "host" else ""
        for metric in one.metrics:
            yield one.benchmark, metric.name, f"{one.benchmark.partition(' from ')[0]}/{metric.name}{rank}"


def suite_results(results: Results, time: float, directions: Directions) -> list[SuiteResult]:
    """One run a node; ``time`` (Unix seconds) stands for that of all."""
    gates, codes, better = _columns(results, directions)
    left_out = {f"{b}/{m}": NO_DIRECTION for b, metrics in gates.items() for m in metrics if (b, m) not in better}
    return [
        SuiteResult(
            suite="superbench",
            started_at=time,
            finished_at=time,
            host=node,
            device="SuperBench results",
            cohort=COHORT,
            software="",
            benchmarks=tuple(_node_results(results.values[number], gates, codes, better)),
            left_out=left_out,
        )
        for number, node in enumerate(results.nodes)
    ]


def _columns(
    results: Results, directions: Directions
) -> tuple[dict[str, Columns], dict[str, list[int]], dict[tuple[str, str], Better]]:
    """Benchmark -> its metrics; benchmark -> places of its return codes; benchmark and metric -> its direction."""
    gates: dict[str, Columns] = defaultdict(lambda: defaultdict(dict))
    codes: dict[str, list[int]] = defaultdict(list)
    better: dict[tuple[str, str], Better] = {}
    for place, name in enumerate(results.metrics):
        benchmark, _, rest = name.partition("/")
        if not rest or benchmark == "monitor":
            continue
        metric, _, rank = rest.rpartition(":") if rest.rpartition(":")[2].isdigit() else (rest, "", "")
        if metric.endswith("return_code"):
            codes[benchmark].append(place)
            continue
        gates[benchmark][metric][f"rank:{rank}" if rank else "host"] = place
        if found := directions(name) or direction(metric):
            better.setdefault((benchmark, metric), found)
    return gates, codes, better


def _node_results(
    values: Floats, gates: dict[str, Columns], codes: dict[str, list[int]], better: dict[tuple[str, str], Better]
) -> list[BenchmarkResult]:
    """A result of one node for each benchmark and device.

    Metrics that a benchmark has on other devices than its others are a benchmark of their own, named after the first of
    the devices: they are not missing on the rest.
    """
    found: dict[tuple[str, str], BenchmarkResult] = {}
    for benchmark, every in gates.items():
        metrics = {metric: places for metric, places in every.items() if (benchmark, metric) in better}
        failed = next(
            (f"return code {values[at]:g}" for at in codes[benchmark] if values[at] > 0 or values[at] < 0), None
        )
        alike = len({frozenset(places) for places in metrics.values()}) == 1
        for metric, places in metrics.items():
            name = benchmark if alike else f"{benchmark} from {min(places)}"
            for device, at in places.items():
                measured = failed is None and np.isfinite(values[at])
                one = MetricValues(
                    name=metric,
                    unit=RAW,
                    better=better[benchmark, metric],
                    values=(float(values[at]),) if measured else (),
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
