"""Run a suite on this machine, one benchmark after the other, each in a process of its own under a hard time-out.

Invariant: every benchmark of the suite is in the result, with any outcome (an optional one that cannot run here
under ``left_out``), and the process that calls this never imports torch nor touches a driver. Sequential on purpose,
two benchmarks at once would measure each other; only one that loads nothing shared (``Benchmark.together``) runs on all
GPUs of the machine at the same time.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import msgspec

from mainstay.probes.benchmarks.base import Benchmark, Device
from mainstay.probes.benchmarks.cancellation import CancelSignal
from mainstay.probes.benchmarks.isolation import COMMAND, BenchmarkForkServer, BenchmarkForkServerError, CallOutcome
from mainstay.probes.benchmarks.progress import Progress, Watcher
from mainstay.probes.benchmarks.result import BenchmarkResult, BenchmarkState, SuiteResult
from mainstay.probes.benchmarks.suites import Suite

__all__ = ["BenchmarkForkServerError", "ForkServerPool", "cohort_of", "run_benchmarks", "run_suite"]

DESCRIBE_SECONDS = 60.0
"""For asking the driver what there is: on an 8-GPU machine without persistence mode this takes up to 20 s."""
MOST_TOGETHER = 16
"""GPUs of one machine measured at the same time; what is beyond waits for its turn."""


class ForkServerPool(contextlib.ExitStack):
    """Fork servers, one for each GPU that is measured at the same time; each starts when it is first needed."""

    def __init__(self, command: Sequence[str] = COMMAND, interrupt: CancelSignal | None = None) -> None:
        super().__init__()
        self._command = command
        self._interrupt = interrupt
        self._fork_servers = [self._another()]

    def fork_server(self, number: int = 0) -> BenchmarkForkServer:
        while len(self._fork_servers) <= number:
            self._fork_servers.append(self._another())
        return self._fork_servers[number]

    def _another(self) -> BenchmarkForkServer:
        return self.enter_context(BenchmarkForkServer(self._command, self._interrupt))


def run_suite(
    suite: Suite,
    *,
    device: str = "auto",
    directory: str = "",
    only: Sequence[str] = (),
    watcher: Watcher = lambda _: None,
    interrupt: CancelSignal | None = None,
    home: ForkServerPool | None = None,
) -> SuiteResult:
    """Run every benchmark of ``suite`` on every device that it applies to.

    Args:
        suite: one of ``suites.SUITES``.
        device: ``auto`` (GPUs if there are any), ``cpu`` or ``cuda``.
        directory: where the disk is tested; empty: the directory for temporary files.
        only: names of benchmarks, a part of the suite; empty: all of it.
        watcher: told before and after each benchmark.
        interrupt: when set, the benchmark in progress ends and the rest is ``preempted``.
        home: where benchmarks run; a test may bring its own.

    Raises:
        BenchmarkForkServerError: torch is missing or does not import.
        ValueError: ``only`` names a benchmark that the suite does not have.
    """
    started_at = time.time()
    with home or ForkServerPool(interrupt=interrupt) as fork_servers:
        found, error = _find_devices(fork_servers.fork_server(), device)
        chosen = suite.benchmarks(found.kind, directory=directory, only=only) if found else ()
        left_out = _left_out(chosen, found, only)
        plan = [(one, tuple(_targets(one, found))) for one in chosen if one.name not in left_out]
        results = tuple(run_benchmarks(plan, suite.timeout_seconds, fork_servers, watcher))
    if interrupt:
        error = error or f"ended early: {interrupt.reason}"
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
        left_out=left_out,
    )


def _left_out(chosen: Sequence[Benchmark], found: Device | None, only: Sequence[str]) -> dict[str, str]:
    """Optional benchmarks that cannot run here, that ``only`` does not name → the reason."""
    if found is None:
        return {}
    asked = ((one.name, one.supported(found)) for one in chosen if one.optional and one.name not in only)
    return {name: reason for name, (able, reason) in asked if not able}


Plan = Sequence[tuple[Benchmark, Sequence[Device]]]
"""Benchmarks in order, each with the devices that it runs on."""


def run_benchmarks(
    plan: Plan, timeout: float, home: ForkServerPool, watcher: Watcher = lambda _: None
) -> Iterator[BenchmarkResult]:
    """Run each benchmark on its devices; one that hangs ends within ``timeout`` plus five seconds.

    Args:
        plan: what runs where, in this order.
        timeout: seconds for one benchmark on one device.
        home: the processes.
        watcher: told before and after each, one call at a time, from whichever thread.
    """
    total = sum(len(devices) for _, devices in plan)
    begun = 0
    for benchmark, devices in plan:
        yield from _Turn(benchmark, devices, timeout, home, watcher).run(begun, total)
        begun += len(devices)


@dataclass(frozen=True, slots=True)
class _Turn:
    """One benchmark on its devices."""

    benchmark: Benchmark
    devices: Sequence[Device]
    timeout: float
    home: ForkServerPool
    watcher: Watcher

    def run(self, begun: int, total: int) -> Iterator[BenchmarkResult]:
        """Results in the order of the devices; ``begun`` runs of ``total`` came before."""
        max_concurrent = min(len(self.devices), MOST_TOGETHER) if self.benchmark.together else 1
        fork_servers = [self.home.fork_server(number) for number in range(max_concurrent)]
        reporting = threading.Lock()

        def measure_device(number: int) -> BenchmarkResult:
            device = self.devices[number]
            name = self.benchmark.name
            step = Progress(index=begun + number, total=total, benchmark=name, device=self.benchmark.where(device))
            with reporting:
                self.watcher(step)
            outcome = fork_servers[number % max_concurrent].call(_order(self.benchmark, device), self.timeout)
            result = _result(self.benchmark, device, outcome)
            with reporting:
                self.watcher(replace(step, result=result))
            return result

        if max_concurrent <= 1:
            yield from map(measure_device, range(len(self.devices)))
            return
        with ThreadPoolExecutor(max_concurrent) as pool:
            for first in range(0, len(self.devices), max_concurrent):
                yield from pool.map(measure_device, range(first, min(first + max_concurrent, len(self.devices))))


def _order(benchmark: Benchmark, device: Device) -> dict[str, object]:
    return {
        "benchmark": benchmark.name,
        "config": msgspec.to_builtins(benchmark.config),
        "device": msgspec.to_builtins(device),
    }


def cohort_of(device: Device) -> str:
    """Machines that may be compared, named as the node daemon names them: ``8x-NVIDIA-H100-80GB-HBM3``."""
    words = re.sub(r"[\W_]+", "-", device.model).strip("-")
    return f"{device.count}x-{words}"[:128].rstrip("-")


def _find_devices(fork_server: BenchmarkForkServer, wanted: str) -> tuple[Device | None, str | None]:
    outcome = fork_server.call({"benchmark": None, "device": wanted}, DESCRIBE_SECONDS)
    if outcome.answer is None:
        return None, f"cannot tell which devices this machine has: {outcome.reason}"
    return msgspec.convert(outcome.answer, Device), None


def _targets(benchmark: Benchmark, found: Device | None) -> Iterable[Device]:
    if found is None:
        return ()
    if found.kind == "cpu" or not benchmark.each_device:
        return (found,)
    return (msgspec.structs.replace(found, index=index) for index in range(found.count))


def _result(benchmark: Benchmark, device: Device, outcome: CallOutcome) -> BenchmarkResult:
    if outcome.answer is not None:
        return msgspec.convert(outcome.answer, BenchmarkResult)
    state = BenchmarkState.ERROR
    if outcome.timed_out or outcome.interrupted:
        state = BenchmarkState.TIMEOUT if outcome.timed_out else BenchmarkState.PREEMPTED
    return benchmark.failed(device, state, outcome.reason or "no reason given", outcome.seconds)
