"""Messages on a stream socket: 4 bytes of length (little-endian), then msgpack.

A message has 1 MiB at most, on a Unix socket, whose other side is a process of this job on this node, 16 MiB. Every
receive has a deadline and a bound known beforehand, so neither a slow nor a hostile peer can hold memory or a thread
for long. A broken frame ends the connection; nothing is guessed.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from mainstay.probes.decoding import UNREADABLE
from mainstay.recovery.agent.errors import AgentGoneError, ProtocolError
from mainstay.recovery.agent.peer_messages import WireMessage

MAX_MESSAGE_BYTES: Final = 1024 * 1024
MAX_LOCAL_BYTES: Final = 16 * 1024 * 1024
"""The parity groups of a job of 16,384 ranks, which every launcher gives to its agent, have 1.1 MB."""
CHUNK: Final = 1024 * 1024
"""Raw bytes handed to the kernel at once; also the unit in which the receiver works on them."""

_LENGTH = struct.Struct("<I")
_encoder = msgspec.msgpack.Encoder()
M = TypeVar("M")


def send(sock: socket.socket, message: WireMessage) -> None:
    """Write one message.

    Raises:
        ProtocolError: it is larger than a message may be.
        AgentGoneError: the connection broke or stood still beyond its time-out.
    """
    body, most = _encoder.encode(message), _most_bytes(sock)
    if len(body) > most:
        raise ProtocolError(f"{type(message).__name__} has {len(body)} bytes, allowed are {most}")
    try:
        sock.sendall(_LENGTH.pack(len(body)) + body)
    except OSError as error:
        raise AgentGoneError(f"the connection broke while sending: {error}") from error


def receive(sock: socket.socket, decoder: msgspec.msgpack.Decoder[M]) -> M:
    """Read one message of the decoder's type.

    Raises:
        ProtocolError: too long, not msgpack, or none of the known messages.
        AgentGoneError: the connection ended or stood still beyond its time-out.
    """
    head = bytearray(_LENGTH.size)
    _receive_into(sock, memoryview(head))
    (length,), most = _LENGTH.unpack(head), _most_bytes(sock)
    if not 0 < length <= most:
        raise ProtocolError(f"a message of {length} bytes; allowed are 1 to {most}")
    body = bytearray(length)
    _receive_into(sock, memoryview(body))
    try:
        return decoder.decode(body)
    except UNREADABLE as error:
        raise ProtocolError(f"not a message: {error}") from error


def _most_bytes(sock: socket.socket) -> int:
    return MAX_LOCAL_BYTES if sock.family == socket.AF_UNIX else MAX_MESSAGE_BYTES


def _receive_into(sock: socket.socket, out: memoryview) -> None:
    done = 0
    while done < len(out):
        done += receive_some(sock.recv_into, out[done:], done, len(out))


def receive_some(receive_into: Callable[[memoryview], int], out: memoryview, done: int, size: int) -> int:
    """Receive at least one byte into ``out``; how many came.

    Args:
        receive_into: of a socket.
        out: not empty.
        done: bytes that came before, of ``size``.
        size: bytes that are to come in all.

    Raises:
        AgentGoneError: the connection ended or stood still beyond its time-out.
    """
    try:
        count = receive_into(out)
    except OSError as error:
        raise AgentGoneError(f"the connection broke while receiving: {error}") from error
    if not count:
        raise AgentGoneError(f"the other side closed the connection ({done} of {size} bytes came)")
    return count


def parse_endpoint(endpoint: str) -> tuple[str, int]:
    """``host:port`` in parts.

    Raises:
        ValueError: names what is wrong.
    """
    host, colon, port = endpoint.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{endpoint!r} is not host:port")
    return host.strip("[]"), int(port)
