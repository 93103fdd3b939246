"""One fork server for all of a worker's benchmark tests: torch is imported once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mainstay.probes.benchmarks.base import Benchmark, Clock, Device
from mainstay.probes.benchmarks.isolation import COMMAND
from mainstay.probes.benchmarks.result import BenchmarkResult
from mainstay.probes.benchmarks.runner import ForkServerPool, run_benchmarks

Run = Callable[..., BenchmarkResult]


class Ticking:
    """A clock on which a second passes between any two looks."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture
def ticking() -> Clock:
    return Ticking()


@pytest.fixture(scope="session")
def cpu() -> Device:
    return Device(kind="cpu", model="test", count=2)


@pytest.fixture(scope="session")
def run(cpu: Device) -> Iterator[Run]:
    """Run one benchmark in a process of its own, as ``mainstay validate`` does."""
    with ForkServerPool() as home:

        def _run(benchmark: Benchmark, timeout: float = 60.0) -> BenchmarkResult:
            return next(run_benchmarks([(benchmark, (cpu,))], timeout, home))

        yield _run


@pytest.fixture(scope="session")
def misbehaving() -> tuple[str, ...]:
    """Command of a fork server that also knows the benchmarks of ``misbehaving.py``."""
    return (COMMAND[0], str(Path(__file__).with_name("misbehaving.py")))
