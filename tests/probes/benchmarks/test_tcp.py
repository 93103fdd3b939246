"""TCP: a connection is only worth a figure if every byte arrived, at every size."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from mainstay.probes.benchmarks import tcp_echo
from mainstay.probes.benchmarks.base import Device
from mainstay.probes.benchmarks.result import BenchmarkResult, BenchmarkState
from mainstay.probes.benchmarks.tcp import Tcp
from mainstay.probes.benchmarks.tcp_echo import BrokenTransferError, close_session, latencies, rates, receive, serve


def tiny() -> Tcp:
    return Tcp(Tcp.Config(budget_seconds=0.0))


def test_every_size_is_a_metric_of_its_own() -> None:
    names = [metric.name for metric in tiny().metrics(Device(kind="cuda", model="any", count=8))]
    assert names == ["latency_64B", "latency_1KiB", "latency_8KiB", "latency_64KiB", "stream_64KiB"]


@pytest.mark.parametrize("field", [{"sizes": []}, {"sizes": [0]}, {"stream": 1 << 30}])
def test_sizes_are_bounded(field: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="1 to 16777216 bytes"):
        Tcp.build(field)


def test_it_is_the_host_that_is_measured(run: Callable[..., BenchmarkResult]) -> None:
    result = run(tiny())
    assert (result.state, result.device) == (BenchmarkState.OK, "host")


class Wire:
    """One end of a connection at which messages of some sizes are spoilt, and others are late."""

    def __init__(self, end: socket.socket, *, spoil: int = 0, late: float = 0.0, above: int = 1024) -> None:
        self._end, self._spoil, self._late, self._above = end, spoil, late, above

    def sendall(self, data: bytes | bytearray, /) -> None:
        if len(data) == self._spoil:
            data = bytes(data[:-1]) + bytes([data[-1] ^ 1])
        if len(data) > self._above:
            time.sleep(self._late)
        self._end.sendall(data)

    def recv_into(self, buffer: memoryview, /) -> int:
        return self._end.recv_into(buffer)


@contextmanager
def pair(**faults: float) -> Iterator[tuple[socket.socket, list[BaseException]]]:
    """The near end; the far one serves with these faults, and what it dies of is kept."""
    near, far = socket.socketpair()
    died: list[BaseException] = []

    def work() -> None:
        with far:
            try:
                serve(Wire(far, **faults))  # type: ignore[arg-type]
            except OSError as error:
                died.append(error)

    thread = threading.Thread(target=work)
    near.settimeout(20)
    far.settimeout(20)
    thread.start()
    try:
        with near:
            yield near, died
    finally:
        thread.join(20)


def test_a_shutdown_notice_ends_it_in_peace() -> None:
    with pair() as (near, died):
        assert len(latencies(near, 64, 0.0, time.perf_counter)) == tcp_echo.LEAST
        assert all(rate > 0 for rate in rates(near, 4096, 0.0, time.perf_counter))
        close_session(near)
    assert died == []


def test_one_wrong_bit_in_the_reply_is_found() -> None:
    with pair(spoil=8192) as (near, _):
        assert latencies(near, 1024, 0.0, time.perf_counter)
        with pytest.raises(BrokenTransferError, match="messages of 8192 bytes"):
            latencies(near, 8192, 0.0, time.perf_counter)


def test_one_wrong_bit_in_a_stream_is_found() -> None:
    with pair() as (near, _), pytest.raises(BrokenTransferError, match="stream of messages of 4096 bytes"):
        rates(Wire(near, spoil=4096), 4096, 0.0, time.perf_counter)


def test_what_is_late_only_above_a_kilobyte_shows_only_there() -> None:
    """The switch of Aegis: 64 bytes pass, 8 KiB do not."""
    with pair(late=0.05) as (near, _):
        small, large = (latencies(near, size, 0.0, time.perf_counter) for size in (64, 8192))
        close_session(near)
    assert min(large) >= 0.05
    assert min(small) < 0.05


@pytest.mark.parametrize(("request_", "fault"), [
    (tcp_echo._REQUEST.pack(b"e", 1 << 30, 1), "1 messages of 1073741824 bytes"),
    (tcp_echo._REQUEST.pack(b"e", 64, 0), "0 messages"),
    (b"GET / HTTP/1.1\r\n\r\n", "asks for"),
    (b"", "closed the connection after 0 of 9 bytes"),
])  # fmt: skip
def test_what_is_no_request_is_not_served(request_: bytes, fault: str) -> None:
    with pair() as (near, died):
        near.sendall(request_)
        near.shutdown(socket.SHUT_WR)
        with suppress(OSError):
            receive(near, 1)
    assert fault in str(died[0])
