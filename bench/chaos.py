"""Faults at random on two ``mainstay serve``, their PostgreSQL and what they receive, and an oracle that compares.

``python -m bench.chaos [--faults N] [--seed S] [--nodes N] [--json FILE]``. Relays send bundles to both services in
turn until one acknowledges, nodes fall silent, GPUs slow down, and events arrive, while one process after the other is
killed, stopped, cut off from PostgreSQL, or PostgreSQL itself is away. Requests that are damaged, late, or slow come
all the while. Everything runs on the same two cores. What a full disk does is not part of it: the only files of a
service on PostgreSQL are hourly history.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import re
import resource
import signal
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench.lib_chaos import AGAIN, BLOCKS, Oracle, Relay, evaluate
from bench.lib_cluster import Postgres, Proxy, Service, admin_token, postgres
from bench.lib_fleet import Client, Fleet, Samples, enroll_validated, xid
from bench.report import RESULTS, Row, publish
from mainstay.probes.ids import uuid7

IN_RELAY = 50
MANY = 100
"""Faults from which on a run has PostgreSQL away for a minute."""
SLOW = 2000
"""Connections that send a byte a second."""
SETTLE_SECONDS = 150.0
PROCESS = ("kill", "stop", "drop", "hang", "lost_commit", "kill_both", "restart_postgres", "crash_postgres")
REQUEST = ("flipped", "truncated", "cut_off", "event", "twin", "ahead", "behind")
_HELD = re.compile(r"this process holds the lease (\S+) now \(epoch (\d+)\)")


@dataclass
class Chaos:
    """One fleet on two services, and all that happens to them."""

    services: list[Service]
    proxies: list[Proxy]
    server: Postgres
    token: str
    names: list[str]
    rng: random.Random
    oracle: Oracle = field(default_factory=Oracle)
    took: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    """Kind of fault → seconds to the first acknowledgement and to the first new finding after each."""
    answers: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    """Kind of bad request → answers."""
    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        ports = [service.port for service in self.services]
        self.people = [Client(port, self.token, 8, timeout=4.0) for port in ports]
        self.bad = [Client(port, self.token, 8, timeout=5.0) for port in ports]
        self.senders = [Client(port, self.token, 60, timeout=5.0) for port in ports]
        groups = (tuple(self.names[at : at + IN_RELAY]) for at in range(0, len(self.names), IN_RELAY))
        self.relays = [Relay(f"relay{n}", nodes, self.oracle, self.senders) for n, nodes in enumerate(groups)]
        *faulty, self.victim = self.relays
        """Nodes of the last relay get bad requests, and no faults: they must be healthy in the end."""
        self.charts = [(relay, relay.nodes[0]) for relay in self.relays[:-1]]
        struck = [node for relay in faulty for node in relay.nodes[8:]]
        self.rng.shuffle(struck)
        self.fresh = iter(struck)
        self.sick = [(relay, relay.nodes[1]) for relay in faulty]
        self.mute = [(relay, node) for relay in faulty for node in relay.nodes[2:4]]
        self.rng.shuffle(self.mute)

    # Load

    async def play(self, faults: int) -> None:
        await Fleet(self.people[0], len(self.names), Samples(1)).register()
        async with asyncio.TaskGroup() as group:
            producing = [group.create_task(relay.produce(0.3 * n)) for n, relay in enumerate(self.relays)]
            delivering = [group.create_task(relay.deliver()) for relay in self.relays]
            await asyncio.sleep(30.0)  # the rhythm of each node is known
            ailing = group.create_task(self._ail())
            await self._inject(faults)
            ailing.cancel()
            await self._settle()
            for task in producing:
                task.cancel()
            drained = time.monotonic()
            while any(relay.spool for relay in self.relays) and time.monotonic() < drained + 60:
                await asyncio.sleep(0.1)
            for task in delivering:
                task.cancel()
        await self._compare()

    async def _ail(self) -> None:
        """Nodes and GPUs break: an event each 4 s, a node that falls silent or a GPU that slows down each 20 s."""
        for number in itertools.count(1):
            await self._strike(self.senders)
            await asyncio.sleep(4.0)
            if number % 5 == 0 and self.sick:
                relay, node = self.sick.pop()
                relay.samples.sick, self.oracle.holds[node] = node, "power_brake"
            elif number % 5 == 2 and len(self.mute) > len(self.relays):
                relay, node = self.mute.pop()
                relay.silent.add(node)
                self.oracle.holds[node] = "node_lost"

    async def _strike(self, clients: list[Client]) -> str | None:
        """An XID of a node that had none, sent until it is acknowledged; the node."""
        node = next(self.fresh, None)
        if node is not None:
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
        return node

    # Faults

    async def _inject(self, faults: int) -> None:
        """``faults`` of both sorts: those of processes one after the other, bad requests meanwhile."""
        heavy = [*PROCESS] + [self.rng.choice(PROCESS) for _ in range(faults * 8 // 100 - len(PROCESS))]
        self.rng.shuffle(heavy)
        heavy.insert(len(heavy) // 2, "postgres_away")
        self.away = 60.0 if faults >= MANY else 10.0
        light = faults - len(heavy)
        done = asyncio.Event()

        async def bad_requests() -> None:
            for number in range(light):
                if number % max(light // 2, 1) == light // 4:
                    await self._slow_connections()
                else:
                    await self._bad_request(self.rng.choice(REQUEST))
                await asyncio.sleep(0.2 if done.is_set() else self.rng.uniform(0.1, 1.9) * len(heavy) * 12 / light)

        async with asyncio.TaskGroup() as group:
            group.create_task(bad_requests())
            for kind in heavy:
                began = time.monotonic()
                await self._process_fault(kind)
                print(f"{kind}: {time.monotonic() - began:.1f} s, {self.took[kind][-1]}", flush=True)
                await asyncio.sleep(self.rng.uniform(0.5, 3.0))
            done.set()

    async def _process_fault(self, kind: str) -> None:
        """One fault of a process: how long until a bundle is acknowledged and a new event is a finding?"""
        number = self.rng.randrange(2)
        both = kind not in {"kill", "stop", "drop", "hang", "lost_commit"}
        clients = self.people if both else [self.people[1 - number]]
        heal = await getattr(self, f"_{kind}")(number)
        began = time.monotonic()
        probe = asyncio.create_task(self._found(clients))
        await heal()
        found = await probe
        while (first := self.oracle.first_ack(began)) is None:
            await asyncio.sleep(0.05)
        self.took[kind].append((first - began, found - began))
        for service in self.services:
            await service.answers()

    async def _found(self, clients: list[Client]) -> float:
        """Monotonic seconds at which a new event has its finding; 90 s from now where it has none."""
        deadline = time.monotonic() + 90.0
        node = await self._strike(clients)
        query = "SELECT count(*) FROM findings WHERE active AND kind = 'xid' AND node = %s"
        while node and not await asyncio.to_thread(self.server.scalar, query, node) and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        return time.monotonic()

    async def _kill(self, number: int) -> Callable[[], Awaitable[None]]:
        self.services[number].kill()

        async def start() -> None:
            await asyncio.sleep(self.rng.uniform(0.0, 3.0))
            self.services[number].start()

        return start

    async def _kill_both(self, _: int) -> Callable[[], Awaitable[None]]:
        for service in self.services:
            service.kill()
        for service in self.services:
            service.start()
        return _nothing

    async def _stop(self, number: int) -> Callable[[], Awaitable[None]]:
        child = self.services[number].child
        child.send_signal(signal.SIGSTOP)

        async def go_on() -> None:
            await asyncio.sleep(self.rng.uniform(3.0, 9.0))
            child.send_signal(signal.SIGCONT)

        return go_on

    async def _drop(self, number: int) -> Callable[[], Awaitable[None]]:
        self.proxies[number].drop()
        return self._healing(self.proxies[number], resets=False)

    async def _hang(self, number: int) -> Callable[[], Awaitable[None]]:
        self.proxies[number].hang()
        return self._healing(self.proxies[number], resets=self.rng.random() < 0.5)

    async def _lost_commit(self, number: int) -> Callable[[], Awaitable[None]]:
        proxy = self.proxies[number]
        proxy.hang_at_commit()
        with suppress(TimeoutError):
            await asyncio.wait_for(proxy.hangs.wait(), 15.0)
        return self._healing(proxy, resets=True)

    def _healing(self, proxy: Proxy, *, resets: bool) -> Callable[[], Awaitable[None]]:
        async def heal() -> None:
            await asyncio.sleep(self.rng.uniform(2.0, 10.0))
            if resets:  # what was on its way is lost
                proxy.reset()
            proxy.heal()

        return heal

    async def _restart_postgres(self, _: int) -> Callable[[], Awaitable[None]]:
        return await self._without_postgres(signal.SIGINT, 0.0)

    async def _crash_postgres(self, _: int) -> Callable[[], Awaitable[None]]:
        return await self._without_postgres(signal.SIGQUIT, 0.0)

    async def _postgres_away(self, _: int) -> Callable[[], Awaitable[None]]:
        return await self._without_postgres(signal.SIGQUIT, self.away)

    async def _without_postgres(self, how: signal.Signals, seconds: float) -> Callable[[], Awaitable[None]]:
        await asyncio.to_thread(self.server.stop, how)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(self.server.start)
        return _nothing

    async def _bad_request(self, kind: str) -> None:
        """One request about the nodes of the last relay."""
        client, relay = self.rng.choice(self.bad), self.victim
        skew = {"ahead": 3600.0, "behind": -3600.0}.get(kind, 0.0)
        stream, start = uuid7(), float(int(time.time()) - 5) + skew
        body = bytearray(relay.samples.bundle(relay.nodes, 1, relay=f"bad-{kind}", stream=stream, start=start))
        path, media, key = "/v1/telemetry/bundles", "application/msgpack", (f"bad-{kind}", stream, 1)
        if kind == "flipped":
            for _ in range(self.rng.randrange(1, 5)):
                body[self.rng.randrange(len(body))] ^= 1 << self.rng.randrange(8)
        elif kind == "truncated":
            del body[self.rng.randrange(len(body)) :]
        elif kind == "event":
            path, media = "/v1/events", "application/json"
            body = bytearray(json.dumps({"items": [xid(relay.nodes[-1])]}).encode())
            del body[self.rng.randrange(len(body) - 3) :]
        elif kind == "twin":
            path, node = "/v1/telemetry/frames", self.rng.choice(relay.nodes)
            body, key = bytearray(relay.samples.frame(node, 1, stream=stream)), (node, stream, 1)
        elif kind == "cut_off":
            await self._cut_off(client, bytes(body))
            return
        if kind in {"twin", "behind"}:
            self.oracle.send(key, bytes(body))
        status, answer = await client.request("POST", path, bytes(body), kind=media)
        self.answers[kind][status] += 1
        if kind in {"twin", "behind"} and status == 204:
            self.oracle.acknowledge(key)
        if kind == "ahead" and status == 200 and len(json.loads(answer)["rejected"]) < len(relay.nodes):
            raise RuntimeError("a service took frames of the future")

    async def _cut_off(self, client: Client, body: bytes) -> None:
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", client.port)
            head = f"POST /v1/telemetry/bundles HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self.token}\r\n"
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[: len(body) // 2])
            await writer.drain()
            writer.transport.abort()
        self.answers["cut_off"][0] += 1

    async def _slow_connections(self) -> None:
        """Each sends a byte of its header a second, until the service closes it or 20 s are over."""

        async def creep(port: int) -> int:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                for byte in b"POST /v1/telemetry/bu":
                    writer.write(bytes([byte]))
                    with suppress(TimeoutError):
                        answer = await asyncio.wait_for(reader.read(64), 1.0)
                        writer.close()
                        return int(answer.split()[1]) if answer else 408
                writer.close()
            except OSError:
                return 0
            return -1

        ports = itertools.cycle([service.port for service in self.services])
        ends = await asyncio.gather(*(creep(next(ports)) for _ in range(SLOW)))
        self.answers["slow"].update(ends)

    # The oracle

    async def _settle(self) -> None:
        """Wait until states and findings are as they must be, or for long."""
        began = time.monotonic()
        while time.monotonic() < began + SETTLE_SECONDS:
            if not await self._wrong_states() and not any(evaluate(self.oracle, self.server).values()):
                break
            await asyncio.sleep(1.0)
        self.row("states and findings right after the last fault", time.monotonic() - began, "s", None)

    async def _wrong_states(self) -> set[str]:
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

    async def _compare(self) -> None:
        process = {kind: len(took) for kind, took in self.took.items()}
        request = {kind: answers.total() for kind, answers in self.answers.items()} | {"slow": 2}
        count = sum(process.values()) + sum(request.values())
        note = ", ".join(f"{n} {kind}" for kind, n in sorted(process.items()))
        self.row("faults of processes", sum(process.values()), "", None, note=note)
        note = "; ".join(f"{kind}: {dict(sorted(answers.items()))}" for kind, answers in sorted(self.answers.items()))
        self.row(
            "bad requests (slow: sets of 2,000 connections)", sum(request.values()), "", None, note=f"answers: {note}"
        )
        blocks = self.oracle.compare_blocks(self.server.query(BLOCKS))  # type: ignore[arg-type]
        sent = len(self.oracle.acknowledged)
        for what, n in (("lost", blocks["lost"]), ("doubled", blocks["doubled"]), ("changed", blocks["changed"])):
            self.row(f"acknowledged bundles {what}", n, "", 0.0, n=sent)
        self.row("sound bundles refused or left", self._left(), "", 0.0, n=len(self.oracle.sent))
        events = evaluate(self.oracle, self.server)
        self.row("acknowledged events not evaluated", events["lost"], "", 0.0, n=len(self.oracle.events))
        broken = len(self.oracle.events) + len(self.oracle.holds)
        self.row("injected faults without exactly their finding", events["wrong"], "", 0.0, n=broken)
        self.row("findings cleared while their fault held", events["cleared"], "", 0.0, n=broken)
        self.row("findings without a fault", events["invented"], "", 0.0, n=count)
        wrong = await self._wrong_states()
        self.row("nodes in a wrong state", len(wrong), "", 0.0, n=len(self.names), note=", ".join(sorted(wrong)[:5]))
        charts = [await relay.differs(one, node, 3000.0) for relay, node in self.charts for one in self.people]
        differ = [chart for chart in charts if chart]
        self.row(
            "charts that differ from what was sent", len(differ), "", 0.0, n=len(charts), note="; ".join(differ[:3])
        )
        self.row("leases held by two processes in one epoch", self._shared_epochs(), "", 0.0)
        errors = sum(client.statuses[500] for client in (*self.people, *self.bad, *self.senders))
        self.row("answers with status 500", errors, "", 0.0)
        for kind, took in sorted(self.took.items()):
            for what, place, limit in (("acknowledgement", 0, None), ("finding about a new event", 1, 10.0)):
                limit = None if kind == "kill_both" else limit
                worst = max(one[place] for one in took)
                self.row(f"{kind.replace('_', ' ')}: {what}, worst", worst, "s", limit, n=len(took))

    def _left(self) -> int:
        return self.oracle.refused + sum(len(relay.spool) for relay in self.relays)

    def _shared_epochs(self) -> int:
        held = [epoch for service in self.services for epoch in _HELD.findall(service.log.read_text(errors="replace"))]
        return len(held) - len(set(held))

    def row(self, claim: str, figure: float, unit: str, limit: float | None, *, n: int = 1, note: str = "") -> None:
        target, holds = ("", None) if limit is None else (f"<= {limit:g}", figure <= limit)
        self.rows.append(
            Row(claim=claim, figure=figure, unit=unit, target=target, holds=holds, kind="live", n=n, note=note)
        )
        print(f"{claim}: {figure:.3f} {unit} {note}", flush=True)


async def _nothing() -> None:
    """The fault is over already."""


@asynccontextmanager
async def running(count: int, seed: int) -> AsyncIterator[Chaos]:
    """Two services, each behind a proxy of its own, and a fleet that is enrolled."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    names = [f"n{number:05d}" for number in range(count)]
    with ExitStack() as stack:
        directory, server = stack.enter_context(postgres())
        enroll_validated(server.url, names)
        services, proxies = list[Service](), list[Proxy]()
        for name in ("a", "b"):
            proxies.append(Proxy(server.port))
            await proxies[-1].start()
            url = server.url.replace(f":{server.port}/", f":{proxies[-1].port}/")
            services.append(Service(directory / name, url))
            services[-1].start()
            stack.callback(services[-1].stop)
            await services[-1].answers()
        yield Chaos(services, proxies, server, admin_token(services), names, random.Random(seed))


async def measure(faults: int, seed: int, count: int) -> list[Row]:
    async with running(count, seed) as chaos:
        try:
            await chaos.play(faults)
        finally:
            for service in chaos.services:
                Path(f"/tmp/chaos-{service.directory.name}.log").write_text(service.log.read_text(errors="replace"))
        return chaos.rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.chaos")
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=400)
    parser.add_argument("--json", type=Path, default=RESULTS / "chaos.json", metavar="FILE")
    told = parser.parse_args()
    publish("chaos", asyncio.run(measure(told.faults, told.seed, told.nodes)), told.json)


if __name__ == "__main__":
    main()
