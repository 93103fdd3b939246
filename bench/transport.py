"""What the security of the job's connections costs: snapshots on their way, new connections, and control messages.

``python -m bench.transport [--json FILE]``. Two processes on this machine over loopback TCP, in turns with the same
bytes with nothing around them, so that only the ratio depends on the machine. Loopback copies each byte twice and has
no network card: the ratio of a real network is better.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import statistics
import struct
import time
from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np

from bench.report import Row, publish, target_file
from mainstay.recovery.agent.bulk import BulkReceiver, BulkSender
from mainstay.recovery.agent.framing import CHUNK, receive, send
from mainstay.recovery.agent.peer_messages import TransferHeader, TransferTail
from mainstay.recovery.job_certificates import Authority, job_tls
from mainstay.recovery.memory.digest import Bytes
from mainstay.recovery.protocol.messages import LauncherHeartbeat
from mainstay.recovery.protocol.secure_streams import open_stream, serve_streams
from mainstay.recovery.protocol.wire import MessageStream, from_launcher

NAME: Final = "transport"
SIZE: Final = 1 << 30
ROUNDS: Final = 5
CONNECTIONS: Final = 200
MESSAGES: Final = 2000
TLS: Final = job_tls("bench", "bench", Authority.SNAPSHOTS)
Move = Callable[[socket.socket, Bytes], None]
"""Sends or receives the bytes."""


class TransferStart(TransferHeader, frozen=True):
    """What stands before the bytes."""


def plain_send(sock: socket.socket, data: Bytes) -> None:
    for at in range(0, len(data), CHUNK):
        sock.sendall(data[at : at + CHUNK].data)


def plain_receive(sock: socket.socket, out: Bytes) -> None:
    done = 0
    while done < len(out):
        done += sock.recv_into(out[done:].data)


def tls_send(sock: socket.socket, data: Bytes) -> None:
    plain_send(TLS.server.wrap_socket(sock, server_side=True), data)


def tls_receive(sock: socket.socket, out: Bytes) -> None:
    plain_receive(TLS.client.wrap_socket(sock), out)


def bulk_send(*, encrypted: bool) -> Move:
    def work(sock: socket.socket, data: Bytes) -> None:
        secured = TLS.server.wrap_socket(sock, server_side=True)
        bulk = BulkSender(secured, encrypted=encrypted)
        send(secured, TransferStart(seal=bulk.seal))
        bulk.send(data)
        send(secured, TransferTail(ok=True, reason="", tags=bulk.tags()))

    return work


def bulk_receive(sock: socket.socket, out: Bytes) -> None:
    secured = TLS.client.wrap_socket(sock)
    bulk = BulkReceiver(secured, receive(secured, msgspec.msgpack.Decoder(TransferStart)).seal)
    bulk.receive_into(out)
    bulk.finish(receive(secured, msgspec.msgpack.Decoder(TransferTail)).tags)


MODES: Final[dict[str, tuple[Move, Move]]] = {
    "plain TCP": (plain_send, plain_receive),
    "TLS of the ssl module": (tls_send, tls_receive),
    "encrypted (AES-128-GCM)": (bulk_send(encrypted=True), bulk_receive),
    "authenticated only (GMAC)": (bulk_send(encrypted=False), bulk_receive),
}


def in_child(work: Callable[[], None]) -> tuple[int, int]:
    """Run ``work`` in a process of its own; its id, and the pipe on which its processor seconds come."""
    out, back = os.pipe()
    pid = os.fork()
    if pid == 0:
        begun = time.process_time()
        work()
        os.write(back, struct.pack("d", time.process_time() - begun))
        os._exit(0)
    os.close(back)
    return pid, out


def move(mode: str, data: Bytes, out: Bytes) -> tuple[float, float]:
    """Seconds, and processor seconds of both sides."""
    to_send, to_receive = MODES[mode]
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            sock, _ = listener.accept()
            to_send(sock, data)

        pid, pipe = in_child(serve)
        sock = socket.create_connection(listener.getsockname())
        begun, processor = time.perf_counter(), time.process_time()
        to_receive(sock, out)
        seconds, processor = time.perf_counter() - begun, time.process_time() - processor
        sock.close()
    os.waitpid(pid, 0)
    (other,) = struct.unpack("d", os.read(pipe, 8))
    os.close(pipe)
    return seconds, processor + other


def transfers() -> list[Row]:
    data: Bytes = np.random.default_rng(1).integers(0, 256, SIZE, np.uint8)
    out: Bytes = np.zeros(SIZE, np.uint8)
    seconds: dict[str, list[tuple[float, float]]] = {mode: [] for mode in MODES}
    gc.disable()
    for _ in range(ROUNDS):
        for mode in MODES:
            out[:] = 0
            seconds[mode].append(move(mode, data, out))
            assert np.array_equal(out, data), mode
    plain = statistics.median(wall for wall, _ in seconds["plain TCP"])
    rows = []
    for mode, found in seconds.items():
        wall, processor = (statistics.median(values) for values in zip(*found, strict=True))
        rows.append(
            Row(claim=f"snapshot bytes between two processes: {mode}", figure=SIZE / wall / 1e9, unit="GB/s", target="",
                holds=None, kind="live", n=ROUNDS, baseline=f"{wall / plain:.2f} times plain TCP",
                note=f"{processor / SIZE * 1e9:.2f} processor seconds a GB, both sides")
        )  # fmt: skip
    return rows


def connections() -> Row:
    """Mutual TLS, both sides in this process: what a coordinator and a launcher pay for one connection together."""

    async def work() -> float:
        async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        server = await serve_streams(serve, "127.0.0.1", 0, TLS)
        host, port = server.sockets[0].getsockname()[:2]
        begun = time.process_time()
        for _ in range(CONNECTIONS):
            reader, writer = await open_stream(host, port, TLS)
            await reader.read()
            writer.close()
        used = time.process_time() - begun
        server.close()
        return used / CONNECTIONS * 1000

    return Row(claim="a new connection with mutual TLS 1.3, both sides", figure=asyncio.run(work()),
               unit="ms of processor time", target="", holds=None, kind="live", n=CONNECTIONS)  # fmt: skip


def messages(*, secured: bool) -> float:
    """Median microseconds from a heartbeat to its answer."""

    async def work() -> float:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            stream = MessageStream(reader, writer, from_launcher)
            while (message := await stream.receive()) is not None:
                stream.send(message)
            stream.close()

        server = await (
            serve_streams(serve, "127.0.0.1", 0, TLS) if secured else asyncio.start_server(serve, "127.0.0.1", 0)
        )
        host, port = server.sockets[0].getsockname()[:2]
        ends = await (open_stream(host, port, TLS) if secured else asyncio.open_connection(host, port))
        stream = MessageStream(*ends, from_launcher)
        taken = []
        for number in range(MESSAGES):
            begun = time.perf_counter()
            stream.send(LauncherHeartbeat(sequence=number))
            await stream.receive()
            taken.append(time.perf_counter() - begun)
        stream.close()
        await asyncio.sleep(0.1)  # the other side sees the end
        server.close()
        return statistics.median(taken) * 1e6

    return asyncio.run(work())


def main() -> None:
    rows = [*transfers(), connections()]
    plain, secured = messages(secured=False), messages(secured=True)
    rows.append(
        Row(claim="a heartbeat and its answer with TLS", figure=secured, unit="µs", target="", holds=None, kind="live",
            n=MESSAGES, baseline=f"plain TCP {plain:.0f} µs")
    )  # fmt: skip
    publish(NAME, rows, target_file(NAME))


if __name__ == "__main__":
    main()
