"""Framing: message boundaries from SOCK_SEQPACKET on Unix sockets, a 4-byte little-endian length on TCP.

WireError(ConnectionError)   the other side sent something that is no message; the connection is over
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import operator
import struct
from typing import Final, Generic, TypeVar

import msgspec

from mainstay.probes.decoding import UNREADABLE
from mainstay.recovery.protocol.messages import FromLauncher, ToLauncher
from mainstay.recovery.protocol.worker_messages import MAX_MESSAGE_BYTES, FromWorker, ToWorker, WorkerMessage

MAX_STREAM_BYTES: Final = 16 * 1024 * 1024
"""Of a message on a TCP connection, whose sides know each other: the state of a job of 16,384 ranks has 1.1 MB."""
_LENGTH: Final = struct.Struct("<I")
_encoder = msgspec.msgpack.Encoder()

from_worker = msgspec.msgpack.Decoder(FromWorker)
to_worker = msgspec.msgpack.Decoder(ToWorker)

T = TypeVar("T")


def decoder_of(base: type[T]) -> msgspec.msgpack.Decoder[T]:
    """A decoder of the classes that derive from ``base``, told apart by their tags."""
    return msgspec.msgpack.Decoder(functools.reduce(operator.or_, base.__subclasses__()))


from_launcher = decoder_of(FromLauncher)
to_launcher = decoder_of(ToLauncher)


class WireError(ConnectionError):
    """Not a message of this protocol; says what was wrong."""


def encode(message: WorkerMessage, most: int = MAX_MESSAGE_BYTES) -> bytes:
    """One message of at most ``most`` bytes; as many as a packet of a Unix socket carries, if not told otherwise.

    Raises:
        WireError: larger than a message may be.
    """
    body = _encoder.encode(message)
    if len(body) > most:
        raise WireError(f"{type(message).__name__} has {len(body)} bytes, allowed are {most}")
    return body


class MessageStream(Generic[T]):
    """Messages over a TCP connection. ``send`` queues; ``receive`` returns None at the end of the stream."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, decoder: msgspec.msgpack.Decoder[T]
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = decoder

    def send(self, message: WorkerMessage) -> None:
        """Queue ``message``; a broken connection shows at the next ``receive``."""
        if self._writer.is_closing():
            return
        body = encode(message, MAX_STREAM_BYTES)
        self._writer.write(_LENGTH.pack(len(body)) + body)

    async def receive(self) -> T | None:
        """The next message, None when the other side has gone.

        Raises:
            WireError: oversized or not a message.
        """
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            body = await self._reader.readexactly(length) if length <= MAX_STREAM_BYTES else None
        except (asyncio.IncompleteReadError, OSError):
            return None
        if body is None:
            raise WireError(f"a message of {length} bytes, allowed are {MAX_STREAM_BYTES}")
        try:
            return self._decoder.decode(body)
        except UNREADABLE as error:
            raise WireError(f"not a message: {error}") from error

    async def drain(self, seconds: float = 2.0) -> None:
        """Give what is queued a chance to leave."""
        with contextlib.suppress(OSError):  # among them TimeoutError
            async with asyncio.timeout(seconds):
                await self._writer.drain()

    def close(self) -> None:
        self._writer.close()
