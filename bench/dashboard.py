"""The dashboard of a large fleet in a browser, and the messages when all its nodes stop reporting.

``python -m bench.dashboard [--nodes N] [--visits N] [--json FILE]``. A real ``mainstay serve`` receives the frames of
the fleet, which is behind four switches, has open incidents, and trains a job of 1,024 ranks. Chromium opens each page
with an empty cache, several times, and counts what the page requests. Then the fleet stops reporting: a receiver of
webhooks counts the messages of the first minute. Live; fleet, service, and browser share the cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np
from playwright.async_api import Browser, CDPSession, Request, async_playwright

from bench.fleet import Service
from bench.lib_fleet import Client, Fleet, Samples, enroll_validated
from bench.notifications import Receiver
from bench.report import RESULTS, Row, publish

CHROMIUM: Final = "/usr/bin/chromium-headless-shell"
SWITCHES: Final = 4
SICK: Final = 20
"""Nodes with an XID."""
RANKS: Final = 1024
FRAME_SECONDS: Final = 5
FIRST_MINUTE: Final = 60.0
QUIET_SECONDS: Final = 0.5
STREAM: Final = "/v1/watch"
PAINT: Final = """
new PerformanceObserver(list => { for (const entry of list.getEntries()) window.largestPaint = entry.startTime; })
  .observe({ type: 'largest-contentful-paint', buffered: true });
"""
PAGES: Final = {
    "overview": "/",
    "fleet": "/fleet",
    "node": "/nodes/n00017",
    "jobs": "/jobs",
    "job": "/jobs/bench",
    "incidents": "/incidents",
    "incident": "/incidents/{incident}",
    "remediation": "/remediation",
    "validation": "/validation",
    "service": "/service",
    "notifications": "/notifications",
    "reliability": "/reliability",
}


@dataclass
class Visit:
    """What one page cost, from an empty cache."""

    requests: int = 0
    """Without the stream of changes, which stays open."""
    bytes: int = 0
    """Compressed, with headers, code, and fonts."""
    api_bytes: dict[str, int] = field(default_factory=dict)
    """Path and query of each request of the API → bytes of its answer."""
    paint: float = 0.0
    """Largest contentful paint, in seconds."""
    api: list[float] = field(default_factory=list)
    """Seconds of each request of the API."""


@dataclass
class Run:
    service: Service
    receiver: Receiver
    fleet: Fleet
    people: Client
    visits: dict[str, list[Visit]] = field(default_factory=lambda: defaultdict(list))
    messages: list[dict[str, Any]] = field(default_factory=list)
    """Those of the first minute after the first message about the silence."""

    async def play(self, browser: Browser, visits: int) -> None:
        await self._configure()
        await self.fleet.register()
        sending = asyncio.create_task(self.fleet.send(3600.0))
        await self._train()
        await self.fleet.send_events(list(self.fleet.names)[100 : 100 + SICK])
        while not await self._has_incidents():  # noqa: ASYNC110 - the service sets no event here
            await asyncio.sleep(0.5)
        await asyncio.sleep(20.0)  # what a boot leaves is not steady
        for _ in range(visits):
            for page in PAGES:
                self.visits[page].append(await self._visit(browser, page))
        sending.cancel()
        await asyncio.wait([sending])
        await self._count_messages()

    async def _configure(self) -> None:
        url = f"http://127.0.0.1:{self.receiver.port}/hook"
        text = f'[receivers.hook]\nkind = "webhook"\nurl = "{url}"\n[[routes]]\nname = "all"\nreceivers = ["hook"]\n'
        await self._send("PUT", "/v1/notifications/config", {"text": text, "replaces": 0})

    async def _train(self) -> None:
        """A job on the first nodes, in pairs of replicas."""
        names = list(self.fleet.names)
        ranks = [
            {
                "rank": rank, "dp": rank, "pp": 0, "tp": 0, "node": names[rank // 8], "device": None, "pid": rank + 1,
                "state": "running",
            }
            for rank in range(RANKS)
        ]  # fmt: skip
        job = {
            "name": "bench", "state": "running", "generation": 1, "command": "train.py",
            "topology": {"dp": RANKS, "pp": 1, "tp": 1, "world_size": RANKS, "ranks": ranks},
            "protection": {
                "slots": 2, "parity_every": None, "parity_group": None, "disk_every": None, "state_bytes": [],
            },
            "steps_total": None, "last_step": 1, "started_at": time.time(), "finished_at": None,
        }  # fmt: skip
        await self._send("PUT", "/v1/jobs/bench", job)

    async def _send(self, method: str, path: str, body: dict[str, Any]) -> None:
        status, answer = await self.people.request(method, path, json.dumps(body).encode())
        if status not in {200, 201}:
            raise RuntimeError(f"{method} {path}: {status} {answer.decode()}")

    async def _has_incidents(self) -> bool:
        found = await self.people.json("/v1/incidents?state=open&limit=50")
        return bool(found and found["items"])

    async def _visit(self, browser: Browser, page: str) -> Visit:
        """Open a page in a new browser context and wait until the network is quiet."""
        base = f"http://127.0.0.1:{self.service.port}"
        incidents = await self.people.json("/v1/incidents?state=open&limit=1")
        path = PAGES[page].format(incident=incidents["items"][0]["id"])
        context = await browser.new_context(viewport={"width": 1440, "height": 900})
        signed = await context.request.post(
            f"{base}/v1/auth/session", data={"token": self.people.token}, headers={"Origin": base}
        )
        assert signed.ok
        tab, visit, last = await context.new_page(), Visit(), [time.monotonic()]
        await tab.add_init_script(PAINT)
        tab.on("requestfinished", lambda request: _count(visit, request, last))
        _count_bytes(visit, await context.new_cdp_session(tab))
        await tab.goto(base + path, wait_until="load")
        deadline = time.monotonic() + 10.0
        # The stream keeps the network from being idle, and charts are asked for again each second.
        while time.monotonic() < min(last[0] + QUIET_SECONDS, deadline):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        visit.paint = float(await tab.evaluate("window.largestPaint")) / 1000
        await context.close()
        return visit

    async def _count_messages(self) -> None:
        before = len(self.receiver.messages())
        deadline = time.monotonic() + 120.0
        while len(self.receiver.messages()) == before and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        await asyncio.sleep(FIRST_MINUTE)
        self.messages = self.receiver.messages()[before:]


def _count(visit: Visit, request: Request, last: list[float]) -> None:
    if STREAM in request.url:
        return
    last[0] = time.monotonic()
    visit.requests += 1
    if "/v1/" in request.url:
        visit.api.append((request.timing["responseEnd"] - request.timing["requestStart"]) / 1000)


def _count_bytes(visit: Visit, session: CDPSession) -> None:
    paths: dict[str, str] = {}

    def sent(event: dict[str, Any]) -> None:
        paths[event["requestId"]] = event["request"]["url"]

    def finished(event: dict[str, Any]) -> None:
        visit.bytes += int(event["encodedDataLength"])
        path = urlsplit(paths.get(event["requestId"], ""))
        if path.path.startswith("/v1/"):
            visit.api_bytes[f"{path.path}?{path.query}"] = int(event["encodedDataLength"])

    session.on("Network.requestWillBeSent", sent)
    session.on("Network.loadingFinished", finished)
    asyncio.get_running_loop().create_task(session.send("Network.enable"))


def report(run: Run) -> list[Row]:
    rows, fleet = list[Row](), f"{run.fleet.count} nodes"

    def row(claim: str, figure: float, unit: str, limit: float, *, n: int, note: str = "") -> None:
        rows.append(
            Row(
                claim=f"{fleet}: {claim}", figure=figure, unit=unit, target=f"<= {limit:g}", holds=figure <= limit,
                kind="live", n=n, note=note,
            )
        )  # fmt: skip

    every = [seconds for visits in run.visits.values() for visit in visits for seconds in visit.api]
    row("request of a page to the API, p95", float(np.quantile(every, 0.95)), "s", 0.15, n=len(every))
    for page, visits in run.visits.items():
        n, api = len(visits), visits[-1].api_bytes
        largest = ", ".join(
            f"{path[:60]} {api[path] / 1000:.0f} kB" for path in sorted(api, key=lambda one: -api[one])[:3]
        )
        files = max(visit.requests - len(visit.api) for visit in visits)
        note = f"{sum(api.values()) / 1000:.0f} kB; largest: {largest}; {files} files more with an empty cache"
        row(f"{page}: requests of the API", float(max(len(visit.api) for visit in visits)), "", 12.0, n=n, note=note)
        kilobytes = float(np.median([visit.bytes / 1000 for visit in visits]))
        row(f"{page}: compressed, empty cache", kilobytes, "kB", 300.0, n=n)
        paint = float(np.median([visit.paint for visit in visits]))
        row(f"{page}: largest contentful paint, empty cache, median", paint, "s", 1.5, n=n)
    titles = "; ".join(sorted({incident["title"] for one in run.messages for incident in one["incidents"]}))
    claim = f"messages in the first minute, all silent behind {SWITCHES} switches"
    row(claim, len(run.messages), "", 4.0, n=1, note=titles)
    return rows


@asynccontextmanager
async def started(count: int) -> AsyncIterator[Run]:
    with tempfile.TemporaryDirectory(prefix="mainstay-dashboard-") as place:
        fleet = Fleet(Client(0, ""), count, Samples(FRAME_SECONDS), relayed=True, switches=SWITCHES)
        (Path(place) / "data").mkdir(mode=0o700)
        enroll_validated(f"sqlite:///{place}/data/mainstay.db", fleet.names)
        service, receiver = Service(Path(place)), Receiver(Path(place) / "messages.jsonl")
        receiver.start()
        try:
            fleet.client = await service.client(100)
            yield Run(service, receiver, fleet, await service.client(1))
        finally:
            service.stop()
            receiver.kill()


async def measure(count: int, visits: int) -> list[Row]:
    async with async_playwright() as playwright, started(count) as run:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM)
        await run.play(browser, visits)
        await browser.close()
        return report(run)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.dashboard")
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--visits", type=int, default=5)
    parser.add_argument("--json", type=Path, default=RESULTS / "dashboard.json", metavar="FILE")
    chosen = parser.parse_args()
    publish("dashboard", asyncio.run(measure(chosen.nodes, chosen.visits)), chosen.json)


if __name__ == "__main__":
    main()
