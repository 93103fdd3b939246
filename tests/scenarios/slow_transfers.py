"""Give ``--preload`` this module on one node: what it transfers in a check takes a tenth of a second longer."""

from __future__ import annotations

import time

from mainstay.probes.benchmarks import pair, tcp_echo
from mainstay.probes.benchmarks.tcp_echo import Wire


class SlowWire:
    """A connection that pauses before each message."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def sendall(self, data: bytes | bytearray, /) -> None:
        """Send ``data``, late."""
        time.sleep(0.1)
        self._wire.sendall(data)

    def recv_into(self, buffer: memoryview, /) -> int:
        """Receive as the connection does."""
        return self._wire.recv_into(buffer)


def _serve(wire: Wire) -> None:
    tcp_echo.serve(SlowWire(wire))


def _latencies(wire: Wire, size: int, budget: float, clock: tcp_echo.Clock) -> list[float]:
    return tcp_echo.latencies(SlowWire(wire), size, budget, clock)


pair.serve, pair.latencies = _serve, _latencies
