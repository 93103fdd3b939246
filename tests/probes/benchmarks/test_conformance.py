"""Every benchmark in the table, held to the contract of ``probes/benchmarks/base.py``: one test a benchmark and rule.

A benchmark's own test file supplies ``tiny()``: the benchmark at a size that takes a fraction of a second.
"""

from __future__ import annotations

import importlib.util
import math
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mainstay.probes.benchmarks.base import Benchmark, Device, Kind
from mainstay.probes.benchmarks.result import BenchmarkResult, BenchmarkState, Better, Metric
from mainstay.probes.benchmarks.suites import BENCHMARKS, SUITES, TYPICAL

# One of them compiles: together with the compiled step's own test, what the first has compiled the second finds.
pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("compiled")]

ROOT = Path(__file__).resolve().parents[3]
SLOW = {"train_compiled", "expert_parallel", *(name for name in BENCHMARKS if name.startswith("model_"))}
"""What compiles, or imports torch's compiler with its first optimizer."""
EVERY = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in sorted(BENCHMARKS)]
)
KINDS = pytest.mark.parametrize("kind", ["cpu", "cuda"])
UNITS = {"s": Better.LOWER, "B/s": Better.HIGHER, "FLOP/s": Better.HIGHER, "OP/s": Better.HIGHER, "Hz": Better.HIGHER,
         "ratio": Better.HIGHER, "": Better.EQUAL}  # fmt: skip
Run = Callable[..., BenchmarkResult]


def tiny(name: str) -> Benchmark:
    path = Path(__file__).with_name(f"test_{name}.py")
    assert path.exists(), f"benchmark {name} needs {path.name} with tiny()"
    spec = importlib.util.spec_from_file_location(f"conformance_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    benchmark: Benchmark = module.tiny()
    return benchmark


@pytest.fixture(scope="module")
def measured(run: Run) -> Callable[[str], BenchmarkResult]:
    """The tiny benchmark's result, measured once."""
    return cache(lambda name: run(tiny(name), 300.0))  # a cold compilation on a busy machine takes minutes


@EVERY
def test_it_measures_what_it_declares(name: str, measured: Callable[[str], BenchmarkResult], cpu: Device) -> None:
    result = measured(name)
    assert result.benchmark == name
    able, reason = tiny(name).supported(cpu)
    if able or not BENCHMARKS[name].optional:
        assert result.state is BenchmarkState.OK, result.error
        assert result.seconds > 0
    else:  # a program that is not here: its own test runs one in its place
        assert (result.state, result.error) == (BenchmarkState.UNSUPPORTED, reason)
    reported = [Metric(name=m.name, unit=m.unit, better=m.better) for m in result.metrics]
    assert reported == list(tiny(name).metrics(cpu))


@EVERY
def test_its_values_are_finite_and_positive(name: str, measured: Callable[[str], BenchmarkResult]) -> None:
    result = measured(name)
    for metric in result.metrics:
        explained = result.state is BenchmarkState.UNSUPPORTED or f"{metric.name}: " in (result.error or "")
        assert metric.values or explained, "a metric without values needs a reason"
        assert all(math.isfinite(value) for value in metric.values)
        assert all(value > 0 for value in metric.values) or metric.better is Better.EQUAL


@EVERY
def test_its_result_survives_json(name: str, measured: Callable[[str], BenchmarkResult]) -> None:
    result = measured(name)
    assert msgspec.json.decode(msgspec.json.encode(result), type=BenchmarkResult) == result


@EVERY
def test_its_config_survives_json(name: str) -> None:
    benchmark = tiny(name)
    again = type(benchmark).build(msgspec.json.decode(msgspec.json.encode(benchmark.config)))
    assert again.config == benchmark.config


@EVERY
@pytest.mark.parametrize(("field", "value"), [("budget_seconds", "soon"), ("budget_seconds", -1.0), ("threads", -2)])
def test_a_wrong_config_is_refused_by_the_field(name: str, field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        BENCHMARKS[name].build({field: value})


@EVERY
@KINDS
def test_units_and_directions_agree(name: str, kind: Kind) -> None:
    metrics = tiny(name).metrics(Device(kind=kind, model="any", count=8))
    assert metrics
    assert len({metric.name for metric in metrics}) == len(metrics)
    assert all(UNITS[metric.unit] is metric.better for metric in metrics)


@EVERY
def test_it_says_what_it_catches(name: str) -> None:
    assert BENCHMARKS[name].name == name
    assert len(BENCHMARKS[name].catches.split()) >= 5


@EVERY
def test_it_says_which_defects_it_finds(name: str) -> None:
    defects = BENCHMARKS[name].defects
    assert defects
    assert len(set(defects)) == len(defects)


@EVERY
@KINDS
def test_it_states_its_time(name: str, kind: Kind) -> None:
    """A longer suite takes longer, and a part of a second is never nothing."""
    device = TYPICAL[kind]
    seconds = [b.expected_seconds(device) for s in SUITES.values() for b in s.benchmarks(kind) if b.name == name]
    assert all(0.0 < second < math.inf for second in seconds)
    assert seconds == sorted(seconds)


@EVERY
def test_a_failed_run_has_every_metric_and_no_value(name: str, cpu: Device) -> None:
    benchmark = tiny(name)
    result = benchmark.failed(cpu, BenchmarkState.ERROR, "because")
    assert [m.name for m in result.metrics] == [m.name for m in benchmark.metrics(cpu)]
    assert not any(m.values for m in result.metrics)


@EVERY
def test_supported_is_honest(name: str, measured: Callable[[str], BenchmarkResult], cpu: Device) -> None:
    able, reason = tiny(name).supported(cpu)
    assert able is (measured(name).state is BenchmarkState.OK)
    assert able or reason


@EVERY
@KINDS
def test_every_suite_measures_the_same_metrics(name: str, kind: Kind) -> None:
    """Criteria learned from one suite must judge the others."""
    device = Device(kind=kind, model="any", count=8)
    seen = {
        benchmark.metrics(device)
        for suite in SUITES.values()
        for benchmark in suite.benchmarks(kind)
        if benchmark.name == name
    }
    assert len(seen) == 1, "in a suite, with the same sizes in each"


def test_describing_benchmarks_needs_neither_torch_nor_numpy() -> None:
    code = (
        "import sys; from mainstay.probes.benchmarks.suites import describe;"
        "import mainstay.probes.benchmarks.runner; describe();"
        "assert not {'torch', 'numpy'} & set(sys.modules), 'heavy'"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)
