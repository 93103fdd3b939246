"""What a run with faults needs: relays with a spool, and an oracle that knows what they were promised.

The oracle is outside the system. It remembers what was sent and acknowledged and what was broken, and says afterwards
what differs. A frame counts by its bundle: the key of a bundle is that of the block in which it is stored.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import re
import resource
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, LiteralString

import numpy as np
from numpy.typing import NDArray

from bench.lib_cluster import FRAME_SECONDS, Postgres, Proxy, Service, admin_token, postgres
from bench.lib_fleet import GPU, GPUS, Client, Fleet, Samples, enroll_validated, xid
from bench.report import Row
from mainstay.probes.ids import uuid7

Key = tuple[str, str, int]
"""Sender, stream, sequence."""
BLOCKS = "SELECT subject, stream, sequence, count(*), min(md5(body)) FROM blocks GROUP BY subject, stream, sequence"
AGAIN = frozenset({0, 429, 500, 502, 503, 504})
"""Answers after which a sender tries again; 0 is none."""
CHART = "gpu_temperature_celsius"
_HELD: Final = re.compile(r"this process holds the lease (\S+) now \(epoch (\d+)\)")


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
        """The first acknowledgement after a moment, both in monotonic seconds."""
        place = bisect_left(self.acks, after)
        return self.acks[place] if place < len(self.acks) else None

    def compare_blocks(self, stored: Iterable[tuple[Any, ...]]) -> Counter[str]:
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
        self, evaluated: Iterable[str], findings: Sequence[tuple[Any, ...]], cleared: Iterable[tuple[Any, ...]]
    ) -> Counter[str]:
        """Counts of ``lost`` (acknowledged, not evaluated), ``wrong``, ``cleared`` and ``invented`` findings.

        Args:
            evaluated: IDs of events.
            findings: node, kind, whether it is active, and ID of the event of each.
            cleared: node and kind of each finding that was ever cleared.
        """
        about = Counter((node, kind) for node, kind, _, _ in findings)
        active = {(node, kind): event for node, kind, holds, event in findings if holds}
        expected: dict[tuple[str, str], str | None] = {(node, "xid"): event for event, node in self.events.items()}
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
    """Unix seconds after the last one that was acknowledged."""

    async def produce(self, offset: float) -> None:
        """Without a gap, ``offset`` seconds after each frame ends."""
        self.first = float(int(time.time()))
        for sequence in itertools.count(1):
            start = self.first + (sequence - 1) * FRAME_SECONDS
            await asyncio.sleep(start + FRAME_SECONDS + offset - time.time())
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
            status, _ = await next(turn).request("POST", "/v1/telemetry/bundles", body, kind="application/msgpack")
            if status in AGAIN:
                await asyncio.sleep(0.2)
                continue
            self.spool.popleft()
            if status == 204:
                self.oracle.acknowledge(key)
                self.stop = self.first + key[2] * FRAME_SECONDS
            else:
                self.oracle.refused += 1

    async def differs(self, client: Client, node: str, seconds: float) -> str | None:
        """How the chart of a node's last seconds differs from what was sent; None where it does not."""
        place, stop = GPU.narrow.index(CHART), int(self.stop)
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
                wrong = np.flatnonzero(line != wanted).tolist() if line.shape == wanted.shape else []
                return f"{node} at port {client.port}: {len(wrong)} of {len(wanted)} s, {wrong[:1]}"
        return None


@dataclass
class Load:
    """A fleet on two services that relays report and the oracle knows."""

    services: list[Service]
    proxies: list[Proxy]
    server: Postgres
    token: str
    names: list[str]
    gateways: list[Service] = field(default_factory=list)
    in_relay: int = 128
    oracle: Oracle = field(default_factory=Oracle)
    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.processes = [*self.services, *self.gateways]
        """Each behind the proxy of the same place."""
        self.people, self.senders = (
            [Client(one.port, self.token, count, timeout=5.0) for one in processes]
            for processes, count in ((self.services, 8), (self.processes, 60))
        )
        groups = (tuple(self.names[at : at + self.in_relay]) for at in range(0, len(self.names), self.in_relay))
        self.relays = [Relay(f"relay{n}", nodes, self.oracle, self.senders) for n, nodes in enumerate(groups)]

    @asynccontextmanager
    async def flowing(self) -> AsyncIterator[None]:
        """All nodes report; in the end, relays have a minute to send what they hold."""
        await Fleet(self.people[0], 1, Samples(1)).register()  # which announces the catalog
        async with asyncio.TaskGroup() as group:
            producing = [group.create_task(relay.produce(n / len(self.relays))) for n, relay in enumerate(self.relays)]
            delivering = [group.create_task(relay.deliver()) for relay in self.relays]
            # Frames flow by then: a node that reported itself and sends nothing for 16 s would be lost.
            await Fleet(self.people[0], len(self.names), Samples(1)).register()
            yield
            for task in producing:
                task.cancel()
            await until(lambda: not self.backlog(), 60.0)
            for task in delivering:
                task.cancel()

    def backlog(self) -> int:
        """Bundles that relays hold."""
        return sum(len(relay.spool) for relay in self.relays)

    async def strike(self, node: str, clients: Sequence[Client]) -> None:
        """An XID of the node, sent until it is acknowledged."""
        event = xid(node)
        body = json.dumps({"items": [event]}).encode()
        for client in itertools.cycle(clients):
            status, answer = await client.request("POST", "/v1/events", body)
            if status == 200:
                break
            if status not in AGAIN:
                raise RuntimeError(answer.decode())
            await asyncio.sleep(0.1)
        self.oracle.events[str(event["id"])] = node

    async def detected(self, node: str, clients: Sequence[Client]) -> float:
        """Strike it; monotonic seconds at which there is a finding about it, or 90 s from now."""
        deadline = time.monotonic() + 90.0
        await self.strike(node, clients)
        query: LiteralString = "SELECT count(*) FROM findings WHERE active AND kind = 'xid' AND node = %s"
        while not await asyncio.to_thread(self.server.scalar, query, node):
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.05)
        return time.monotonic()

    async def wrong_states(self) -> set[str]:
        """Nodes whose state is wrong at a service."""
        wrong: set[str] = set()
        for client in self.people:
            states, cursor = dict[str, str](), ""
            while page := await client.json(f"/v1/nodes?limit=200{cursor}"):
                states |= {node["name"]: node["state"] for node in page["items"]}
                if not page["next_cursor"]:
                    break
                cursor = f"&cursor={page['next_cursor']}"
            wrong |= set(self.oracle.wrong_states(states, self.names))
        return wrong

    async def wrong_charts(self, charts: Sequence[tuple[Relay, str]], seconds: float) -> list[str]:
        """What is wrong in the charts of these nodes at each service."""
        found = [await relay.differs(one, node, seconds) for relay, node in charts for one in self.people]
        return [chart for chart in found if chart]

    async def settle(self, seconds: float) -> None:
        """Wait until states and findings are as they must be, or for ``seconds``, and report how long it took."""
        began = time.monotonic()
        while time.monotonic() < began + seconds:
            if not await self.wrong_states() and not any(evaluate(self.oracle, self.server, self.names).values()):
                break
            await asyncio.sleep(1.0)
        wrong = await self.wrong_states()
        self.row("all states and findings right in the end, after", time.monotonic() - began, "s", seconds)
        self.row("nodes in a wrong state", len(wrong), "", 0.0, n=len(self.names), note=", ".join(sorted(wrong)[:5]))

    async def compare(self, charts: Sequence[tuple[Relay, str]], seconds: float) -> None:
        """Report what differs from what the oracle expects, once nothing is on its way.

        Args:
            charts: nodes whose charts must be those of what their relay sent.
            seconds: length of the charts.
        """
        blocks = self.oracle.compare_blocks(self.server.query(BLOCKS))
        for what in ("lost", "doubled", "changed"):
            self.row(f"acknowledged bundles {what}", blocks[what], "", 0.0, n=len(self.oracle.acknowledged))
        left = self.oracle.refused + self.backlog()
        self.row("sound bundles refused, or never acknowledged", left, "", 0.0, n=len(self.oracle.sent))
        events = evaluate(self.oracle, self.server, self.names)
        broken = len(self.oracle.events) + len(self.oracle.holds)
        self.row("acknowledged events not evaluated", events["lost"], "", 0.0, n=len(self.oracle.events))
        self.row("faults of nodes without exactly their finding", events["wrong"], "", 0.0, n=broken)
        history = "; ".join(cleared_history(self.oracle, self.server)) if events["cleared"] else ""
        self.row("findings cleared while their fault held", events["cleared"], "", 0.0, n=broken, note=history)
        self.row("findings without a fault", events["invented"], "", 0.0, n=len(self.names))
        wrong, n = await self.wrong_charts(charts, seconds), len(charts) * len(self.people)
        self.row("charts that differ from what was sent", len(wrong), "", 0.0, n=n, note="; ".join(wrong[:3]))
        held = [epoch for one in self.processes for epoch in _HELD.findall(one.log.read_text(errors="replace"))]
        self.row("epochs of a lease with two holders", len(held) - len(set(held)), "", 0.0, n=len(held))

    def row(self, claim: str, figure: float, unit: str, limit: float | None, *, n: int = 1, note: str = "") -> None:
        target, holds = ("", None) if limit is None else (f"<= {limit:g}", figure <= limit)
        shape = f"{len(self.gateways)} gateways, " if self.gateways else ""
        claim = f"{len(self.names)} nodes, relayed, {shape}two services: {claim}"
        self.rows.append(
            Row(claim=claim, figure=figure, unit=unit, target=target, holds=holds, kind="live", n=n, note=note)
        )
        print(f"{claim}: {figure:.3f} {unit} {note}", flush=True)


@asynccontextmanager
async def two_services(
    names: Sequence[str], env: Mapping[str, str], gateways: int = 0, disk_mib: int = 0
) -> AsyncIterator[dict[str, Any]]:
    """Two services with settings ``env`` and some gateways, each behind a proxy of its own: arguments of ``Load``.

    All files, of PostgreSQL too, are on a disk of ``disk_mib`` MiB if that is given.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    async with AsyncExitStack() as stack:
        directory, server = stack.enter_context(postgres(disk_mib))
        enroll_validated(server.url, names)
        processes, proxies = list[Service](), list[Proxy]()
        for name in ("a", "b", *(f"gateway-{number}" for number in range(gateways))):
            proxies.append(Proxy(server.port))
            await proxies[-1].start()
            stack.push_async_callback(proxies[-1].stop)
            url = server.url.replace(f":{server.port}/", f":{proxies[-1].port}/")
            role = "gateway" if len(processes) > 1 else "all"
            processes.append(Service(directory / name, url, env={**env, "MAINSTAY_CLUSTER__ROLE": role}))
            processes[-1].start()
            stack.callback(processes[-1].stop)
            await processes[-1].answers()
        services, rest = processes[:2], processes[2:]
        yield {
            "services": services, "gateways": rest, "proxies": proxies, "server": server,
            "token": admin_token(services), "names": list(names),
        }  # fmt: skip


async def until(holds: Callable[[], object], seconds: float) -> None:
    """Poll until it holds, or for ``seconds``."""
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:  # noqa: ASYNC110 - other processes set no event here
        await asyncio.sleep(0.05)


def evaluate(oracle: Oracle, server: Postgres, names: Sequence[str]) -> Counter[str]:
    """What PostgreSQL says about events of a fleet and findings about its nodes."""
    events = server.query("SELECT id FROM events WHERE judged_at IS NOT NULL")
    findings = server.query("SELECT node, kind, active, event_id FROM findings WHERE node = ANY(%s)", names)
    cleared = server.query(
        "SELECT f.node, f.kind FROM incident_timeline t JOIN findings f ON f.id = t.data ->> 'finding'"
        " WHERE t.kind = 'finding_cleared' AND f.node = ANY(%s)",
        names,
    )
    return oracle.compare_events([event for (event,) in events], findings, cleared)


def cleared_history(oracle: Oracle, server: Postgres) -> list[str]:
    """What happened, and when, to each finding that was cleared while the oracle holds its fault."""
    rows = server.query(
        "SELECT f.node, f.kind, f.time, f.evidence ->> 'summary', t.time, t.text FROM incident_timeline t"
        " JOIN findings f ON f.id = t.data ->> 'finding' WHERE t.kind = 'finding_cleared' ORDER BY t.time"
    )
    holds = oracle.holds | dict.fromkeys(oracle.events.values(), "xid")
    return [
        f"{kind} of {node} at {opened:.1f} ({summary}) cleared at {cleared:.1f} ({text})"
        for node, kind, opened, summary, cleared, text in rows
        if holds.get(node) == kind
    ]
