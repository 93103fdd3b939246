"""What a run with faults needs: relays with a spool, and an oracle that knows what they were promised.

The oracle is outside the system. It remembers what was sent and acknowledged and what was broken, and says afterwards
what differs. A frame counts by its bundle: the key of a bundle is that of the block in which it is stored.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.lib_cluster import FRAME_SECONDS, Postgres
from bench.lib_fleet import GPU, GPUS, Client, Samples
from mainstay.probes.ids import uuid7

Key = tuple[str, str, int]
"""Sender, stream, sequence."""
BLOCKS = "SELECT subject, stream, sequence, count(*), min(md5(body)) FROM blocks GROUP BY subject, stream, sequence"
AGAIN = frozenset({0, 429, 500, 502, 503, 504})
"""Answers after which a sender tries again; 0 is none."""
CHART = "gpu_temperature_celsius"


@dataclass
class Oracle:
    """What was promised, and what was broken."""

    sent: dict[Key, str] = field(default_factory=dict)
    """MD5 of each body."""
    acknowledged: set[Key] = field(default_factory=set)
    refused: int = 0
    """Sound bundles that a service refused for good."""
    acks: list[float] = field(default_factory=list)
    """Monotonic seconds of each acknowledgement of a bundle."""
    events: dict[str, str] = field(default_factory=dict)
    """Acknowledged XID → its node; one a node."""
    holds: dict[str, str] = field(default_factory=dict)
    """Node → kind of the finding that its fault must have until the end."""

    def send(self, key: Key, body: bytes) -> None:
        self.sent[key] = hashlib.md5(body, usedforsecurity=False).hexdigest()

    def acknowledge(self, key: Key) -> None:
        self.acknowledged.add(key)
        self.acks.append(time.monotonic())

    def first_ack(self, after: float) -> float | None:
        return next((at for at in self.acks if at >= after), None)

    def compare_blocks(self, stored: Iterable[tuple[str, str, int, int, str]]) -> Counter[str]:
        """Counts of ``lost``, ``doubled`` and ``changed``.

        Args:
            stored: sender, stream, sequence, how often it is stored, and MD5 of its body.
        """
        found = {(sender, stream, sequence): (count, digest) for sender, stream, sequence, count, digest in stored}
        return Counter(
            lost=len(self.acknowledged - set(found)),
            doubled=sum(count > 1 for count, _ in found.values()),
            changed=sum(self.sent.get(key, digest) != digest for key, (_, digest) in found.items()),
        )

    def compare_events(
        self, evaluated: Iterable[str], findings: Sequence[tuple[str, str, bool, str | None]], cleared: Iterable[Any]
    ) -> Counter[str]:
        """Counts of ``lost`` (acknowledged, not evaluated), ``wrong``, ``cleared`` and ``invented`` findings.

        Args:
            evaluated: IDs of events.
            findings: node, kind, whether it is active, and ID of the event of each.
            cleared: node and kind of each finding that was ever cleared.
        """
        about = Counter((node, kind) for node, kind, _, _ in findings)
        active = {(node, kind): event for node, kind, holds, event in findings if holds}
        expected = {(node, "xid"): event for event, node in self.events.items()}
        expected |= dict.fromkeys(self.holds.items())
        right = [about[key] == 1 and active.get(key, "") == event for key, event in expected.items()]
        return Counter(
            lost=len(set(self.events) - set(evaluated)),
            wrong=len(right) - sum(right),
            cleared=sum(key in expected for key in cleared),
            invented=sum(key not in expected for key in about),
        )

    def state_of(self, node: str, *, suspects: frozenset[str]) -> str:
        """The state in which the node must be in the end."""
        if node in suspects or self.holds.get(node) == "power_brake":
            return "suspect"
        return "unknown" if self.holds.get(node) == "node_lost" else "healthy"

    def wrong_states(self, actual: Mapping[str, str], nodes: Iterable[str]) -> list[str]:
        """Nodes in another state than they must be."""
        suspects = frozenset(self.events.values())
        return [node for node in nodes if actual.get(node) != self.state_of(node, suspects=suspects)]


@dataclass
class Relay:
    """Bundles of some nodes, one after another: each is sent until it is acknowledged, to the services in turn."""

    name: str
    nodes: tuple[str, ...]
    oracle: Oracle
    clients: list[Client]
    silent: set[str] = field(default_factory=set)
    samples: Samples = field(default_factory=lambda: Samples(FRAME_SECONDS))
    spool: deque[tuple[Key, bytes]] = field(default_factory=deque)
    stream: str = field(default_factory=uuid7)
    first: float = 0.0
    """Unix seconds of the first sample."""
    stop: float = 0.0
    """Unix seconds after the last one."""

    async def produce(self, offset: float) -> None:
        """Without a gap, ``offset`` seconds after each frame ends."""
        self.first = float(int(time.time()))
        for sequence in itertools.count(1):
            start = self.first + (sequence - 1) * FRAME_SECONDS
            self.stop = start + FRAME_SECONDS
            await asyncio.sleep(self.stop + offset - time.time())
            nodes = tuple(node for node in self.nodes if node not in self.silent)
            body = self.samples.bundle(nodes, sequence, relay=self.name, stream=self.stream, start=start)
            self.oracle.send((self.name, self.stream, sequence), body)
            self.spool.append(((self.name, self.stream, sequence), body))

    async def deliver(self) -> None:
        turn = itertools.cycle(self.clients)
        while True:
            if not self.spool:
                await asyncio.sleep(0.05)
                continue
            key, body = self.spool[0]
            status, _ = await post_bundle(next(turn), body)
            if status in AGAIN:
                await asyncio.sleep(0.2)
                continue
            self.spool.popleft()
            if status == 204:
                self.oracle.acknowledge(key)
            else:
                self.oracle.refused += 1

    async def differs(self, client: Client, node: str, seconds: float) -> str | None:
        """How the chart of a node's last seconds differs from what was sent; None where it does not."""
        place, stop = GPU.narrow.index(CHART), int(self.stop - FRAME_SECONDS)
        start = int(max(self.first, stop - seconds))
        path = f"/v1/telemetry/query?node={node}&signal={CHART}&from={start}&to={stop}&points={stop - start}"
        chart = await client.json(path)
        if chart is None:
            return f"{node}: no chart"
        sent: NDArray[np.float32] = np.frombuffer(self.samples.values, "<f4").reshape(GPUS, -1, FRAME_SECONDS)
        phase = (np.arange(start, stop) - int(self.first)) % FRAME_SECONDS
        lines = {line["device"]: np.array(line["mean"], np.float64) for line in chart["series"]}
        for gpu in range(GPUS):
            line = lines.get(f"GPU-{node}-{gpu}", np.zeros(0))
            wanted = sent[gpu, place, phase].astype(np.float64)
            if line.shape != wanted.shape or not np.array_equal(line, wanted):
                wrong = np.flatnonzero(line != wanted) if line.shape == wanted.shape else []
                return f"{node} at port {client.port}: {len(wrong)} of {len(wanted)} s, first {start + min(wrong, default=0)}"
        return None


async def post_bundle(client: Client, body: bytes) -> tuple[int, bytes]:
    return await client.request("POST", "/v1/telemetry/bundles", body, kind="application/msgpack")


def evaluate(oracle: Oracle, server: Postgres) -> Counter[str]:
    """What PostgreSQL says about events and findings."""
    events = server.query("SELECT id FROM events WHERE judged_at IS NOT NULL")
    findings = server.query("SELECT node, kind, active, event_id FROM findings WHERE node IS NOT NULL")
    cleared = server.query(
        "SELECT f.node, f.kind FROM incident_timeline t JOIN findings f ON f.id = t.data ->> 'finding'"
        " WHERE t.kind = 'finding_cleared'"
    )
    found: list[Any] = findings
    return oracle.compare_events([event for (event,) in events], found, cleared)
