"""Kills a real ``mainstay serve`` with SIGKILL at random points of a running ingest and counts what became of frames.

``python -m bench.ingest_kill [--relays N] [--points N] [--json FILE]``. The promise: an acknowledged frame is never
missing and no frame is stored twice, at any moment of the kill. Senders behave as a node daemon does: one frame at a
time, in order, the same bytes again until they are acknowledged. With ``--relays``, each sender is a relay of 128 nodes
with 8 GPUs that sends a bundle a second: 79 relays are 10,000 nodes.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.lib_fleet import BUNDLE, GPU, Samples
from bench.report import RESULTS, Row, publish
from mainstay.probes.frame import FRAME_VERSION, Axis, Frame, checksum, encode
from mainstay.probes.signals import SignalSource, catalog
from mainstay.probes.transport import RetryableError, Transport
from mainstay.service.common.db import Database
from mainstay.service.demo.stack import free_port
from mainstay.service.fleet.models import NodeRow
from mainstay.service.settings import Settings
from mainstay.service.telemetry.blocks import BlockKind
from mainstay.service.telemetry.factory import open_blocks

SENDERS = 8
READY_SECONDS = 180.0
HOST = catalog(SignalSource.HOST)


def _launch(command: list[str], environment: dict[str, str], log: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=log, stderr=log, env=environment)


@dataclass
class Server:
    """``mainstay serve`` on one port and one data directory, started again after each kill."""

    directory: Path
    database_url: str = ""
    port: int = field(default_factory=free_port)
    start_seconds: list[float] = field(default_factory=list)
    launch: Callable[[list[str], dict[str, str], int], subprocess.Popen[bytes]] = field(default=_launch)
    """Starts a command in an environment, its output going to a descriptor."""
    _child: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def settings(self) -> Settings:
        return Settings(data_dir=self.directory / "data", database_url=self.database_url)

    def start(self) -> None:
        """Start, and wait until frames are taken."""
        command = [sys.executable, "-m", "mainstay", "serve", "--port", str(self.port), "--migrate"]
        command += ["--data-dir", str(self.directory / "data")]
        environment = {**os.environ, "MAINSTAY_DATABASE_URL": self.database_url}
        started = time.monotonic()
        with (self.directory / "serve.log").open("ab") as log:
            self._child = self.launch(command, environment, log.fileno())
        client = Transport(self.url)
        while not _is_ready(client):
            if self._child.poll() is not None or time.monotonic() - started > READY_SECONDS:
                self.kill()
                raise RuntimeError(f"the service did not start: {(self.directory / 'serve.log').read_text()[-2000:]}")
            time.sleep(0.02)
        self.start_seconds.append(time.monotonic() - started)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(how)
            self._child.wait(30)

    def admin(self) -> Transport:
        return Transport(self.url, (self.directory / "data" / "admin-token").read_text().strip())


def _is_ready(client: Transport) -> bool:
    try:
        # Without a token the answer is 401: from a living service.
        client.json("GET", "/auth/me")
    except RetryableError as error:
        return error.status == 401
    return True


@dataclass
class Sender(threading.Thread):
    """One node: sends frame after frame and remembers which were acknowledged."""

    node: str
    """Or relay."""
    transport: Transport
    stopping: threading.Event
    path: str
    make: Callable[[int], bytes]
    """Sequence → body."""
    pause: float = 0.0
    """Seconds between two bodies."""
    sent: dict[int, bytes] = field(default_factory=dict)
    """Sequence → digest of the body."""
    acknowledged: set[int] = field(default_factory=set)
    repeats: int = 0

    def __post_init__(self) -> None:
        super().__init__(name=f"sender-{self.node}", daemon=True)

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        sequence = 0
        while not self.stopping.is_set():
            sequence += 1
            body = self.make(sequence)
            self.sent[sequence] = _digest(body)
            while not self._deliver(sequence, body):
                if self.stopping.wait(0.05):
                    return
            self.stopping.wait(self.pause)

    def _deliver(self, sequence: int, body: bytes) -> bool:
        try:
            answer = self.transport.request("POST", self.path, content=body, content_type="application/msgpack")
            if answer.status != 204:
                raise RuntimeError(f"frames were refused: {answer.data[:200]!r}")
        except RetryableError:
            self.repeats += 1
            return False
        self.acknowledged.add(sequence)
        return True


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).digest()


def _frame(node: str, sequence: int) -> bytes:
    """A frame that differs from every other in its payload."""
    values = np.full((1, len(HOST.narrow), 2), (sequence % 1000) / 1000, "<f4").tobytes()
    wide = np.full((1, len(HOST.wide), 2), sequence, "<i8").tobytes()
    # Two hours in turn, so that a batch spans two files and a kill may fall between their commits.
    t0 = time.time() - 10 - 3600 * (sequence % 2)
    return encode(
        Frame(
            version=FRAME_VERSION, subject=node, axis=Axis.TIME, stream=f"spool-{node}", sequence=sequence, t0=t0,
            dt=1.0, catalog=HOST.digest, entities=("host",), samples=2, crc32=checksum(values, wide),
            values=values, wide=wide,
        )
    )  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What the blocks say afterwards."""

    points: int
    acknowledged: int
    missing: int
    double: int
    changed: int
    """Stored with other bytes than were sent."""
    repeats: int
    """Bodies that were sent again."""
    start_seconds: list[float]


def _nodes(server: Server, stopping: threading.Event) -> list[Sender]:
    return [
        Sender(name, Transport(server.url, _enroll(server, name)), stopping, "/telemetry/frames", partial(_frame, name))
        for name in (f"n{i}" for i in range(SENDERS))
    ]


def _relays(server: Server, stopping: threading.Event, count: int) -> list[Sender]:
    names = [f"n{i:05d}" for i in range(count * BUNDLE)]
    database = Database(server.settings.resolved_database_url)
    with database.session() as session:
        session.add_all(NodeRow(name=name, first_seen_at=time.time()) for name in names)
    database.close()
    server.admin().put_catalog(GPU)
    samples, racks = Samples(1), [tuple(names[i : i + BUNDLE]) for i in range(0, len(names), BUNDLE)]
    return [
        Sender(
            f"relay{i}", server.admin(), stopping, "/telemetry/bundles",
            partial(samples.bundle, rack, relay=f"relay{i}"), 1.0,
        )
        for i, rack in enumerate(racks)
    ]  # fmt: skip


@contextmanager
def _sending(server: Server, relays: int) -> Iterator[list[Sender]]:
    stopping = threading.Event()
    senders = _relays(server, stopping, relays) if relays else _nodes(server, stopping)
    for sender in senders:
        sender.start()
    try:
        yield senders
    finally:
        stopping.set()
        for sender in senders:
            sender.join(30)


def _enroll(server: Server, node: str) -> str:
    join = server.admin().json("POST", "/auth/tokens", {"name": node, "kind": "join"})["token"]
    return str(Transport(server.url, join).json("POST", "/nodes:enroll", {"name": node})["token"])


def measure(directory: Path, *, points: int, seed: int, database_url: str = "", relays: int = 0, **how: Any) -> Outcome:
    """Kill the service ``points`` times during ingest; then look at what is stored. ``how`` is for ``Server``."""
    rng = random.Random(seed)
    server = Server(directory, database_url, **how)
    server.start()
    try:
        with _sending(server, relays) as senders:
            for _ in range(points):
                _wait_for_progress(senders)
                time.sleep(rng.uniform(0.05, 0.8))
                server.kill()
                server.start()
            _wait_for_progress(senders)
    finally:
        server.stop()
    return _look(server, senders, points)


def _wait_for_progress(senders: list[Sender]) -> None:
    """Every sender gets through at least once, so that each kill interrupts a running ingest."""
    before = [len(sender.acknowledged) for sender in senders]
    deadline = time.monotonic() + 30
    while any(len(s.acknowledged) <= b for s, b in zip(senders, before, strict=True)):
        if time.monotonic() > deadline:
            raise RuntimeError("the senders get nothing acknowledged")
        time.sleep(0.005)


def _look(server: Server, senders: list[Sender], points: int) -> Outcome:
    database = Database(server.settings.resolved_database_url)
    store = open_blocks(server.settings, database)
    stored: Counter[tuple[str, int]] = Counter()
    changed = 0
    sent = {sender.node: sender.sent for sender in senders}
    for block in store.read(time.time() - 4 * 3600, time.time() + 3600, kinds=[BlockKind.TIME, BlockKind.BUNDLE]):
        stored[block.subject, block.sequence] += 1
        changed += sent[block.subject][block.sequence] != _digest(block.body)
    store.close()
    database.close()
    acknowledged = [(sender.node, number) for sender in senders for number in sender.acknowledged]
    return Outcome(
        points=points,
        acknowledged=len(acknowledged),
        missing=sum(key not in stored for key in acknowledged),
        double=sum(count > 1 for count in stored.values()),
        changed=changed,
        repeats=sum(sender.repeats for sender in senders),
        start_seconds=server.start_seconds,
    )


def _rows(outcome: Outcome, what: str, sent_by: str) -> list[Row]:
    note = f"{outcome.acknowledged} {what} acknowledged to {sent_by}, SIGKILL at {outcome.points} random points"
    none = {
        f"acknowledged {what} missing after kill -9": outcome.missing,
        f"{what} stored twice after kill -9": outcome.double,
        f"{what} stored with other bytes than were sent": outcome.changed,
    }
    start = Row(
        claim=f"{what}: start to first answer after a kill, median",
        figure=statistics.median(outcome.start_seconds),
        unit="s",
        target="",
        holds=None,
        kind="live",
        n=len(outcome.start_seconds),
    )
    return [
        *(
            Row(claim=claim, figure=figure, unit=what, target="0", holds=figure == 0, kind="live", n=outcome.points,
                note=note)
            for claim, figure in none.items()
        ),
        start,
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.ingest_kill")
    parser.add_argument("--points", type=int, default=50)
    parser.add_argument("--relays", type=int, default=79)
    parser.add_argument("--json", type=Path, default=RESULTS / "ingest_kill.json", metavar="FILE")
    told = parser.parse_args()
    rows = []
    for relays, what, sent_by in ((0, "frames", f"{SENDERS} nodes"), (told.relays, "bundles", f"{told.relays} relays")):
        with tempfile.TemporaryDirectory(prefix="mainstay-kill-") as directory:
            outcome = measure(Path(directory), points=told.points, seed=1, relays=relays)
        rows += _rows(outcome, what, sent_by)
    publish("ingest_kill", rows, told.json)


if __name__ == "__main__":
    main()
