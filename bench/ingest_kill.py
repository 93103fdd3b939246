"""Kills a real ``mainstay serve`` with SIGKILL at random points of a running ingest and counts what became of frames.

The promise: an acknowledged frame is never missing and no frame is stored twice, at any moment of the kill.
Senders behave as a node daemon does: one frame at a time, in order, the same bytes again until they are acknowledged.
"""

from __future__ import annotations

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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bench.report import Row, publish, target_file
from mainstay.probes.frame import FRAME_VERSION, Axis, Frame, checksum, encode
from mainstay.probes.signals import SignalSource, catalog
from mainstay.probes.transport import RetryableError, Transport
from mainstay.service.common.db import Database
from mainstay.service.demo.stack import free_port
from mainstay.service.settings import Settings
from mainstay.service.telemetry.blocks import BlockKind
from mainstay.service.telemetry.factory import open_blocks

POINTS = 20
SENDERS = 8
READY_SECONDS = 60.0
HOST = catalog(SignalSource.HOST)


@dataclass
class Server:
    """``mainstay serve`` on one port and one data directory, started again after each kill."""

    directory: Path
    database_url: str = ""
    port: int = field(default_factory=free_port)
    start_seconds: list[float] = field(default_factory=list)
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
            self._child = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        client = Transport(self.url)
        while not _is_ready(client):
            if self._child.poll() is not None or time.monotonic() - started > READY_SECONDS:
                raise RuntimeError((self.directory / "serve.log").read_text()[-2000:])
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
    transport: Transport
    stopping: threading.Event
    sent: dict[int, bytes] = field(default_factory=dict)
    acknowledged: set[int] = field(default_factory=set)
    repeats: int = 0

    def __post_init__(self) -> None:
        super().__init__(name=f"sender-{self.node}", daemon=True)

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        sequence = 0
        while not self.stopping.is_set():
            sequence += 1
            self.sent[sequence] = _frame(self.node, sequence)
            while not self._deliver(sequence):
                if self.stopping.wait(0.05):
                    return

    def _deliver(self, sequence: int) -> bool:
        try:
            self.transport.send_frame(self.sent[sequence])
        except RetryableError:
            self.repeats += 1
            return False
        self.acknowledged.add(sequence)
        return True


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
    start_seconds: list[float]


@contextmanager
def _sending(server: Server) -> Iterator[list[Sender]]:
    stopping = threading.Event()
    senders = [Sender(f"n{i}", Transport(server.url, _enroll(server, f"n{i}")), stopping) for i in range(SENDERS)]
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


def measure(directory: Path, *, points: int, seed: int, database_url: str = "") -> Outcome:
    """Kill the service ``points`` times during ingest; then look at what is stored."""
    rng = random.Random(seed)
    server = Server(directory, database_url)
    server.start()
    try:
        with _sending(server) as senders:
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
        changed += sent[block.subject][block.sequence] != block.body
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


def _none(claim: str, figure: int, note: str) -> Row:
    return Row(
        claim=claim, figure=figure, unit="frames", target="0", holds=figure == 0, kind="live", n=POINTS, note=note
    )


def main() -> None:
    target = target_file("ingest_kill")
    with tempfile.TemporaryDirectory(prefix="mainstay-kill-") as directory:
        outcome = measure(Path(directory), points=POINTS, seed=1)
    note = f"{outcome.acknowledged} frames acknowledged to {SENDERS} senders, SIGKILL at {POINTS} random points"
    start = Row(
        claim="start to first answer after a kill, median",
        figure=statistics.median(outcome.start_seconds),
        unit="s",
        target="",
        holds=None,
        kind="live",
        n=len(outcome.start_seconds),
    )
    rows = [
        _none("acknowledged frames missing after kill -9", outcome.missing, note),
        _none("frames stored twice after kill -9", outcome.double, note),
        _none("frames stored with other bytes than were sent", outcome.changed, note),
        start,
    ]
    publish("ingest_kill", rows, target)


if __name__ == "__main__":
    main()
