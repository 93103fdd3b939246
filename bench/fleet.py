"""One real ``mainstay serve`` and a fleet that boots, reports, stops reporting at once, and comes back.

``python -m bench.fleet [--nodes N] [--frame-seconds S] [--relayed] [--growth] [--steady SECONDS] [--find]
[--json FILE]``. The generator runs on the same cores; processor time is the service's own, from ``/proc``. Its nodes
share an admin's token. VictoriaMetrics and Prometheus get the same samples where they are installed
(``bench.lib_peers``). With ``--growth``, a tenth of the fleet comes first, and the growth of the processor time is
reported.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from types import MappingProxyType

from bench.lib_fleet import BUNDLE, Client, Fleet, Samples, Watcher, cpu_seconds, enroll_validated, resident_bytes
from bench.lib_peers import measure_peers
from bench.report import RESULTS, Row, publish
from mainstay.detectors.gpu.throttle import ThrottleDetector
from mainstay.service.demo.stack import free_port

SETTLE_SECONDS = 20.0
"""The nodes of a boot sent one frame each, and no other until all were healthy: what that leaves is not steady."""
STEADY_SECONDS = 60.0
SILENT_SECONDS = 60.0
FIND_SECONDS, FINDINGS = 300.0, 5
"""Few, so that they are not one incident of a cohort."""
HEARTBEAT_TIMEOUT = 30.0
"""Longer than the default: frames come every few seconds."""
UNDER_LOAD = {"fleet layout": 0.15, "heat-map": 0.05, "heat-map of power": 0.05, "nodes": 0.15, "admission": 0.01}
"""Seconds; everything else, and these in other phases, 0.5."""
EVENTS, INVENTED = 12_000, 500


class Service:
    """A service as a process of its own."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self._log = (directory / "serve.log").open("wb")
        self._token = directory / "data" / "admin-token"
        self.database = directory / "data" / "mainstay.db"
        command = [sys.executable, "-m", "mainstay", "serve", "--port", str(self.port), "--migrate"]
        command += ["--data-dir", str(directory / "data")]
        env = {**os.environ, "MAINSTAY_FLEET__HEARTBEAT_TIMEOUT_SECONDS": str(HEARTBEAT_TIMEOUT)}
        self._child = subprocess.Popen(command, stdout=self._log, stderr=self._log, env=env)

    async def client(self, connections: int) -> Client:
        """A client with the admin's token, once the service answers."""
        client = Client(self.port, "", connections)
        while not self._token.exists() or client.statuses[200] == 0:
            if self._child.poll() is not None:
                raise RuntimeError("the service ended: see serve.log")
            await asyncio.sleep(0.2)
            if self._token.exists():
                client.token = self._token.read_text().strip()
                await client.request("GET", "/v1/auth/me")
        client.statuses.clear()
        return client

    def cpu_seconds(self) -> float:
        return cpu_seconds(self._child.pid)

    def resident_bytes(self) -> int:
        return resident_bytes(self._child.pid)

    def stop(self) -> None:
        self._child.send_signal(signal.SIGTERM)
        try:
            self._child.wait(20)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._log.close()


class Run:
    """One fleet on one service; each phase adds its rows."""

    def __init__(self, service: Service, fleet: Fleet, watcher: Client, steady_seconds: float) -> None:
        self.service, self.nodes, self.fleet = service, fleet.count, fleet
        self.steady_seconds = steady_seconds
        """Of reporting without requests of people."""
        self.seconds = fleet.samples.seconds
        self.per_million = self.cores = 0.0
        """Without requests of people."""
        self.watcher, self.rows = Watcher(watcher, list(fleet.names)), list[Row]()

    async def measure_steady(self) -> None:
        """Boot, and report without requests of people."""
        async with self.watcher.watching():
            await self._boot()
        await self.fleet.send(SETTLE_SECONDS)
        self.per_million, self.cores = await self._steady("", self.steady_seconds)

    async def measure_finding(self) -> None:
        """Boot, and time findings."""
        await self._boot()
        await self._find()

    async def measure(self) -> None:
        await self.measure_steady()
        async with self.watcher.watching():
            await self._steady(" while people ask", STEADY_SECONDS)
            self._people("under load", UNDER_LOAD)
            await self._silence()
            await self._back()
            await self._burst()
        refused = {
            status: count for status, count in self.watcher.client.statuses.items() if status not in {200, 201, 204}
        }
        self.row("requests of people refused or broken", sum(refused.values()), "", 0.0, note=str(refused))

    async def _boot(self) -> None:
        started, cpu = time.monotonic(), self.service.cpu_seconds()
        await self.fleet.register()
        registered = time.monotonic() - started
        cpu = self.service.cpu_seconds() - cpu
        sending = asyncio.create_task(self.fleet.send(self.seconds))
        healthy = await self._until(self._all_healthy, 120.0, started)
        await sending
        refused = {status: count for status, count in self.fleet.client.statuses.items() if status not in {200, 204}}
        note = (
            f"registered in {registered:.1f} s with {cpu:.1f} CPU seconds; refused and sent again: {refused or 'none'}"
        )
        self.row("all nodes healthy after they boot at once", healthy, "s", 60.0, note=note)
        self._people("while the fleet boots")

    async def _steady(self, when: str, seconds: float) -> tuple[float, float]:
        """CPU seconds per million samples, and cores."""
        self.fleet.acks.clear()
        started, cpu = time.monotonic(), self.service.cpu_seconds()
        await self.fleet.send(seconds)
        took = time.monotonic() - started
        cpu = self.service.cpu_seconds() - cpu
        senders = -(-self.nodes // BUNDLE) if self.fleet.relayed else self.nodes
        samples = len(self.fleet.acks) / senders * self.nodes * self.fleet.samples.readings
        note = f"{samples / took:.0f} samples a second, of those that are present, in frames of {self.seconds} s"
        note += f", for {took / 60:.0f} min"
        per_million, cores = (0.09, 0.35) if self.fleet.relayed else (0.25, 0.8)
        self.row(f"CPU seconds per million samples{when}", cpu / samples * 1e6, "s", per_million, note=note)
        self.row(f"cores{when}", cpu / took, "", cores)
        self.row(f"acknowledgement, p99{when}", _p99(self.fleet.acks), "s", 0.5)
        resident = self.service.resident_bytes() / 2**30
        self.row(f"resident memory{when}", resident, "GiB", 4.0)
        if when:
            self.row("fleet layout, gzip", self.watcher.layout_bytes / 1e6, "MB", 1.0)
        return cpu / samples * 1e6, cpu / took

    async def _find(self) -> None:
        """The power brake slows one GPU after another."""
        seconds, samples = [], self.fleet.samples
        sending = asyncio.create_task(self.fleet.send(FIND_SECONDS))
        await self._until(self._all_clear, 60.0, time.monotonic())  # no frames came since the fleet booted
        for sick in random.Random(3).sample(list(self.fleet.names), FINDINGS):
            samples.sick_since, samples.sick = None, sick
            waited = await self._until(partial(self._has_incident, sick), 20.0, time.monotonic(), every=0.02)
            found = time.time() - (samples.sick_since or 0.0) - ThrottleDetector.Config().needed
            seconds.append(found if waited < 20.0 else math.inf)
        samples.sick = None
        sending.cancel()
        note = f"largest {max(seconds):.2f} s; from the end of the last sample that the detector needs"
        self.row(f"sample to incident, median of {FINDINGS}", statistics.median(seconds), "s", 3.0, note=note)

    async def _silence(self) -> None:
        began = time.monotonic()
        first = await self._until(self._any_incident, SILENT_SECONDS, began)
        await asyncio.sleep(max(0.0, began + SILENT_SECONDS - time.monotonic()))
        found = await self.watcher.client.json("/v1/incidents?limit=200")
        live = [item for item in found["items"] if item["state"] == "open"] if found else []
        title = live[0]["title"] if live else "none"
        # The detector waits for three frames that are missing.
        self.row("first incident after the last frame", first, "s", 15.0 + 3 * self.seconds, note=title)
        self.row("open incidents of the silence", len(live), "", 4.0)
        self._people("while the fleet is silent")

    async def _back(self) -> None:
        began = time.monotonic()
        sending = asyncio.create_task(self.fleet.send(60.0))
        clear = await self._until(self._all_clear, 90.0, began + self.seconds)
        await sending
        self.row("all clear after every node has sent again", clear, "s", 30.0)
        self._people("while the fleet comes back")

    async def _burst(self) -> None:
        writer = Watcher(Client(self.service.port, self.watcher.client.token, 1), [])
        writing, began = asyncio.create_task(writer.write()), time.monotonic()
        sending = asyncio.create_task(self.fleet.send(300.0))  # or silent nodes would be a second outage
        accepted, refused = await self.fleet.burst(EVENTS, INVENTED)
        took = time.monotonic() - began
        judged = await self._until(self._all_judged, 120.0, began)
        writing.cancel()
        sending.cancel()
        note = f"accepted {accepted} in {took:.1f} s, all judged after {judged:.1f} s; median {{:.3f}} s"
        seconds = writer.seconds["write"]
        self.row(
            f"writes by others p99 while {EVENTS} events arrive", _p99(seconds), "s", 1.0,
            note=note.format(statistics.median(seconds)),
        )  # fmt: skip
        self.row("events about invented nodes not refused", INVENTED - refused, "", 0.0, note=f"of {INVENTED}")
        self._people(f"while {EVENTS} events arrive")

    async def _all_judged(self) -> bool:
        """Asked of the database: the metrics of 80,000 GPUs cost the service a second."""
        with closing(sqlite3.connect(f"file:{self.service.database}?mode=ro", uri=True)) as database:
            return database.execute("SELECT 1 FROM events WHERE judged_at IS NULL LIMIT 1").fetchone() is None

    async def _all_healthy(self) -> bool:
        overview = await self.watcher.client.json("/v1/overview")
        return bool(overview) and overview["nodes"].get("healthy", 0) >= self.nodes

    async def _any_incident(self) -> bool:
        found = await self.watcher.client.json("/v1/incidents?state=open&limit=1")
        return bool(found and found["items"])

    async def _has_incident(self, node: str) -> bool:
        found = await self.watcher.client.json("/v1/incidents?state=open&limit=20")
        return any(item["node"] == node for item in found["items"]) if found else False

    async def _all_clear(self) -> bool:
        return await self._all_healthy() and not await self._any_incident()

    async def _until(
        self, holds: Callable[[], Awaitable[bool]], seconds: float, began: float, *, every: float = 0.5
    ) -> float:
        """Seconds from ``began`` until it holds; ``seconds`` when it never does."""
        while time.monotonic() < began + seconds:
            if await holds():
                return time.monotonic() - began
            await asyncio.sleep(every)
        return seconds

    def _people(self, when: str, limits: Mapping[str, float] = MappingProxyType({})) -> None:
        for what, seconds in self.watcher.seconds.items():
            claim = f"{what} p99 {when}"
            self.row(
                claim, _p99(seconds), "s", limits.get(what, 0.5), note=f"median {statistics.median(seconds):.3f} s"
            )
        self.watcher.seconds.clear()

    def row(self, claim: str, figure: float, unit: str, limit: float, *, note: str = "") -> None:
        target, holds = f"<= {limit:g}", figure <= limit
        way = "relayed" if self.fleet.relayed else "direct"
        row = Row(
            claim=f"{self.nodes} nodes, {way}: {claim}", figure=figure, unit=unit, target=target, holds=holds,
            kind="live", note=note,
        )  # fmt: skip
        self.rows.append(row)
        print(f"{row.claim}: {figure:.3f} {unit} {note}", flush=True)


def _p99(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=100, method="inclusive")[-1] if len(seconds) > 1 else 0.0


@asynccontextmanager
async def _running(
    nodes: int, frame_seconds: int, *, relayed: bool, steady_seconds: float = STEADY_SECONDS
) -> AsyncIterator[Run]:
    with tempfile.TemporaryDirectory(prefix="mainstay-fleet-") as directory:
        fleet = Fleet(Client(0, ""), nodes, Samples(frame_seconds), relayed)
        (Path(directory) / "data").mkdir(mode=0o700)
        enroll_validated(f"sqlite:///{directory}/data/mainstay.db", fleet.names)
        service = Service(Path(directory))
        try:
            fleet.client = await service.client(1000)
            yield Run(service, fleet, await service.client(2), steady_seconds)
        finally:
            service.stop()


async def measure_finding(nodes: int, frame_seconds: int) -> Run:
    """Start a service and only find what is wrong with a fleet of ``nodes``."""
    async with _running(nodes, frame_seconds, relayed=True) as run:
        await run.measure_finding()
    return run


async def measure(nodes: int, frame_seconds: int, *, relayed: bool, growth: bool, steady_seconds: float) -> Run:
    """Start a service and let a fleet of ``nodes`` live through its phases."""
    few = 0.0
    if growth:
        async with _running(nodes // 10, frame_seconds, relayed=relayed) as run:
            await run.measure_steady()
            few = run.cores
    async with _running(nodes, frame_seconds, relayed=relayed, steady_seconds=steady_seconds) as run:
        await run.measure()
    if growth:
        run.row("growth of the cores from a tenth of the nodes, exponent", math.log10(run.cores / few), "", 1.05)
    return run


def _add_peers(run: Run) -> None:
    """The same samples on other servers, and the service as a share of each."""
    with tempfile.TemporaryDirectory(prefix="mainstay-peers-") as directory:
        for peer in measure_peers(Path(directory)):
            claim = f"CPU seconds per million samples, as a share of {peer.name} {peer.version} by {peer.way}"
            note = f"{run.per_million:.3f} s with detection, against {peer.per_million:.3f} s of ingest alone"
            row = Row(
                claim=claim, figure=run.per_million / peer.per_million, unit="", target="", holds=None, kind="live",
                baseline=peer.name, note=note,
            )  # fmt: skip
            run.rows.append(row)


def _rows_of_other_way(file: Path, *, relayed: bool) -> list[Row]:
    """What an earlier run of direct frames measured where this one was relayed, and the reverse."""
    kept = [Row(**row) for row in json.loads(file.read_text())] if file.exists() else []
    return [row for row in kept if ("direct:" if relayed else "relayed:") in row.claim]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.fleet")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--frame-seconds", type=int, default=5)
    parser.add_argument("--relayed", action="store_true", help="bundles of 128 nodes, as relays send them")
    parser.add_argument("--json", type=Path, default=RESULTS / "fleet.json", metavar="FILE")
    parser.add_argument("--growth", action="store_true", help="compare with a tenth of the nodes")
    parser.add_argument("--find", action="store_true", help="only time findings, in relayed frames")
    parser.add_argument("--steady", type=float, default=STEADY_SECONDS, metavar="SECONDS", help="how long they report")
    told = parser.parse_args()
    if told.find:
        run = asyncio.run(measure_finding(told.nodes, told.frame_seconds))
    else:
        run = asyncio.run(
            measure(
                told.nodes, told.frame_seconds, relayed=told.relayed, growth=told.growth, steady_seconds=told.steady
            )
        )  # fmt: skip
        _add_peers(run)
    publish("fleet", [*run.rows, *_rows_of_other_way(told.json, relayed=told.relayed or told.find)], told.json)


if __name__ == "__main__":
    main()
