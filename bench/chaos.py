"""Faults at random on two ``mainstay serve``, gateways, their PostgreSQL and what they receive; an oracle compares.

``python -m bench.chaos [--faults N] [--seed S] [--nodes N] [--gateways N] [--json FILE]``, as root: it mounts two small
file systems. Relays send bundles to all services and gateways in turn until one acknowledges, nodes stop reporting,
GPUs slow down, and events arrive, while one process after the other is killed, stopped, cut off from PostgreSQL, or
PostgreSQL itself is away, or its disk is full. Requests that are damaged, late, or slow come all the while. A training
job reports, and its ranks are killed. Nodes send through a real relay, which is killed or has a full disk. Everything
runs on the same two cores. Slow disks and clock steps are not part of it.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import signal
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench.lib_chaos import Load, two_services, until
from bench.lib_chaos_disk import Rack
from bench.lib_chaos_job import Training, train_undisturbed
from bench.lib_cluster import fill
from bench.lib_fleet import Client, xid
from bench.report import RESULTS, Row, publish
from mainstay.probes.ids import uuid7

IN_RELAY = 50
MANY = 100
"""Faults from which on a run has PostgreSQL away for a minute."""
SLOW = 2000
"""Connections that send a byte a second."""
SLOW_SETS = 2
RECENT_SECONDS = 45.0
LATE_SECONDS = 5
"""How late charts may be right."""
SETTLE_SECONDS = 150.0
DISK_MIB = 1024
PROCESS_SECONDS = 9.0
"""About what a fault of a process takes."""
ONE = ("kill", "stop", "drop", "hang", "lost_commit")
"""Faults of one service or gateway."""
PROCESS = (*ONE, "kill_all", "restart_postgres", "crash_postgres", "full_disk", "full_relay", "kill_relay")
REQUEST = ("flipped", "truncated", "cut_off", "event", "twin", "ahead", "behind")
_PARTS = slice(2, 4), slice(8, None)
"""Nodes of a relay that stop reporting, and that have an XID."""


@dataclass
class Chaos(Load):
    """All that happens to a fleet on two services."""

    rng: random.Random = field(default_factory=random.Random)
    undisturbed: Path = Path()
    """Parameters of a training job to which nothing happened."""
    took: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    """Kind of fault → seconds to the first acknowledgement and to the first new finding after each."""
    stale: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Kind of fault → the first wrong chart right after each."""
    answers: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    """Kind of bad request → answers; 0 is none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.bad = [Client(one.port, self.token, 8, timeout=5.0) for one in self.processes]
        *faulty, self.victim = self.relays
        """Nodes of the last relay get bad requests and have no faults: they must be healthy in the end."""
        self.charts = [(relay, relay.nodes[0]) for relay in faulty]
        self.slow = [(relay, relay.nodes[1]) for relay in faulty]
        self.mute, fresh = ([(r, node) for r in faulty for node in r.nodes[part]] for part in _PARTS)
        self.rng.shuffle(self.mute)
        self.rng.shuffle(fresh)
        self.fresh = [node for _, node in fresh]

    async def play(self, faults: int) -> None:
        place = self.undisturbed.parent
        training = Training(self, random.Random(self.rng.random()), place / "training", self.undisturbed)
        self.rack = Rack(self, place / "rack")
        async with self.flowing():
            async with self.rack.running(), training.running():
                await asyncio.sleep(30.0)  # the rhythm of each node is known
                ailing = asyncio.create_task(self._ail(len(PROCESS) + faults // 10))
                await self._inject(faults)
                ailing.cancel()
            await self.settle(SETTLE_SECONDS)
        self._report()
        await training.compare()
        self.rack.compare()
        await self.compare(self.charts, 3600.0)

    async def _ail(self, reserve: int) -> None:
        """An event each 4 s; each 20 s a GPU slows down and a node stops reporting, until the end.

        Args:
            reserve: nodes without an event that are left for faults of processes.
        """
        for number in itertools.count(1):
            if len(self.fresh) > reserve:
                await self.strike(self.fresh.pop(), self.senders)
            if number % 5 == 0 and self.slow:
                relay, node = self.slow.pop()
                relay.samples.sick, self.oracle.holds[node] = node, "power_brake"
                print(f"{time.time():.1f} power_brake {node}", flush=True)
            elif number % 5 == 2 and self.mute:
                relay, node = self.mute.pop()
                relay.silent.add(node)
                self.oracle.holds[node] = "node_lost"
                print(f"{time.time():.1f} silent {node}", flush=True)
            await asyncio.sleep(4.0)

    async def _inject(self, faults: int) -> None:
        """``faults`` of both sorts: those of processes one after the other, bad requests meanwhile."""
        heavy = [*PROCESS, *self.rng.choices(PROCESS, k=max(0, faults * 8 // 100 - len(PROCESS)))]
        self.rng.shuffle(heavy)
        heavy.insert(len(heavy) // 2, "postgres_away")
        self.away = 60.0 if faults >= MANY else 10.0
        light = ["slow"] * SLOW_SETS + self.rng.choices(REQUEST, k=faults - len(heavy) - SLOW_SETS)
        self.rng.shuffle(light)
        pause = len(heavy) * PROCESS_SECONDS / len(light)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._bad_requests(light, pause))
            for kind in heavy:
                await self._process_fault(kind)
                await asyncio.sleep(self.rng.uniform(0.5, 3.0))

    # Faults of processes: what comes before ``yield`` is the fault, what comes after ends it.

    async def _process_fault(self, kind: str) -> None:
        """One fault of a process: how long until a bundle is acknowledged and a new event is a finding?"""
        number = self.rng.randrange(len(self.processes))
        clients = [client for place, client in enumerate(self.senders) if kind not in ONE or place != number]
        fault: AsyncIterator[None] = getattr(self, f"_{kind}")(number)
        await anext(fault)
        began, node = time.monotonic(), self.fresh.pop()
        print(f"{time.time():.1f} {kind} {number}", flush=True)
        probe = asyncio.create_task(self.detected(node, clients))
        async for _ in fault:
            raise AssertionError("a fault yields once")
        found = await probe
        await until(lambda: self.oracle.first_ack(began), 90.0)
        first = self.oracle.first_ack(began) or time.monotonic()
        self.took[kind].append((first - began, found - began))
        print(f"{kind}: acknowledged after {first - began:.2f} s, found after {found - began:.2f} s", flush=True)
        for one in self.processes:
            await one.answers()
        await until(lambda: not self.backlog(), 30.0)
        for _ in range(LATE_SECONDS):
            if not (wrong := await self.wrong_charts(self.charts, RECENT_SECONDS)):
                break
            await asyncio.sleep(1.0)
        else:
            self.stale[kind].append(wrong[0])
            print(f"{kind}: {len(wrong)} charts differ: {wrong[0]}", flush=True)

    async def _pause(self, least: float, most: float) -> None:
        await asyncio.sleep(self.rng.uniform(least, most))

    async def _kill(self, number: int) -> AsyncIterator[None]:
        self.processes[number].kill()
        yield
        await self._pause(0.0, 3.0)
        self.processes[number].start()

    async def _kill_all(self, _: int) -> AsyncIterator[None]:
        for one in self.processes:
            one.kill()
        for one in self.processes:
            one.start()
        yield

    async def _stop(self, number: int) -> AsyncIterator[None]:
        child = self.processes[number].child
        child.send_signal(signal.SIGSTOP)
        yield
        await self._pause(3.0, 9.0)
        child.send_signal(signal.SIGCONT)

    async def _drop(self, number: int) -> AsyncIterator[None]:
        self.proxies[number].drop()
        yield
        await self._pause(2.0, 10.0)
        self.proxies[number].resume()

    async def _hang(self, number: int) -> AsyncIterator[None]:
        self.proxies[number].hang()
        yield
        await self._pause(2.0, 10.0)
        if self.rng.random() < 0.5:  # what was on its way is lost
            self.proxies[number].reset()
        self.proxies[number].resume()

    async def _lost_commit(self, number: int) -> AsyncIterator[None]:
        proxy = self.proxies[number]
        proxy.hang_at_commit()
        await until(proxy.hangs.is_set, 15.0)
        yield
        await self._pause(2.0, 10.0)
        proxy.reset()
        proxy.resume()

    async def _restart_postgres(self, _: int) -> AsyncIterator[None]:
        await self._without_postgres(signal.SIGINT, 0.0)
        yield

    async def _crash_postgres(self, _: int) -> AsyncIterator[None]:
        await self._without_postgres(signal.SIGQUIT, 0.0)
        yield

    async def _postgres_away(self, _: int) -> AsyncIterator[None]:
        await self._without_postgres(signal.SIGQUIT, self.away)
        yield

    async def _without_postgres(self, how: signal.Signals, seconds: float) -> None:
        await asyncio.to_thread(self.server.stop, how)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(self.server.start)

    async def _full_disk(self, _: int) -> AsyncIterator[None]:
        """Of PostgreSQL, and of the services' data and logs."""
        ballast = await asyncio.to_thread(fill, self.services[0].directory.parent)
        await self._pause(3.0, 9.0)
        ballast.unlink()
        await asyncio.to_thread(self.server.revive)
        yield

    async def _full_relay(self, _: int) -> AsyncIterator[None]:
        before, ballast = self.rack.turned_away(), fill(self.rack.disk)
        yield
        await self._pause(3.0, 9.0)
        self.rack.refused += self.rack.turned_away() - before
        ballast.unlink()

    async def _kill_relay(self, _: int) -> AsyncIterator[None]:
        self.rack.relay.kill()
        yield
        await self._pause(0.0, 5.0)
        await asyncio.to_thread(self.rack.relay.start)

    # Bad requests

    async def _bad_requests(self, kinds: list[str], pause: float) -> None:
        for kind in kinds:
            await (self._slow_connections() if kind == "slow" else self._bad_request(kind))
            await self._pause(0.1 * pause, 1.9 * pause)

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

        ports = itertools.cycle([one.port for one in self.processes])
        ends = await asyncio.gather(*(creep(next(ports)) for _ in range(SLOW)))
        self.answers["slow"].update(ends)

    def _report(self) -> None:
        process = {kind: len(took) for kind, took in self.took.items()}
        note = ", ".join(f"{n} {kind}" for kind, n in sorted(process.items()))
        self.row("faults of processes", sum(process.values()), "", None, note=note)
        count = sum(answers.total() for kind, answers in self.answers.items() if kind != "slow")
        note = "; ".join(f"{kind}: {dict(sorted(answers.items()))}" for kind, answers in sorted(self.answers.items()))
        self.row("bad requests", count, "", None, note=f"answers, 0 for none: {note}")
        slow = self.answers["slow"]
        self.row("slow connections left open", slow[-1], "", 0.0, n=slow.total() - slow[0])
        for kind, took in sorted(self.took.items()):
            for place, what in enumerate(("first acknowledgement", "finding about a new event")):
                worst = max(one[place] for one in took)
                limit = 10.0 if place and kind != "kill_all" else None
                self.row(f"{kind.replace('_', ' ')}: {what} after, worst", worst, "s", limit, n=len(took))
        note = "; ".join(f"{kind}: {charts[0]}" for kind, charts in sorted(self.stale.items()))
        self.row(
            "faults 5 s after which charts of the last 45 s differ",
            sum(map(len, self.stale.values())),
            "",
            0.0,
            note=note,
        )
        errors = sum(client.statuses[500] for client in (*self.people, *self.bad, *self.senders))
        self.row("answers with status 500", errors, "", 0.0)


async def measure(faults: int, seed: int, count: int, gateways: int, undisturbed: Path) -> list[Row]:
    async with two_services([f"n{number:05d}" for number in range(count)], {}, gateways, DISK_MIB) as made:
        chaos = Chaos(**made, in_relay=IN_RELAY, rng=random.Random(seed), undisturbed=undisturbed)
        await chaos.play(faults)
        return chaos.rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.chaos")
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=400)
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument("--json", type=Path, default=RESULTS / "chaos.json", metavar="FILE")
    told = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mainstay-chaos-") as place:
        undisturbed = train_undisturbed(Path(place))
        rows = asyncio.run(measure(told.faults, told.seed, told.nodes, told.gateways, undisturbed))
    publish("chaos", rows, told.json)


if __name__ == "__main__":
    main()
