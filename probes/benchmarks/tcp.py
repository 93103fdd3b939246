"""TCP over the loopback device: the kernel's network path, before any cable is to blame."""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from mainstay.probes.benchmarks.base import Benchmark, BenchmarkReadings, Clock, Device
from mainstay.probes.benchmarks.defects import Defect
from mainstay.probes.benchmarks.result import Better, Metric
from mainstay.probes.benchmarks.tcp_echo import MOST_BYTES, close_session, latencies, rates, serve, set_nodelay

_TIMEOUT_SECONDS = 30.0
"""Without a byte for so long, loopback is broken: the slowest message here takes well under a second."""


class Tcp(Benchmark):
    """Seconds of a round trip for each message size, and bytes per second of a stream, between two processes.

    Every size is a metric of its own, since a path may fail some sizes only. What two nodes measure of each other
    is the same code over another address (``mainstay.probes.benchmarks.pair``).
    """

    name: ClassVar[str] = "tcp"
    catches: ClassVar[str] = "a slow network stack: firewall rules, a busy softirq core, small buffers, a wrong MTU"
    defects: ClassVar[tuple[Defect, ...]] = (Defect.NETWORK, Defect.HOST_CPU)
    each_device: ClassVar[bool] = False
    exclusive: ClassVar[bool] = False  # a few hundred KiB on the loopback device, for seconds, on one core
    place: ClassVar[str] = "host"

    @dataclass(frozen=True, kw_only=True)
    class Config(Benchmark.Config):
        sizes: tuple[int, ...] = (64, 1024, 8192, 65_536)
        """Bytes of a message of which round trips are timed."""
        stream: int = 65_536
        """Bytes of a message of the stream."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if not self.sizes or not all(0 < size <= MOST_BYTES for size in (*self.sizes, self.stream)):
                raise ValueError(f"sizes and stream must be 1 to {MOST_BYTES} bytes")

    config: Config

    def metrics(self, device: Device) -> tuple[Metric, ...]:
        del device
        trips = (Metric(name=f"latency_{_size(n)}", unit="s", better=Better.LOWER) for n in self.config.sizes)
        return (*trips, Metric(name=f"stream_{_size(self.config.stream)}", unit="B/s", better=Better.HIGHER))

    def measure(self, device: Device, clock: Clock) -> BenchmarkReadings:
        readings, budget = BenchmarkReadings(), self.config.budget_seconds
        *trips, stream = (metric.name for metric in self.metrics(device))
        with _loopback() as near:
            for name, size in zip(trips, self.config.sizes, strict=True):
                readings.values[name] = latencies(near, size, budget, clock)
            readings.values[stream] = rates(near, self.config.stream, budget, clock)
            close_session(near)
        return readings


def _size(size: int) -> str:
    return f"{size >> 10}KiB" if size >= 1024 and size % 1024 == 0 else f"{size}B"


@contextmanager
def _loopback() -> Iterator[socket.socket]:
    """A connection to another process over 127.0.0.1: in one process both ends would wait for one interpreter."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(_TIMEOUT_SECONDS)
        far = multiprocessing.get_context("fork").Process(target=_far, args=(listener,), daemon=True)
        far.start()
        try:
            with socket.create_connection(listener.getsockname(), _TIMEOUT_SECONDS) as near:
                set_nodelay(near)
                yield near
        finally:
            far.kill()
            far.join()


def _far(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(_TIMEOUT_SECONDS)
        set_nodelay(connection)
        serve(connection)
