"""A fleet of nodes for ``bench.fleet``: keep-alive connections, reports, frames, and watchers that time answers."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mainstay.probes.bundle import Bundle, encode_bundle, pack
from mainstay.probes.frame import FRAME_VERSION, Axis, Frame, checksum, encode
from mainstay.probes.ids import uuid7
from mainstay.probes.signals import SignalSource, catalog
from mainstay.service.common import migrate
from mainstay.service.common.db import Database
from mainstay.service.fleet.models import NodeRow
from mainstay.service.validation.models import NodeVerdictRow

_TICKS = os.sysconf("SC_CLK_TCK")
GPUS = 8
BUNDLE = 128
"""Nodes in a bundle."""
ASKED = 1024
"""Nodes of a job that wants to start."""
GPU = catalog(SignalSource.GPU)


@dataclass
class Client:
    """Requests over a few connections that stay open; as cheap as a client in Python can be."""

    port: int
    token: str
    connections: int = 64
    timeout: float | None = None
    """Seconds after which a request counts as broken."""
    statuses: Counter[int] = field(default_factory=Counter)
    """Answers by status; 0 where the connection broke."""
    _idle: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter] | None] = field(init=False)

    def __post_init__(self) -> None:
        self._idle = asyncio.Queue()
        for _ in range(self.connections):
            self._idle.put_nowait(None)

    async def request(
        self, method: str, path: str, body: bytes = b"", *, kind: str = "application/json", accept: str = "identity"
    ) -> tuple[int, bytes]:
        """Status and body of the answer; 0 where the connection broke."""
        pair = await self._idle.get()
        try:
            async with asyncio.timeout(self.timeout):
                if pair is None or pair[0].at_eof():  # the service closed it while it was idle
                    pair = await asyncio.open_connection("127.0.0.1", self.port)
                status, answer = await self._exchange(
                    pair, f"{method} {path}", body, f"{kind}\r\nAccept-Encoding: {accept}"
                )
        except (OSError, asyncio.IncompleteReadError, ValueError):
            pair, status, answer = None, 0, b""
        self.statuses[status] += 1
        self._idle.put_nowait(pair)
        return status, answer

    async def _exchange(
        self, pair: tuple[asyncio.StreamReader, asyncio.StreamWriter], what: str, body: bytes, kind: str
    ) -> tuple[int, bytes]:
        reader, writer = pair
        head = f"{what} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nAuthorization: Bearer {self.token}\r\n"
        head += f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
        if headers.get("transfer-encoding") == "chunked":
            raise ValueError("chunked answers are not read here")
        return int(lines[0].split()[1]), await reader.readexactly(int(headers.get("content-length", 0)))

    def close(self) -> None:
        """End the connections that are idle."""
        while not self._idle.empty():
            if pair := self._idle.get_nowait():
                pair[1].close()

    async def json(self, path: str) -> Any:
        status, body = await self.request("GET", path)
        return json.loads(body) if status == 200 else None


@dataclass
class Fleet:
    """Nodes ``n00000`` … that report themselves once and then send a frame each ``samples.seconds``."""

    client: Client
    count: int
    samples: Samples
    relayed: bool = False
    """Bundles of ``BUNDLE`` nodes, as relays send them, in place of frames."""
    switches: int = 0
    """Behind how many switches the nodes are; 0: they report none."""
    acks: list[float] = field(default_factory=list)
    """Seconds from the sending of a frame or bundle to its acknowledgement."""
    _sequence: int = 0

    @property
    def names(self) -> Iterator[str]:
        return (f"n{number:05d}" for number in range(self.count))

    async def register(self) -> None:
        """All nodes at once, as when a cluster boots; a refused report is sent again after a second."""
        await asyncio.gather(*(self._report(name) for name in self.names))

    async def _report(self, name: str) -> None:
        above = [f"s{int(name[1:]) * self.switches // self.count}"] if self.switches else []
        body, status = json.dumps(_report(name) | {"switches": above}).encode(), 0
        while status != 200:
            status, answer = await self.client.request("PUT", f"/v1/nodes/{name}", body)
            _raise_for_bad_input(status, answer)
            if status != 200:
                await asyncio.sleep(1.0)

    async def send(self, seconds: float) -> None:
        """Each node sends its frames, spread evenly over the period."""
        ends, names = time.monotonic() + seconds, tuple(self.names)
        size = BUNDLE if self.relayed else 1
        senders = [names[start : start + size] for start in range(0, len(names), size)]
        while time.monotonic() < ends:
            began, self._sequence = time.monotonic(), self._sequence + 1
            async with asyncio.TaskGroup() as group:
                for number, sender in enumerate(senders):
                    due = began + number / len(senders) * self.samples.seconds
                    if (wait := due - time.monotonic()) > 0.005:
                        await asyncio.sleep(wait)
                    group.create_task(self._send(sender, self._sequence))
                await asyncio.sleep(max(0.0, began + self.samples.seconds - time.monotonic()))

    async def _send(self, names: tuple[str, ...], sequence: int) -> None:
        path = "/v1/telemetry/bundles" if self.relayed else "/v1/telemetry/frames"
        body = self.samples.bundle(names, sequence) if self.relayed else self.samples.frame(names[0], sequence)
        started = time.monotonic()
        status, answer = await self.client.request("POST", path, body, kind="application/msgpack")
        _raise_for_bad_input(status, answer)
        self.acks.append(time.monotonic() - started)

    async def burst(self, count: int, invented: int) -> tuple[int, int]:
        """XIDs of all nodes and of nodes that do not exist, at once; (events accepted, invented refused)."""
        names, size = list(self.names), 10
        batches = [[names[k % self.count] for k in range(start, start + size)] for start in range(0, count, size)]
        batches += [[f"invented{number}"] for number in range(invented)]
        answers = await asyncio.gather(*(self.send_events(batch) for batch in batches))
        real = len(batches) - invented
        accepted = sum(json.loads(body)["accepted"] for status, body in answers[:real] if status == 200)
        return accepted, sum(status == 404 for status, _ in answers[real:])

    async def send_events(self, names: list[str]) -> tuple[int, bytes]:
        """An XID of each node; status and body of the answer, once there is one."""
        events = [xid(name) for name in names]
        while True:
            status, body = await self.client.request("POST", "/v1/events", json.dumps({"items": events}).encode())
            if status not in {0, 429, 503}:
                return status, body
            await asyncio.sleep(1.0)


def xid(name: str) -> dict[str, Any]:
    """An event: a GPU of the node fell off the bus."""
    data = {"code": 79, "source": "nvml", "uptime": 86_400.0}
    return {
        "id": uuid7(), "time": time.time(), "kind": "xid", "node": name, "device": f"GPU-{name}-0", "job": None,
        "rank": None, "generation": None, "data": data,
    }  # fmt: skip


def _raise_for_bad_input(status: int, answer: bytes) -> None:
    if 400 <= status < 500 and status != 429:
        raise RuntimeError(answer.decode())


def _report(name: str) -> dict[str, Any]:
    number = int(name[1:])
    gpus = [
        {"id": f"GPU-{name}-{k}", "index": k, "kind": "gpu", "model": "H100", "uuid": f"GPU-{name}-{k}"}
        for k in range(GPUS)
    ]
    host = {"id": "host", "index": 0, "kind": "host", "model": "x86", "uuid": None}
    return {
        "hostname": name, "os": "Debian 12", "kernel": "6.1", "version": "0.1.0", "boot_id": "b", "cohort": "h100",
        "rack": f"r{number // 16}", "cpu_count": 96, "memory_bytes": 2**40, "started_at": time.time(),
        "devices": [device | {"serial": None, "memory_bytes": 80 * 2**30} for device in (host, *gpus)],
        "catalog": {"narrow": list(GPU.narrow), "wide": list(GPU.wide)},
    }  # fmt: skip


_HEALTHY = {
    "gpu_utilization_ratio": 0.9, "gpu_memory_used_bytes": 6e10, "gpu_temperature_celsius": 60.0,
    "gpu_memory_temperature_celsius": 70.0, "gpu_power_watts": 500.0, "gpu_sm_clock_hertz": 1.7e9,
    "gpu_memory_clock_hertz": 2.6e9, "gpu_throttle_reasons": 0.0, "gpu_temperature_margin_celsius": 25.0,
    "gpu_recovery_action": 0.0, "gpu_remap_pending": 0.0, "gpu_remap_failed": 0.0,
}  # fmt: skip
"""What a GPU at work measures; everything else is missing."""


class Samples:
    """The samples of one node: the same in every frame, since noise costs the generator more than the service."""

    def __init__(self, seconds: int) -> None:
        rng = np.random.default_rng(1)
        mean = np.array([_HEALTHY.get(name, np.nan) for name in GPU.narrow])[:, None]
        noise = 1 + 0.01 * rng.standard_normal((GPUS, len(GPU.narrow), seconds))
        self.seconds = seconds
        self.values = (mean * noise).astype("<f4").tobytes()
        self.wide = np.zeros((GPUS, len(GPU.wide), seconds), "<i8").tobytes()
        self.crc32 = checksum(self.values, self.wide)
        self.readings = int(np.isfinite(mean * noise).sum()) + GPUS * len(GPU.wide) * seconds
        """Samples of a frame that are not missing."""
        self.sick: str | None = None
        """A relayed node whose first GPU is slowed by the power brake all the time."""
        self.sick_since: float | None = None
        """Unix seconds at which its first such sample begins."""
        self._bundles: dict[tuple[str, ...], Bundle] = {}

    def frame(self, name: str, sequence: int, *, stream: str = "") -> bytes:
        frame = self._frame(name, sequence, self._now())
        return encode(msgspec.structs.replace(frame, stream=stream) if stream else frame)

    def bundle(
        self,
        names: tuple[str, ...],
        sequence: int,
        *,
        relay: str = "bench",
        stream: str = "",
        start: float | None = None,
    ) -> bytes:
        """One frame of each node as a relay sends them; compressed once for the same nodes."""
        now, made = self._now() if start is None else start, self._bundles.get(names)
        if made is None or self.sick in names:
            self.sick_since = (self.sick_since or now) if self.sick in names else self.sick_since
            frames = [self._frame(name, 0, now) for name in names]
            packed = pack(frames, relay=relay, stream=uuid7(), sequence=0)
            made = msgspec.msgpack.decode(encode_bundle(packed), type=Bundle)
            if self.sick not in names:
                self._bundles[names] = made
        replaced = {"relay": relay, "stream": stream or made.stream, "sequence": sequence}
        sequences, starts = (sequence,) * len(names), (now,) * len(names)
        return encode_bundle(msgspec.structs.replace(made, **replaced, sequences=sequences, starts=starts))

    def _now(self) -> float:
        return float(int(time.time()) - self.seconds)

    def _frame(self, name: str, sequence: int, start: float) -> Frame:
        wide, crc32 = self.wide, self.crc32
        if name == self.sick:
            counters = np.zeros((GPUS, len(GPU.wide), self.seconds), "<i8")
            lost = start - (self.sick_since or start) + 1 + np.arange(self.seconds)
            counters[0, GPU.wide.index("gpu_throttle_power_brake_nanoseconds_total")] = lost * 1e9
            wide = counters.tobytes()
            crc32 = checksum(self.values, wide)
        return Frame(
            version=FRAME_VERSION, subject=name, axis=Axis.TIME, stream=f"s-{name}", sequence=sequence, t0=start,
            dt=1.0, catalog=GPU.digest, entities=tuple(f"GPU-{name}-{k}" for k in range(GPUS)), samples=self.seconds,
            crc32=crc32, values=self.values, wide=wide,
        )  # fmt: skip


@dataclass
class Watcher:
    """What people and a scheduler do meanwhile, twice a second.

    They sign in, read nodes, incidents, the map and its layout as the dashboard does, and ask for ``ASKED`` nodes.
    """

    client: Client
    names: list[str]
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    layout_bytes: int = 0
    """As they came over the wire."""
    _stopped: bool = field(default=False, init=False)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        self._stopped = False
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            self._stopped = True  # not canceled: its connections stay good
            await task

    async def _run(self) -> None:
        draw = random.Random(7)
        sign_in = json.dumps({"token": self.client.token}).encode()
        while not self._stopped:
            nodes = draw.sample(self.names, min(ASKED, len(self.names)))
            job = json.dumps({"job": "bench", "nodes": nodes, "gpus_per_node": GPUS}).encode()
            await self._time("sign-in", "POST", "/v1/auth/session", sign_in)
            await self._time("nodes", "GET", "/v1/nodes?limit=100&sort=state&facets=true")
            await self._time("incidents", "GET", "/v1/incidents?limit=20")
            self.layout_bytes = await self._time("fleet layout", "GET", "/v1/fleet/heatmap-layout")
            await self._time("heat-map", "GET", "/v1/fleet/heatmap")
            await self._time("heat-map of power", "GET", "/v1/fleet/heatmap?signal=gpu_power_watts")
            await self._time("admission", "POST", "/v1/admission", job)
            await asyncio.sleep(0.5)

    async def write(self) -> None:
        """What people write while others send events: a token each tenth of a second."""
        body = json.dumps({"name": "bench", "kind": "join"}).encode()
        while True:
            await self._time("write", "POST", "/v1/auth/tokens", body)
            await asyncio.sleep(0.1)

    async def _time(self, what: str, method: str, path: str, body: bytes = b"") -> int:
        """Returns the bytes of the answer."""
        started = time.monotonic()
        _, answer = await self.client.request(method, path, body, accept="gzip, deflate")
        self.seconds[what].append(time.monotonic() - started)
        return len(answer)


def cpu_seconds(pid: int) -> float:
    """Processor seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def resident_bytes(pid: int) -> int:
    """Memory that a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def enroll_validated(url: str, names: Iterable[str]) -> None:
    """Nodes that passed a check, so that the gate has nothing against them once they report."""
    database, now, known = Database(url), time.time(), list(names)
    migrate.upgrade(database)
    passed = {"verdict": "pass", "power": 1, "suite": "quick", "validation_id": "v", "at": now}
    with database.session() as session:
        session.add_all(NodeRow(name=name, first_seen_at=now) for name in known)
        session.add_all(NodeVerdictRow(node=name, **passed) for name in known)
    database.close()
