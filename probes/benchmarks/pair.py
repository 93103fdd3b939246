"""What two nodes measure between them: ``python -m mainstay.probes.benchmarks.pair NODE``, one side of it.

The order (``pairing.PairOrder``) comes as JSON on standard input, the result goes to standard output. The listening
side takes the port that the order names, the connecting side tries that port of the order's address until the deadline:
the service gives every pair of a round a port of its own, so nothing has to be announced. Then both drive in turn
(``mainstay.probes.benchmarks.tcp_echo``), and each reports what its own clock says. Other benchmarks than TCP begin
once the two have met, and take the same port.

The two know each other by a word made of the order. It keeps rounds and strangers apart; it is no secret worth the
name, and nothing but our own test bytes crosses the connection.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from mainstay.probes.benchmarks import collective_pair, perftest
from mainstay.probes.benchmarks.base import Clock
from mainstay.probes.benchmarks.pair_protocol import PAIR, PairTask, Role, bandwidth_name, latency_name, metrics
from mainstay.probes.benchmarks.result import BenchmarkResult, BenchmarkState, MetricValues
from mainstay.probes.benchmarks.tcp_echo import MOST_BYTES, Wire, close_session, latencies, receive, serve, set_nodelay

BUDGET_SECONDS: Final = 0.5
"""Of measuring one size, on each side."""
MARGIN_SECONDS: Final = 5.0
"""Before the deadline, for the result to reach the service."""
_MOST_SIZES: Final = 16
_GREETING_SECONDS: Final = 5.0
"""For a connection to say whose it is; a stranger's is closed."""
_PAUSE_SECONDS: Final = 0.2
_WORD_BYTES: Final = 16
_TOOLS: Final = {"perftest_pair": perftest, "all_reduce_pair": collective_pair, "all_to_all_pair": collective_pair}
"""Benchmarks beside TCP → module with ``missing`` and ``measure``."""

Wrap = Callable[[socket.socket], Wire]
"""Puts something between the measurement and its socket: a test's slow path."""


class _UnableError(Exception):
    """This side cannot do its part."""

    def __init__(self, state: BenchmarkState, reason: str) -> None:
        super().__init__(reason)
        self.state = state


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a pair on this machine.

    Args:
        order: from the service.
        node: this node's name.
        wrap: around the connection.
        now: Unix seconds.
        clock: what transfers are timed by.
        listener: a socket that listens already; None: one on the order's port.
    """

    order: PairTask
    node: str
    wrap: Wrap = lambda connection: connection
    now: Clock = time.time
    clock: Clock = time.perf_counter
    listener: socket.socket | None = None

    def listening(self) -> Side:
        """The same with an open listener on a free port, which its ``order`` names."""
        listener = self._bound(0)
        order = msgspec.structs.replace(self.order, port=listener.getsockname()[1])
        return replace(self, order=order, listener=listener)

    def run(self) -> BenchmarkResult:
        """Measure; every failure is a result: ``timeout`` if the other side or the path is at fault, or may be."""
        begun = self.clock()
        values: dict[str, list[float]] = {}
        try:
            self._check()
            with self._meet() as connection:
                self._measure(connection, values)
        except _UnableError as error:
            return failed(self.order, error.state, str(error), self.clock() - begun)
        except (RuntimeError, ValueError) as error:  # of a tool
            return failed(self.order, BenchmarkState.ERROR, str(error), self.clock() - begun)
        except OSError as error:
            measured = ", ".join(values) or "nothing"
            words = (
                f"the transfer with {self.order.peer} broke off ({measured} measured): {error or type(error).__name__}"
            )
            return failed(self.order, BenchmarkState.TIMEOUT, words, self.clock() - begun)
        return _result(self.order, BenchmarkState.OK, None, self.clock() - begun, values)

    def _check(self) -> None:
        order = self.order
        if order.benchmark != PAIR:
            tool = _TOOLS.get(order.benchmark)
            if reason := tool.missing() if tool else f"this version does not know the benchmark {order.benchmark!r}":
                raise _UnableError(BenchmarkState.UNSUPPORTED, reason)
        if order.gpu:
            raise _UnableError(
                BenchmarkState.UNSUPPORTED, f"pairs are measured from host memory, not from GPU {order.gpu}"
            )
        most = MOST_BYTES if order.benchmark == PAIR else 1 << 30
        if not 0 < len(order.sizes) <= _MOST_SIZES or not all(0 < size <= most for size in order.sizes):
            raise _UnableError(BenchmarkState.ERROR, f"sizes must be 1 to {_MOST_SIZES} of 1 to {most} bytes")
        if self._left() <= 0:
            raise _UnableError(BenchmarkState.ERROR, "the deadline had passed before the pair could start")

    def _left(self) -> float:
        return self.order.deadline_at - MARGIN_SECONDS - self.now()

    def _meet(self) -> socket.socket:
        try:
            connection = self._listen() if self.order.role is Role.LISTEN else self._connect()
        except socket.gaierror as error:
            raise _UnableError(
                BenchmarkState.ERROR, f"the address {self.order.address!r} is not known here: {error}"
            ) from None
        if connection is None:
            how = "came to" if self.order.role is Role.LISTEN else "answered at"
            where = f"{self.order.address} port {self.order.port}"
            raise _UnableError(BenchmarkState.TIMEOUT, f"{self.order.peer} never {how} {where}")
        set_nodelay(connection)
        return connection

    def _listen(self) -> socket.socket | None:
        """The peer's connection; None if it does not come."""
        with self.listener or self._bound(self.order.port) as listener:
            while (left := self._left()) > 0:
                listener.settimeout(left)
                with suppress(TimeoutError):
                    connection, _ = listener.accept()
                    if _greeted(connection, self._word(), answer=True):
                        return connection
        return None

    def _bound(self, port: int) -> socket.socket:
        """A listener on the order's address if that is one of ours, else on all: a host name may mean loopback here."""
        try:
            ipaddress.ip_address(self.order.address)
            return self._nic(socket.create_server((self.order.address, port), family=_family(self.order.address)))
        except (ValueError, OSError):
            pass
        try:
            both = socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if both else socket.AF_INET
            return self._nic(socket.create_server(("", port), family=family, dualstack_ipv6=both))
        except OSError as error:
            raise _UnableError(BenchmarkState.ERROR, f"cannot listen on port {port}: {error}") from None

    def _connect(self) -> socket.socket | None:
        """A connection to the peer; None if it does not answer."""
        where = socket.getaddrinfo(self.order.address, self.order.port, type=socket.SOCK_STREAM)
        while (left := self._left()) > 0:
            for family, kind, protocol, _, address in where:
                connection = self._nic(socket.socket(family, kind, protocol))
                connection.settimeout(min(left, _GREETING_SECONDS))
                with suppress(OSError):
                    connection.connect(address)
                    if _greeted(connection, self._word(), answer=False):
                        return connection
                connection.close()
            time.sleep(min(_PAUSE_SECONDS, left))
        return None

    def _nic(self, one: socket.socket) -> socket.socket:
        if self.order.nic:
            try:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, self.order.nic.encode() + b"\0")
            except OSError as error:
                one.close()
                reason = f"cannot use the network interface {self.order.nic!r}: {error}"
                raise _UnableError(BenchmarkState.UNSUPPORTED, reason) from None
        return one

    def _word(self) -> bytes:
        """The same on both sides, and another in every round."""
        names = sorted((self.node, self.order.peer))
        said = msgspec.json.encode(("mainstay pair", names, self.order.port, self.order.deadline_at))
        return hashlib.sha256(said).digest()[:_WORD_BYTES]

    def _measure(self, connection: socket.socket, values: dict[str, list[float]]) -> None:
        end = self.clock() + min(self.order.seconds, self._left())
        wire = self.wrap(connection)
        connection.settimeout(self._seconds_to(end))
        if self.order.benchmark != PAIR:
            values |= _TOOLS[self.order.benchmark].measure(self.order, connection, self.clock)
            return
        if self.order.role is Role.LISTEN:
            serve(wire)
        for size in self.order.sizes:
            connection.settimeout(self._seconds_to(end))
            trips = latencies(wire, size, BUDGET_SECONDS, self.clock)
            values[latency_name(size)] = trips
            values[bandwidth_name(size)] = [2 * size / seconds for seconds in trips]
        close_session(wire)
        if self.order.role is Role.CONNECT:
            serve(wire)

    def _seconds_to(self, end: float) -> float:
        """Seconds left, more than 0, since a socket takes no other time-out and must not wait for good.

        Raises:
            TimeoutError: none are left.
        """
        if (left := end - self.clock()) <= 0:
            raise TimeoutError(f"not done within {self.order.seconds:.0f} s")
        return left


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _greeted(connection: socket.socket, word: bytes, *, answer: bool) -> bool:
    """Whether the other end says our word; closed if not.

    The connecting side says it first and confirms the answer: one that lost patience meanwhile is not taken for there.
    """
    connection.settimeout(_GREETING_SECONDS)
    with suppress(OSError):
        if not answer:
            connection.sendall(word)
        if receive(connection, len(word)) == word:
            connection.sendall(word)
            if not answer or receive(connection, len(word)) == word:
                return True
    connection.close()
    return False


def failed(order: PairTask, state: BenchmarkState, reason: str, seconds: float = 0.0) -> BenchmarkResult:
    """The result of a side that measured nothing, with the reason."""
    return _result(order, state, reason[:500], seconds, {})


def _result(
    order: PairTask, state: BenchmarkState, error: str | None, seconds: float, values: dict[str, list[float]]
) -> BenchmarkResult:
    told = tuple(
        MetricValues(name=m.name, unit=m.unit, better=m.better, values=tuple(values.get(m.name, ())))
        for m in metrics(order.sizes)
    )
    return BenchmarkResult(
        benchmark=order.benchmark, state=state, error=error, seconds=seconds, device="host", metrics=told
    )


def main(node: str, wrap: Wrap = lambda connection: connection) -> None:
    """Carry out the order on standard input."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=PairTask)
    answers = os.dup(1)
    os.dup2(2, 1)  # what libraries print is no result
    os.write(answers, msgspec.json.encode(Side(order, node, wrap).run()) + b"\n")


if __name__ == "__main__":
    main(sys.argv[1])
