"""Several ``mainstay serve`` on one PostgreSQL: what they cost, and what happens when one is killed or stopped.

``python -m bench.cluster [--nodes N] [--smaller N ...] [--gateways N] [--steady SECONDS] [--json FILE]``. A private
PostgreSQL that syncs each commit, two services, the gateways, and the generator run on the same cores. Relayed bundles
go to the gateways in turn (to the services where there are none), and to the next one where one does not answer, as
behind a load balancer. Processor time is that of all services and of PostgreSQL, from ``/proc``. Fleets of the sizes
``--smaller`` only report, to show how the cost grows.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import signal
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.lib_cluster import FRAME_SECONDS, Postgres, Service, admin_token, postgres
from bench.lib_fleet import BUNDLE, Client, Fleet, Samples, cpu_seconds, enroll_validated, resident_bytes
from bench.report import RESULTS, Row, publish

LEASE_SECONDS = 2.0
"""The default."""
TAKEOVERS = 3
"""Kills, and as many stops."""
WATCH_SECONDS = 75.0
"""After a takeover: longer than a restored finding that is not confirmed would hold (60 s)."""


@dataclass
class Balancer:
    """Sends each request to the services in turn, and again where one does not answer."""

    clients: list[Client]
    statuses: Counter[int] = field(default_factory=Counter)
    acknowledged: int = 0
    _turn: Iterator[int] = field(default_factory=itertools.count)

    async def request(
        self, method: str, path: str, body: bytes = b"", *, kind: str = "application/json"
    ) -> tuple[int, bytes]:
        while True:
            client = self.clients[next(self._turn) % len(self.clients)]
            status, answer = await client.request(method, path, body, kind=kind)
            if status not in {0, 429, 503}:
                self.statuses[status] += 1
                self.acknowledged += status == 204
                return status, answer
            await asyncio.sleep(0.2)


class Run:
    """One fleet on two services."""

    def __init__(
        self, services: list[Service], gateways: list[Service], server: Postgres, token: str, count: int
    ) -> None:
        self.services, self.gateways, self.count, self.rows = services, gateways, count, list[Row]()
        self._sick = itertools.count(count // 2, 7)
        self._scalar, self._server = server.scalar, server
        self.people = [Client(service.port, token, 2) for service in services]
        self.balancer = Balancer([Client(one.port, token, 60, timeout=5.0) for one in gateways or services])
        """A stopped service accepts connections and says nothing."""
        self.fleet = Fleet(self.balancer, count, Samples(FRAME_SECONDS), relayed=True)  # type: ignore[arg-type]

    async def report(self, steady: float) -> None:
        """The fleet only reports."""
        await self.fleet.register()
        await self.fleet.send(20.0)
        await self._steady(steady)

    async def measure(self, steady: float) -> None:
        await self.report(steady)
        self.fleet.samples.sick = "n00007"
        sending = asyncio.create_task(self.fleet.send(1e9))
        await self._until(self._active, 60.0)
        for how in (signal.SIGKILL, signal.SIGSTOP):
            took = [await self._take_over(how) for _ in range(TAKEOVERS)]
            what = "killed" if how is signal.SIGKILL else "stopped past its lease"
            note = (
                f"median {statistics.median(t for t, _ in took):.2f} s; from the signal to a finding about a new event"
            )
            worst = max(seconds for seconds, _ in took)
            self.row(f"judged again after the holder is {what}", worst, "s", 5.0, n=len(took), note=note)
            cleared = sum(cleared for _, cleared in took)
            self.row(f"findings cleared falsely after the holder is {what}", cleared, "", 0.0, n=len(took))
        sending.cancel()
        await asyncio.sleep(6.0)
        await self._compare()

    async def _steady(self, seconds: float) -> None:
        self.fleet.acks.clear()
        began, before = time.monotonic(), self._cpu()
        await self.fleet.send(seconds)
        took = time.monotonic() - began
        used = {name: cpu - before[name] for name, cpu in self._cpu().items()}
        note = ", ".join(f"{name} {cpu / took:.3f}" for name, cpu in used.items())
        samples = len(self.fleet.acks) / -(-self.count // BUNDLE) * self.count * self.fleet.samples.readings
        self.row("cores in all", sum(used.values()) / took, "", 0.6, note=f"{note}; for {took / 60:.1f} min")
        self.row("CPU seconds per million samples in all", sum(used.values()) / samples * 1e6, "s", None)
        p99 = statistics.quantiles(self.fleet.acks, n=100, method="inclusive")[-1]
        self.row("acknowledgement, p99", p99, "s", 0.5)
        for what, processes in (("service", self.services), ("gateway", self.gateways)):
            resident = [resident_bytes(one.child.pid) / 2**30 for one in processes]
            if resident:
                self.row(f"resident memory of each {what}, the larger", max(resident), "GiB", 4.0)

    async def _take_over(self, how: signal.Signals) -> tuple[float, int]:
        """Seconds until a new event is a finding, and how often the old finding was seen cleared."""
        holder = self._holder()
        rest = next(number for number, one in enumerate(self.services) if one is not self.services[holder])
        began, node = time.monotonic(), f"n{next(self._sick):05d}"
        self.services[holder].child.send_signal(how)
        await Fleet(self.people[rest], 1, self.fleet.samples).send_events([node])
        await self._until(lambda: self._has("xid", node), 60.0, every=0.02)
        took, cleared = time.monotonic() - began, 0
        if how is signal.SIGSTOP:
            await asyncio.sleep(2 * LEASE_SECONDS)
            self.services[holder].child.send_signal(signal.SIGCONT)
        else:
            self.services[holder].child.wait()
            self.services[holder].start()
        while time.monotonic() < began + WATCH_SECONDS:
            cleared += not self._active()
            await asyncio.sleep(0.5)
        return took, cleared

    async def _compare(self) -> None:
        """Whether what was acknowledged is stored once, and in the memory of both."""
        stored = self._scalar("SELECT count(*) FROM blocks WHERE kind = 'bundle'")
        self.row("acknowledged bundles that are not stored", self.balancer.acknowledged - stored, "", 0.0)
        now = time.time()  # without an end, the span ends with each request
        span = f"from={now - 250:.0f}&to={now:.0f}&points=250"
        query = f"/v1/telemetry/query?node=n00003&signal=gpu_temperature_celsius&{span}"
        charts = [(await client.json(query) or {}).get("series") for client in self.people]
        holds = bool(charts[0]) and charts[0] == charts[1]
        self.row("charts of the last minutes that differ between the services", 0 if holds else 1, "", 0.0)

    def _holder(self) -> int:
        statement = "SELECT p.pid FROM leases l JOIN processes p ON p.id = l.holder WHERE l.name = 'detection'"
        pid = self._scalar(statement)
        return next(number for number, one in enumerate(self.services) if one.child.pid == pid)

    def _active(self) -> bool:
        return self._has("power_brake", "n00007")

    def _has(self, kind: str, node: str) -> bool:
        """Whether a finding of this kind about the node is active."""
        return bool(self._scalar("SELECT count(*) FROM findings WHERE active AND kind = %s AND node = %s", kind, node))

    def _cpu(self) -> dict[str, float]:
        used = {f"service {n}": cpu_seconds(one.child.pid) for n, one in enumerate(self.services, start=1)}
        used |= {f"gateway {n}": cpu_seconds(one.child.pid) for n, one in enumerate(self.gateways, start=1)}
        backends = self._server.query("SELECT pid FROM pg_stat_activity")
        return used | {"PostgreSQL": sum(cpu_seconds(pid) for (pid,) in backends)}

    async def _until(self, holds: Callable[[], bool], seconds: float, *, every: float = 0.2) -> None:
        deadline = time.monotonic() + seconds
        while not holds() and time.monotonic() < deadline:  # noqa: ASYNC110 - other processes set no event here
            await asyncio.sleep(every)

    def row(self, claim: str, figure: float, unit: str, limit: float | None, *, n: int = 1, note: str = "") -> None:
        target, holds = ("", None) if limit is None else (f"<= {limit:g}", figure <= limit)
        shape = f"{len(self.gateways)} gateways, " if self.gateways else ""
        claim = f"{self.count} nodes, relayed, {shape}two services: {claim}"
        self.rows.append(
            Row(claim=claim, figure=figure, unit=unit, target=target, holds=holds, kind="live", n=n, note=note)
        )
        print(f"{claim}: {figure:.3f} {unit} {note}", flush=True)


@asynccontextmanager
async def _running(count: int, gateways: int) -> AsyncIterator[Run]:
    with ExitStack() as stack:
        directory, server = stack.enter_context(postgres())
        enroll_validated(server.url, (f"n{number:05d}" for number in range(count)))
        services = [Service(directory / name, server.url) for name in ("a", "b")]
        names = [f"gateway-{number}" for number in range(gateways)]
        fronts = [Service(directory / name, server.url, env={"MAINSTAY_CLUSTER__ROLE": "gateway"}) for name in names]
        for service in (*services, *fronts):
            service.start()
            stack.callback(service.stop)
            await service.answers()
        yield Run(services, fronts, server, admin_token(services), count)


async def measure(sizes: list[int], gateways: int, steady: float) -> list[Row]:
    rows = list[Row]()
    for count in sizes:
        async with _running(count, gateways) as run:
            await (run.measure if count == sizes[-1] else run.report)(steady)
            rows += run.rows
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster")
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--smaller", type=int, nargs="*", default=[], metavar="N")
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument("--steady", type=float, default=120.0, metavar="SECONDS", help="how long they only report")
    parser.add_argument("--json", type=Path, default=RESULTS / "cluster.json", metavar="FILE")
    told = parser.parse_args()
    publish("cluster", asyncio.run(measure([*told.smaller, told.nodes], told.gateways, told.steady)), told.json)


if __name__ == "__main__":
    main()
