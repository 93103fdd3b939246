"""The TCP connections of this process: which there are, what is under way on them, and how they are ended.

gloo forgets an operation of which a part has moved. When a connection ends between the first and the last byte of a
message, whoever waits for the rest is never told: ``Pair::signalException`` (gloo/transport/tcp/pair.cc) goes through
the operations that are still to begin, and leaves out the one that is being read (``rx_``) and those that did not fit
into the socket (``tx_``). So a connection whose two ends live is ended between two messages: such a one completes by
itself in gloo's own threads, independently of its ranks.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

LOOK_SECONDS: Final = 0.001
BUSY_SECONDS: Final = 0.06
"""A connection on which nothing lies, and nothing has moved for so long, is between messages. In the midst of one it
rests for 40 ms where the kernel delays an acknowledgement, and while a thread of gloo's waits for a core."""
IDLE_SECONDS: Final = 0.005
"""The same where the training thread is in no call, so that at most a send of its own continues."""
STANDS_SECONDS: Final = 0.06
"""What lies on a connection for so long, and does not move, waits for a peer that does not read."""
MOVES_SECONDS: Final = 1.0
"""Longer is not waited for a message, however well it moves."""

_ESTABLISHED: Final = 1
_LAST: Final = struct.Struct("44xI4xI")
"""``tcpi_last_data_sent`` and ``tcpi_last_data_recv`` of the kernel's ``struct tcp_info``, milliseconds."""


class Connection(NamedTuple):
    """A descriptor that was closed and given out again has another inode."""

    descriptor: int
    inode: int


class SocketQueues(NamedTuple):
    """Of one connection."""

    rest: float
    """Seconds since it last carried something, either way."""
    queued: int
    """Bytes that this process has not read, or its peer not acknowledged."""


def connections() -> set[Connection]:
    """Listening sockets are left out: to shut one down makes gloo end the process."""
    found = set()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - numbers are wanted, not paths
        with contextlib.suppress(OSError):
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode) and _is_tcp_connection(int(name)):
                found.add(Connection(int(name), status.st_ino))
    return found


def close_now(them: Iterable[Connection]) -> None:
    """End them now, also in the middle of a message."""
    for connection in them:
        with contextlib.suppress(OSError), _borrowed(connection) as sock:
            sock.shutdown(socket.SHUT_RDWR)


def close_between_messages(them: Iterable[Connection], busy: Callable[[], bool] = lambda: True) -> None:
    """End each between two messages: when nothing lies on it, and it has carried nothing for a moment.

    What stands still is ended after ``STANDS_SECONDS``, and after ``MOVES_SECONDS`` in any case.

    Args:
        them: of this process.
        busy: whether the training thread is in a call between ranks; asked again and again.
    """
    left, begun = set(them), time.monotonic()
    while left:
        late = time.monotonic() - begun > MOVES_SECONDS
        rests = BUSY_SECONDS if busy() else IDLE_SECONDS
        done = {one for one in left if late or _may_end(one, rests)}
        close_now(done)
        left -= done
        if left:
            time.sleep(LOOK_SECONDS)


def _may_end(connection: Connection, rests: float) -> bool:
    seen = traffic(connection)
    return seen is None or seen.rest > (STANDS_SECONDS if seen.queued else rests)


def traffic(connection: Connection) -> SocketQueues | None:
    """None: it has no living peer any more, or the kernel does not tell."""
    with contextlib.suppress(OSError), _borrowed(connection) as sock:
        told = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        if len(told) < _LAST.size or told[0] != _ESTABLISHED:
            return None
        waiting = (fcntl.ioctl(sock, request, bytes(4)) for request in (termios.FIONREAD, termios.TIOCOUTQ))
        rest = min(_LAST.unpack_from(told)) / 1000.0
        return SocketQueues(rest, sum(int.from_bytes(number, sys.byteorder) for number in waiting))
    return None


@contextlib.contextmanager
def _borrowed(connection: Connection) -> Iterator[socket.socket]:
    """Its socket under another descriptor, so that gloo may close its own meanwhile.

    Raises:
        OSError: it has gone.
    """
    with socket.socket(fileno=os.dup(connection.descriptor)) as sock:
        if os.fstat(sock.fileno()).st_ino != connection.inode:
            raise OSError("the descriptor is another socket's by now")
        yield sock


def _is_tcp_connection(descriptor: int) -> bool:
    with socket.socket(fileno=os.dup(descriptor)) as sock:
        internet = sock.family in {socket.AF_INET, socket.AF_INET6} and sock.type == socket.SOCK_STREAM
        return internet and not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
