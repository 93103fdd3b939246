"""Framing: whole messages or a named error, for any input."""

from __future__ import annotations

import asyncio
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstay.recovery.protocol.messages import FromRank, LauncherHeartbeat, LauncherWelcome, StandbysReady
from mainstay.recovery.protocol.wire import (
    MAX_STREAM_BYTES,
    MessageStream,
    WireError,
    encode,
    from_launcher,
    from_worker,
    to_launcher,
    to_worker,
)
from mainstay.recovery.protocol.worker_messages import MAX_MESSAGE_BYTES, FenceRank, ScriptFailed


async def streams() -> tuple[MessageStream, MessageStream, asyncio.Server]:
    accepted: asyncio.Queue[MessageStream] = asyncio.Queue()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accepted.put(MessageStream(reader, writer, from_launcher))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    ends = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    near = MessageStream(*ends, to_launcher)
    return near, await accepted.get(), server


def run(work) -> None:
    async def whole() -> None:
        near, far, server = await streams()
        try:
            await work(near, far)
        finally:
            near.close()
            far.close()
            server.close()

    asyncio.run(whole())


def test_both_ways() -> None:
    async def work(near: MessageStream, far: MessageStream) -> None:
        near.send(StandbysReady(count=2))
        near.send(LauncherHeartbeat())
        far.send(LauncherWelcome(world_size=4))
        assert await far.receive() == StandbysReady(count=2)
        assert await far.receive() == LauncherHeartbeat()
        assert await near.receive() == LauncherWelcome(world_size=4)
        near.close()
        assert await far.receive() is None

    run(work)


@pytest.mark.parametrize(
    "raw",
    [
        struct.pack("<I", MAX_STREAM_BYTES + 1),
        struct.pack("<I", 3) + b"abc",
        struct.pack("<I", 8) + msgspec.msgpack.encode({"a": 1})[:8].ljust(8, b"\0"),
        struct.pack("<I", len(encode(LauncherWelcome(world_size=1))))
        + encode(LauncherWelcome(world_size=1)),  # the other direction
    ],
)
def test_what_is_no_message_is_an_error(raw: bytes) -> None:
    async def work(near: MessageStream, far: MessageStream) -> None:
        near._writer.write(raw)
        with pytest.raises(WireError):
            await far.receive()

    run(work)


def test_a_connection_carries_what_no_packet_carries() -> None:
    large = FromRank(rank=0, pid=1, message=ScriptFailed(error="x" * MAX_MESSAGE_BYTES, traceback=""))

    async def work(near: MessageStream, far: MessageStream) -> None:
        near.send(large)
        assert await far.receive() == large

    run(work)


def test_a_message_cut_short_is_the_end() -> None:
    async def work(near: MessageStream, far: MessageStream) -> None:
        near._writer.write(struct.pack("<I", 100) + b"abc")
        await near.drain()
        near.close()
        assert await far.receive() is None

    run(work)


def test_a_message_that_is_too_large_is_not_sent() -> None:
    with pytest.raises(WireError, match="allowed are"):
        encode(ScriptFailed(error="x" * MAX_MESSAGE_BYTES, traceback=""))


@given(st.binary(max_size=200))
def test_noise_never_becomes_anything_but_a_decoding_error(noise: bytes) -> None:
    for decoder in (from_worker, to_worker):
        try:
            decoder.decode(noise)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue


def test_a_fence_survives_the_trip() -> None:
    assert to_worker.decode(encode(FenceRank(generation=7))) == FenceRank(generation=7)
