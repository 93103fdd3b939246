"""How fast a finding becomes a message at its receiver, and what is lost or doubled while both sides are killed.

``python -m bench.notifications [--messages N] [--json FILE]``. XIDs on nodes of their own open one incident each on a
real ``mainstay serve``, which sends webhooks to a receiver in a process of its own. An operator closes each incident
when its message has arrived: sixteen nodes with the same fault at once would be one incident. First nothing else
happens; then the service and the receiver die by SIGKILL at random, while events continue. The receiver notes a message
before it answers, as a program that stores what it accepts. Live, both on the same machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.lib_chaos import until
from bench.lib_cluster import Service
from bench.lib_fleet import Client, enroll_validated, xid
from bench.report import RESULTS, Row, publish
from mainstay.service.demo.stack import free_port

CALM: Final = 200
"""Messages before anything is killed."""
CALM_SECONDS: Final = 0.2
"""Between two events."""
KILLS_SECONDS: Final = 0.8
"""The same while processes are killed."""
SETTLE_SECONDS: Final = 120.0
INCIDENTS: Final = """SELECT id FROM incidents WHERE NOT EXISTS (SELECT 1 FROM incident_timeline t
    WHERE t.incident_id = incidents.id AND t.kind = 'merged' AND t.text LIKE 'The same thing%') ORDER BY opened_at"""
"""Those that are not part of another one."""
RECEIVER: Final = """
import http.server, json, os, sys, time

class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        kept = {key: message[key] for key in ("id", "attempt", "event", "incidents")} | {"at": time.time()}
        os.write(FILE, json.dumps(kept).encode() + b"\\n")
        os.fsync(FILE)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass

FILE = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@dataclass
class Receiver:
    """A program that accepts webhooks and notes them."""

    file: Path
    port: int = field(default_factory=free_port)
    child: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> None:
        self.child = subprocess.Popen([sys.executable, "-c", RECEIVER, str(self.port), str(self.file)])

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()

    def messages(self) -> list[dict[str, Any]]:
        """All messages; a line that a kill cut short is none."""
        found = []
        for line in self.file.read_text().splitlines() if self.file.exists() else ():
            with suppress(ValueError):
                found.append(json.loads(line))
        return found


@dataclass
class Run:
    """A service, its receiver, and events."""

    service: Service
    receiver: Receiver
    names: list[str]
    rng: random.Random = field(default_factory=lambda: random.Random(7))
    kills: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0

    async def play(self, calm: int) -> None:
        await self._configure()
        closing_incidents = asyncio.create_task(self._close())
        await self._strike(self.names[:calm], CALM_SECONDS)
        await self._arrived(calm)
        killing = asyncio.create_task(self._kill())
        await self._strike(self.names[calm:], KILLS_SECONDS)
        killing.cancel()
        await asyncio.wait([killing])
        await self._revive()
        await self._arrived(len(self.names))
        closing_incidents.cancel()
        await asyncio.wait([closing_incidents])

    async def _configure(self) -> None:
        url = f"http://127.0.0.1:{self.receiver.port}/hook"
        text = f'[receivers.hook]\nkind = "webhook"\nurl = "{url}"\n[[routes]]\nname = "all"\nreceivers = ["hook"]\n'
        body = json.dumps({"text": text, "replaces": 0}).encode()
        status, answer = await self._client().request("PUT", "/v1/notifications/config", body)
        if status != 200:
            raise RuntimeError(answer.decode())

    def _client(self) -> Client:
        token = (self.service.directory / "admin-token").read_text().strip()
        return Client(self.service.port, token, 1, timeout=5.0)

    async def _close(self) -> None:
        """Close each incident whose message has arrived."""
        client, body, done = self._client(), json.dumps({"reason": "seen"}).encode(), set[str]()
        while True:
            for incident in {incident for incident, _ in self.reported()} - done:
                status, _ = await client.request("POST", f"/v1/incidents/{incident}:close", body)
                done |= {incident} if status in {200, 409} else set()
            await asyncio.sleep(0.3)

    async def _strike(self, names: list[str], pause: float) -> None:
        """An event a node, each sent until it is acknowledged."""
        client = self._client()
        for name in names:
            body = json.dumps({"items": [xid(name)]}).encode()
            while (await client.request("POST", "/v1/events", body))[0] != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            self.acknowledged += 1
            await asyncio.sleep(pause)

    async def _kill(self) -> None:
        while True:
            await asyncio.sleep(self.rng.uniform(2.0, 8.0))
            victim = self.rng.choice(("service", "receiver"))
            self.kills[victim] += 1
            getattr(self, victim).kill()
            await asyncio.sleep(self.rng.uniform(0.0, 2.0))
            await self._revive()

    async def _revive(self) -> None:
        for one in (self.receiver, self.service):
            if one.child.poll() is not None:
                one.start()
        await self.service.answers()

    async def _arrived(self, count: int) -> None:
        """Wait until the receiver has a message about each of so many incidents."""
        await until(lambda: len({incident for incident, _ in self.reported()}) >= count, SETTLE_SECONDS)

    def reported(self) -> Iterator[tuple[str, float]]:
        """Incident, and seconds from its finding until the message about it arrived."""
        for message in self.receiver.messages():
            if message["event"] == "opened":
                for incident in message["incidents"]:
                    yield incident["id"], message["at"] - incident["opened_at"]


def report(run: Run, calm: int) -> list[Row]:
    first: dict[str, float] = {}
    for incident, seconds in run.reported():
        first.setdefault(incident, seconds)
    with closing(sqlite3.connect(run.service.directory / "mainstay.db")) as database:
        opened = [row[0] for row in database.execute(INCIDENTS)]
    quiet = np.array([first[incident] for incident in opened[:calm] if incident in first])
    copies = Counter(message["id"] for message in run.receiver.messages())
    doubled = sum(count > 1 for count in copies.values())
    unmarked = sum(
        count > 1 for count in Counter(m["id"] for m in run.receiver.messages() if m["attempt"] == 1).values()
    )
    kills = ", ".join(f"{count} of the {name}" for name, count in sorted(run.kills.items()))
    values = [
        ("finding to message, median", float(np.median(quiet)), "s", None, len(quiet), "nothing is killed"),
        ("finding to message, p95", float(np.quantile(quiet, 0.95)), "s", 2.0, len(quiet), "nothing is killed"),
        ("kills by SIGKILL", run.kills.total(), "", None, 1, kills),
        ("incidents without a message", len(set(opened) - set(first)), "", 0.0, len(opened), ""),
        ("events without an incident", run.acknowledged - len(opened), "", 0.0, run.acknowledged, ""),
        ("messages doubled", 100 * doubled / len(copies), "%", 1.0, len(copies), f"{doubled} messages"),
        ("messages doubled without a mark", unmarked, "", 0.0, len(copies), ""),
    ]
    return [
        Row(
            claim=claim, figure=figure, unit=unit, target="" if limit is None else f"<= {limit:g}",
            holds=None if limit is None else figure <= limit, kind="live", n=n, note=note,
        )
        for claim, figure, unit, limit, n, note in values
    ]  # fmt: skip


@contextmanager
def started(place: Path, names: list[str]) -> Iterator[Run]:
    directory = place / "service"
    directory.mkdir(mode=0o700)
    url = f"sqlite:///{directory / 'mainstay.db'}"
    enroll_validated(url, names)
    run = Run(Service(directory, url), Receiver(place / "messages.jsonl"), names)
    run.receiver.start()
    run.service.start()
    try:
        yield run
    finally:
        run.service.stop()
        run.receiver.kill()


async def measure(count: int) -> list[Row]:
    calm = min(CALM, count // 2)
    with ExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory(prefix="mainstay-notifications-"))
        run = stack.enter_context(started(Path(place), [f"n{number:05d}" for number in range(count)]))
        await run.service.answers()
        await run.play(calm)
        return report(run, calm)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.notifications")
    parser.add_argument("--messages", type=int, default=1000)
    parser.add_argument("--json", type=Path, default=RESULTS / "notifications.json", metavar="FILE")
    reported = parser.parse_args()
    publish("notifications", asyncio.run(measure(reported.messages)), reported.json)


if __name__ == "__main__":
    main()
