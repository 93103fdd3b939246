"""Bytes of a stranger at the coordinator's port, before any token was checked: a wire error, nothing else."""

from __future__ import annotations

import asyncio
import struct

import msgspec
import pytest

from mainstay.recovery.protocol.wire import MessageStream, WireError, from_launcher

HELLO = msgspec.msgpack.encode({"type": "LauncherHello"})
HOSTILE = {
    "nothing": b"",
    "not msgpack": b"\xc1",
    "no message": msgspec.msgpack.encode({"type": "nothing we know"}),
    "not UTF-8": b"\x81\xa4type\xa1\xff",
    "a key that is not UTF-8": b"\x81\xa1\xff\x01",
    "deep": b"\x81\xa1x" + b"\x91" * 100_000,
    "deep under a type we know": b"\x82" + HELLO[1:] + b"\xa1x" + b"\x91" * 100_000,
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
def test_what_is_no_message_is_a_wire_error(body: bytes) -> None:
    async def receive() -> object:
        reader = asyncio.StreamReader()
        reader.feed_data(struct.pack("<I", len(body)) + body)
        reader.feed_eof()
        return await MessageStream(reader, None, from_launcher).receive()

    with pytest.raises(WireError, match="not a message"):
        asyncio.run(receive())
