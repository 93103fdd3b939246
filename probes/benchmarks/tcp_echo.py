"""Two ends of a TCP connection that measure what lies between them: round trips and a stream, every byte checked.

One end drives, the other serves; neither needs torch. Invariant: bytes that come back other than they
were sent raise, so nothing is timed that did not arrive; and no request makes an end hold more than ``MOST_BYTES``.

A round trip of one size is one message at a time, so small messages leave as small packets: Alibaba Aegis records a
switch that lost only packets above 1 KB, which every probe of 64 bytes passed.
"""

from __future__ import annotations

import math
import random
import socket
import statistics
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Final, Protocol

Clock = Callable[[], float]

MOST_BYTES: Final = 16 << 20
"""Of one message."""
MOST_MESSAGES: Final = 1 << 20
"""Of one request."""
SLICE_SECONDS: Final = 0.02
"""A repetition lasts so long, or one round trip where that is longer: a median of many small ones is steady."""
LEAST, MOST = 3, 50
"""Repetitions, for any budget."""
_REQUEST = struct.Struct("!cII")
_ECHO, _SINK, _BYE = b"e", b"s", b"b"
_FINE, _SPOILT = b"+", b"-"


class Wire(Protocol):
    """The part of a socket that is needed; a test may put something slow in its place."""

    def sendall(self, data: bytes | bytearray, /) -> None: ...

    def recv_into(self, buffer: memoryview, /) -> int: ...


class BrokenTransferError(ConnectionError):
    """The connection ended early, or other bytes arrived than were sent."""


def set_nodelay(connection: socket.socket) -> None:
    """Send small messages at once instead of collecting them (Nagle): a round trip is one packet each way."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def serve(wire: Wire) -> None:
    """Answer the other end's requests until it closes the session.

    Raises:
        BrokenTransferError: it went without a word, or asks for what is not allowed.
        OSError: the connection failed, or its time-out passed.
    """
    while True:
        what, size, count = _REQUEST.unpack(receive(wire, _REQUEST.size))
        if what == _BYE:
            return
        if what not in (_ECHO, _SINK) or not 0 < size <= MOST_BYTES or not 0 < count <= MOST_MESSAGES:
            raise BrokenTransferError(f"the other end asks for {count} messages of {size} bytes, kind {what!r}")
        _echo(wire, size, count) if what == _ECHO else _sink(wire, size, count)


def close_session(wire: Wire) -> None:
    """Let the other end go."""
    wire.sendall(_REQUEST.pack(_BYE, 0, 0))


def latencies(wire: Wire, size: int, budget: float, clock: Clock) -> list[float]:
    """Seconds of a round trip of ``size`` bytes, the median of a repetition's; until ``budget`` seconds are spent.

    Raises:
        BrokenTransferError: other bytes came back than were sent, or the other end is gone.
        OSError: the connection failed, or its time-out passed.
    """
    (first,) = _round_trips(wire, size, 1, clock)
    count = min(MOST_MESSAGES, max(1, math.ceil(SLICE_SECONDS / max(first, 1e-6))))
    end, taken = clock() + budget, list[float]()
    while len(taken) < LEAST or (len(taken) < MOST and clock() < end):
        taken.append(statistics.median(_round_trips(wire, size, count, clock)))
    return taken


def rates(wire: Wire, size: int, budget: float, clock: Clock) -> list[float]:
    """Bytes per second of a stream in one direction, in messages of ``size`` bytes: one value a repetition.

    Raises:
        BrokenTransferError: other bytes arrived than were sent, or the other end is gone.
        OSError: the connection failed, or its time-out passed.
    """
    first = _stream(wire, size, 4, clock)
    count = min(MOST_MESSAGES, max(4, math.ceil(first * SLICE_SECONDS / size)))
    end, taken = clock() + budget, list[float]()
    while len(taken) < LEAST or (len(taken) < MOST and clock() < end):
        taken.append(_stream(wire, size, count, clock))
    return taken


def receive(wire: Wire, size: int) -> bytearray:
    """Exactly ``size`` bytes.

    Raises:
        BrokenTransferError: the other end closed before they were all there.
    """
    data = bytearray(size)
    _fill(wire, data)
    return data


def _fill(wire: Wire, data: bytearray) -> None:
    view, got = memoryview(data), 0
    while got < len(data):
        piece = wire.recv_into(view[got:])
        if piece == 0:
            raise BrokenTransferError(f"the other end closed the connection after {got} of {len(data)} bytes")
        got += piece


@lru_cache(maxsize=32)
def _pattern(size: int, number: int) -> bytes:
    """What message ``number`` (0 or 1) of this size holds, at either end: nothing that compresses."""
    return random.Random(2 * size + number).randbytes(size)  # noqa: S311 - not for secrets


def _round_trips(wire: Wire, size: int, count: int, clock: Clock) -> list[float]:
    wire.sendall(_REQUEST.pack(_ECHO, size, count))
    both, answer, taken = (_pattern(size, 0), _pattern(size, 1)), bytearray(size), []
    for number in range(count):
        sent = both[number % 2]  # two that differ in turn: an old answer is not taken for a new one
        begun = clock()
        wire.sendall(sent)
        _fill(wire, answer)
        taken.append(clock() - begun)
        if answer != sent:
            raise BrokenTransferError(f"other bytes came back than were sent, in messages of {size} bytes")
    return taken


def _stream(wire: Wire, size: int, count: int, clock: Clock) -> float:
    both = (_pattern(size, 0), _pattern(size, 1))
    begun = clock()
    wire.sendall(_REQUEST.pack(_SINK, size, count))
    for number in range(count):
        wire.sendall(both[number % 2])
    fine = receive(wire, 1) == _FINE
    seconds = clock() - begun
    if not fine:
        raise BrokenTransferError(f"other bytes arrived than were sent, in a stream of messages of {size} bytes")
    return size * count / seconds


def _echo(wire: Wire, size: int, count: int) -> None:
    message = bytearray(size)
    for _ in range(count):
        _fill(wire, message)
        wire.sendall(message)


def _sink(wire: Wire, size: int, count: int) -> None:
    both, message, fine = (_pattern(size, 0), _pattern(size, 1)), bytearray(size), True
    for number in range(count):
        _fill(wire, message)
        fine = fine and message == both[number % 2]
    wire.sendall(_FINE if fine else _SPOILT)
