"""Perftest over every RDMA port of the machine: back to itself, or to the port of the same name of another node."""

from __future__ import annotations

import re
import socket
import subprocess
import time
from contextlib import suppress
from typing import ClassVar

from mainstay.probes.benchmarks.base import BenchmarkReadings, Clock, Device, SuiteTier
from mainstay.probes.benchmarks.defects import Defect
from mainstay.probes.benchmarks.external_tool import ExternalToolBenchmark, rdma_devices
from mainstay.probes.benchmarks.pair_protocol import PairTask, Role, bandwidth_name, latency_name
from mainstay.probes.benchmarks.result import Better, Metric

_BANDWIDTH, _LATENCY, _EVEN = "write_bw_8MiB_slowest", "write_latency_2B_slowest", "evenness"
_FIRST_PORT = 18_600
_TRIES = 10
_PAUSE_SECONDS = 0.5
_UNITS = {"mb/sec": float(1 << 20), "mib/sec": float(1 << 20), "gb/sec": 1e9 / 8, "usec": 1e-6}
"""perftest's "MB" is 2**20 bytes, its "Gb" 1e9 bits (``--report_gbits``)."""
_PATH_FAILED = re.compile(r"Failed to complete|Completion with error|Failed status")
"""What perftest reports if a transfer began and the other end did not acknowledge it."""


class Perftest(ExternalToolBenchmark):
    """The slowest RDMA port's bandwidth and latency, and the slowest as a share of the fastest.

    A machine may have any number of ports: each is measured, one at a time, and the remark names the slowest. Loopback
    crosses the port's PCIe link and its engine, not the cable.
    """

    name: ClassVar[str] = "perftest"
    catches: ClassVar[str] = "an RDMA port behind a narrow PCIe link, or slower than the others of its machine"
    defects: ClassVar[tuple[Defect, ...]] = (Defect.FABRIC, Defect.HOST_LINK)
    tier: ClassVar[SuiteTier] = SuiteTier.STANDARD
    programs: ClassVar[tuple[str, ...]] = ("ib_write_bw", "ib_write_lat")
    run_seconds: ClassVar[float] = 40.0
    gpus: ClassVar[bool] = False

    def metrics(self, device: Device) -> tuple[Metric, ...]:
        del device
        return (
            Metric(name=_BANDWIDTH, unit="B/s", better=Better.HIGHER),
            Metric(name=_LATENCY, unit="s", better=Better.LOWER),
            Metric(name=_EVEN, unit="ratio", better=Better.HIGHER),
        )

    def supported(self, device: Device) -> tuple[bool, str]:
        """Any machine with an RDMA device; one whose ports are all down has it, and that is an error to report."""
        del device
        able, reason = self.installed()
        if able and not rdma_devices():
            return False, "this host has no RDMA device"
        return able, reason

    def measure(self, device: Device, clock: Clock) -> BenchmarkReadings:
        del device, clock
        ports = [name for name, active in rdma_devices().items() if active]
        if not ports:
            raise RuntimeError(f"no port is active of {', '.join(rdma_devices())}")
        readings = BenchmarkReadings(values={_BANDWIDTH: [], _LATENCY: [], _EVEN: []})
        for _ in range(max(1, self.config.repeats)):
            rates = {name: self._rate(name, place) for place, name in enumerate(ports)}
            latencies = [self._latency(name, place) for place, name in enumerate(ports)]
            slowest = min(rates, key=lambda name: rates[name])
            readings.values[_BANDWIDTH].append(rates[slowest])
            readings.values[_LATENCY].append(max(latencies))
            readings.values[_EVEN].append(rates[slowest] / max(rates.values()))
            if len(ports) > 1:
                readings.problems[_BANDWIDTH] = f"slowest of {len(ports)} ports: {slowest}"
        return readings

    def _rate(self, name: str, place: int) -> float:
        options = ("-d", name, "-F", "-s", str(8 << 20), "-n", "1000", "--report_gbits")
        return read(self._loopback("ib_write_bw", options, _FIRST_PORT + 2 * place), "average")[8 << 20]

    def _latency(self, name: str, place: int) -> float:
        options = ("-d", name, "-F", "-s", "2", "-n", "5000")
        return read(self._loopback("ib_write_lat", options, _FIRST_PORT + 2 * place + 1), "t_typical")[2]

    def _loopback(self, program: str, options: tuple[str, ...], port: int) -> str:
        """What the connecting side printed. The other side serves one connection only, so nothing may try its port."""
        command = self.command(program, *options, "-p", str(port))
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
            try:
                return self.connected(program, (*options, "-p", str(port), "127.0.0.1"), server)
            finally:
                server.kill()

    def connected(self, program: str, options: tuple[str, ...], server: subprocess.Popen[bytes] | None = None) -> str:
        """What the connecting side printed; ``server`` is the other side, if it runs here."""
        for _ in range(_TRIES):
            if server is None:
                time.sleep(_PAUSE_SECONDS)
            else:
                with suppress(subprocess.TimeoutExpired):
                    server.wait(_PAUSE_SECONDS)  # until it listens; one that has ended will not
            try:
                return self.output(program, *options)
            except RuntimeError as error:
                if (server and server.poll() is not None) or "connect" not in str(error).lower():
                    raise
        raise RuntimeError(f"{program}: the serving side did not listen ({' '.join(options)})")


class _PerftestPair(Perftest):
    programs: ClassVar[tuple[str, ...]] = ("ib_write_bw", "ib_read_lat")


_PAIR = _PerftestPair(_PerftestPair.Config())


def missing() -> str:
    """Why this node cannot take part in a pair; empty if it can."""
    able, reason = _PAIR.supported(Device(kind="cpu", model=""))
    return "" if able else reason


def measure(order: PairTask, connection: socket.socket, clock: Clock) -> dict[str, list[float]]:
    """The slowest port's ``ib_write_bw -b`` (the sum of both directions) and, for who connects, ``ib_read_lat``.

    Raises:
        RuntimeError: no port can be used, or a program failed before it transferred.
        OSError: a transfer failed.
    """
    del clock
    own = [order.nic] if order.nic else [name for name, active in rdma_devices().items() if active]
    connection.sendall(f"{' '.join(own)}\n".encode())
    theirs = connection.makefile().readline().split()
    if not (ports := [name for name in own if name in theirs]):
        raise RuntimeError(f"no RDMA port of the same name is active: {own} here, {theirs} at {order.peer}")
    small, large = min(order.sizes), max(order.sizes)

    def run(program: str, port: str, *options: str) -> str:
        options = ("-d", port, "-F", *options, "-p", str(order.port))
        try:
            if order.role is Role.LISTEN:
                return _PAIR.output(program, *options)
            host = connection.getpeername()[0].removeprefix("::ffff:")
            return _PAIR.connected(program, (*options, host))
        except RuntimeError as error:
            if _PATH_FAILED.search(str(error)):
                raise ConnectionError(f"{port}: {error}") from None
            raise

    bulk = [run("ib_write_bw", port, "-b", "-s", str(large), "-n", "1000", "--report_gbits") for port in ports]
    values = {bandwidth_name(large): [min(read(text, "average")[large] for text in bulk)]}
    trips = [run("ib_read_lat", port, "-s", str(small), "-n", "5000") for port in ports]
    if order.role is Role.CONNECT:
        slowest = max(read(text, "t_typical")[small] for text in trips)
        values |= {latency_name(small): [slowest], bandwidth_name(small): [small / slowest]}
    return values


def read(text: str, column: str) -> dict[int, float]:
    """Bytes → the figure of a column, in B/s or seconds.

    Args:
        text: what a program of perftest printed.
        column: a part of its head: ``average`` (bandwidth), ``t_typical`` (latency).

    Raises:
        ValueError: there is no such column, or no row below it.
    """
    found: dict[int, float] = {}
    place, scale = 0, 0.0
    for line in text.splitlines():
        if line.strip().startswith("#bytes"):
            heads = re.split(r"\s{1,}(?=#|BW|MsgRate|t_|99)", line.strip())
            place = next((n for n, head in enumerate(heads) if column in head), 0)
            unit = re.search(r"\[(.+?)\]", heads[place])
            scale = _UNITS.get(unit.group(1).lower(), 0.0) if unit else 0.0
            continue
        words = line.split()
        if place and scale and len(words) > place and all(word.isdecimal() for word in words[:2]):
            found[int(words[0])] = float(words[place]) * scale
    if not found:
        raise ValueError(f"perftest printed no column {column!r} with a row below it")
    return found
