"""What the sampler child tells its parent, over a pipe: 4-byte little-endian length, then one msgpack message.

The child sends ``SourceEntered`` before it touches a source, so that the parent knows which one hangs. ``SamplerHello``
comes first and whenever the hardware changed; rows that follow have its shape.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from mainstay.probes.samplers.base import DeviceIdentity, SourceEvent
from mainstay.probes.signals import Catalog

_LENGTH: Final = struct.Struct("<I")
MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""A row of 64 GPUs is 10 kB; more than this is not a message but a broken pipe."""


class SourceEntered(msgspec.Struct, frozen=True, tag="entering"):
    """The child is about to touch the source of ``sampler``."""

    sampler: str


class SamplerHello(msgspec.Struct, frozen=True, tag="hello"):
    """What will be measured. ``missing``: sampler to the reason why it cannot work here."""

    devices: tuple[DeviceIdentity, ...]
    catalog: Catalog
    missing: dict[str, str]


class SampleRow(msgspec.Struct, frozen=True, tag="row"):
    """One sample of everything at ``t`` Unix seconds: float32 [device, narrow], int64 [device, wide]."""

    t: float
    values: bytes
    wide: bytes


Message = SourceEntered | SamplerHello | SampleRow | SourceEvent
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def pack(message: Message) -> bytes:
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


class Unpacker:
    """Cuts a byte stream into messages.

    Raises:
        ValueError: the stream is not a sampler's.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        self._buffer += data
        messages: list[Message] = []
        while len(self._buffer) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._buffer)
            if size > MAX_MESSAGE_BYTES:
                raise ValueError(f"a message of {size} bytes from the sampler child, allowed are {MAX_MESSAGE_BYTES}")
            if len(self._buffer) < _LENGTH.size + size:
                break
            messages.append(_decoder.decode(bytes(self._buffer[_LENGTH.size : _LENGTH.size + size])))
            del self._buffer[: _LENGTH.size + size]
        return messages
