"""Run a suite on this machine, one benchmark after the other, each in a process of its own under a hard time-out.

Invariant: every benchmark of the suite is in the result, whatever became of it, and the process that calls this never
imports torch nor touches a driver. Sequential on purpose: two benchmarks at once would measure each other.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from probes.benchmarks.base import Benchmark, Device
from probes.benchmarks.isolation import Nursery, NurseryError, Outcome
from probes.benchmarks.progress import Progress, Watcher
from probes.benchmarks.result import BenchmarkResult, State, SuiteResult
from probes.benchmarks.suites import Suite

__all__ = ["NurseryError", "cohort_of", "run_benchmarks", "run_suite"]

DESCRIBE_SECONDS = 60.0
"""For asking the driver what there is: on an 8-GPU machine without persistence mode this takes up to 20 s."""


def run_suite(
    suite: Suite,
    *,
    device: str = "auto",
    directory: str = "",
    watcher: Watcher = lambda _: None,
    nursery: Nursery | None = None,
) -> SuiteResult:
    """Run every benchmark of ``suite`` on every device that it applies to.

    Args:
        suite: one of ``suites.SUITES``.
        device: ``auto`` (GPUs if there are any), ``cpu`` or ``cuda``.
        directory: where the disk is tested; empty: the directory for temporary files.
        watcher: told before and after each benchmark.
        nursery: where benchmarks run; a test may bring its own.

    Raises:
        NurseryError: torch is missing or does not import.
    """
    started_at = time.time()
    with nursery or Nursery() as home:
        found, error = _find_devices(home, device)
        kind = found.kind if found else None
        benchmarks = suite.benchmarks(kind, directory=directory) if kind else ()
        pairs = [(benchmark, one) for benchmark in benchmarks for one in _targets(benchmark, found)]
        results = tuple(run_benchmarks(pairs, suite.timeout_seconds, home, watcher))
    return SuiteResult(
        suite=suite.name,
        started_at=started_at,
        finished_at=time.time(),
        host=socket.gethostname(),
        device=f"{found.model} x{found.count}" if found else "unknown",
        cohort=cohort_of(found) if found else "unknown",
        software=found.software if found else "unknown",
        benchmarks=results,
        error=error,
    )


def run_benchmarks(
    pairs: Sequence[tuple[Benchmark, Device]], timeout: float, nursery: Nursery, watcher: Watcher
) -> Iterator[BenchmarkResult]:
    """Run each benchmark on its device; one that hangs ends within ``timeout`` plus five seconds."""
    for index, (benchmark, device) in enumerate(pairs):
        about = Progress(index=index, total=len(pairs), benchmark=benchmark.name, device=benchmark.where(device))
        watcher(about)
        order = {
            "benchmark": benchmark.name,
            "config": msgspec.to_builtins(benchmark.config),
            "device": msgspec.to_builtins(device),
        }
        result = _result(benchmark, device, nursery.call(order, timeout))
        watcher(
            Progress(
                index=index, total=len(pairs), benchmark=benchmark.name, device=benchmark.where(device), result=result
            )
        )
        yield result


def cohort_of(device: Device) -> str:
    """Machines that may be compared, named as the node daemon names them: ``8x-NVIDIA-H100-80GB-HBM3``."""
    words = re.sub(r"[\W_]+", "-", device.model).strip("-")
    return f"{device.count}x-{words}"[:128].rstrip("-")


def _find_devices(nursery: Nursery, wanted: str) -> tuple[Device | None, str | None]:
    outcome = nursery.call({"benchmark": None, "device": wanted}, DESCRIBE_SECONDS)
    if outcome.answer is None:
        return None, f"cannot tell which devices this machine has: {outcome.reason}"
    return msgspec.convert(outcome.answer, Device), None


def _targets(benchmark: Benchmark, found: Device | None) -> Iterable[Device]:
    if found is None:
        return ()
    if found.kind == "cpu" or not benchmark.each_device:
        return (found,)
    return (msgspec.structs.replace(found, index=index) for index in range(found.count))


def _result(benchmark: Benchmark, device: Device, outcome: Outcome) -> BenchmarkResult:
    if outcome.answer is not None:
        return msgspec.convert(outcome.answer, BenchmarkResult)
    state = State.TIMEOUT if outcome.timed_out else State.ERROR
    return benchmark.failed(device, state, outcome.reason or "no reason given", outcome.seconds)
