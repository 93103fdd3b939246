"""Two ``mainstay serve`` on one private PostgreSQL, and what a bench can do to each of them and between them."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, LiteralString

import psycopg

from bench.lib_fleet import Client
from mainstay.service.demo.stack import free_port
from tests.machine import run_postgres, start_postgres

FRAME_SECONDS = 5
START_SECONDS = 300.0
_LARGE = 4096
"""Bytes of a transaction that stores bundles."""


@dataclass
class Service:
    """One of the two."""

    directory: Path
    url: str
    port: int = field(default_factory=free_port)
    env: Mapping[str, str] = field(default_factory=dict)
    child: subprocess.Popen[bytes] = field(init=False)

    @property
    def log(self) -> Path:
        """Of all its lives."""
        return self.directory.with_suffix(".log")

    def start(self) -> None:
        command = [sys.executable, "-m", "mainstay", "serve", "--port", str(self.port), "--migrate"]
        command += ["--data-dir", str(self.directory), "--database-url", self.url]
        env = {**os.environ, "MAINSTAY_FLEET__HEARTBEAT_TIMEOUT_SECONDS": "30", **self.env}
        with self.log.open("ab") as log:
            self.child = subprocess.Popen(command, stdout=log, stderr=log, env=env)

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()

    def stop(self) -> None:
        self.child.send_signal(signal.SIGCONT)
        self.kill()

    async def answers(self) -> None:
        """Wait until it is healthy.

        Raises:
            RuntimeError: it ended, or is not healthy in ``START_SECONDS``; holds the end of its log.
        """
        client, deadline = Client(self.port, "", 1, timeout=5.0), time.monotonic() + START_SECONDS
        while (await client.request("GET", "/healthz"))[0] != 200:
            if self.child.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(self.log.read_text()[-2000:])
            await asyncio.sleep(0.2)
        client.close()


@dataclass
class Postgres:
    """A private PostgreSQL that syncs each commit."""

    directory: Path
    url: str = field(init=False)
    _pid: int = field(init=False)
    _connection: psycopg.Connection[Any] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.url, self._pid = start_postgres(self.directory, durable=True)

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1].split("/")[0])

    def start(self) -> None:
        """Start it again after ``stop``."""
        _, self._pid = run_postgres(self.directory, self.port, durable=True)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT is a fast shutdown, and SIGQUIT an immediate one, as if it crashed."""
        with suppress(ProcessLookupError):
            os.kill(self._pid, how)
        while (self.directory / "data" / "postmaster.pid").exists():
            time.sleep(0.01)

    def revive(self) -> None:
        """Start it again unless it runs."""
        if not (self.directory / "data" / "postmaster.pid").exists():
            self.start()

    def query(self, statement: LiteralString, *values: object) -> list[tuple[Any, ...]]:
        """Rows, read past any proxy; tried again while the server does not answer."""
        while True:
            try:
                if self._connection is None or self._connection.closed:
                    self._connection = psycopg.connect(self.url.replace("+psycopg", ""), autocommit=True)
                return self._connection.execute(statement, values).fetchall()
            except psycopg.OperationalError:
                self._connection = None
                time.sleep(0.05)

    def scalar(self, statement: LiteralString, *values: object) -> int:
        rows = self.query(statement, *values)
        return int(rows[0][0]) if rows else 0


class Proxy:
    """Between a service and PostgreSQL, or before services: passes bytes, holds them, or refuses connections.

    Args:
        targets: ports; each connection goes to the next one, whether it answers or not.
    """

    def __init__(self, *targets: int) -> None:
        self._targets, self._flows, self._refuses = itertools.cycle(targets), asyncio.Event(), False
        self._flows.set()
        self._open: set[asyncio.StreamWriter] = set()
        self._armed, self.hangs = False, asyncio.Event()
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Call it when both services have ended."""
        self._server.close()
        self.resume()
        self.reset()
        await asyncio.sleep(0.2)

    def hang(self) -> None:
        """Nothing passes, and no connection ends."""
        self._flows.clear()
        self.hangs.set()

    def hang_at_commit(self) -> None:
        """Nothing passes once the commit of some kilobytes has reached the server: no service learns of it."""
        self.hangs.clear()
        self._armed = True

    def drop(self) -> None:
        """Every connection is reset, and new ones too."""
        self._refuses = True
        self.reset()

    def reset(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    def resume(self) -> None:
        self._refuses = self._armed = False
        self._flows.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pair = {writer}
        self._open.add(writer)
        with suppress(OSError):
            await self._flows.wait()
            if not self._refuses:
                back, there = await asyncio.open_connection("127.0.0.1", next(self._targets))
                pair.add(there)
                self._open.add(there)
                pumps = [asyncio.create_task(self._pump(reader, there)), asyncio.create_task(self._pump(back, writer))]
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                for pump in pumps:
                    pump.cancel()
        for one in pair:
            one.transport.abort()
        self._open -= pair

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            written = 0
            while data := await reader.read(65_536):
                await self._flows.wait()
                writer.write(data)
                written += len(data)
                if b"COMMIT" in data:
                    if self._armed and written > _LARGE:
                        self._armed = False
                        self.hang()
                    written = 0
                await writer.drain()


@contextmanager
def small_disk(place: Path, mib: int) -> Iterator[None]:
    """A file system of ``mib`` MiB at a folder that is made, and is gone afterwards with all in it."""
    place.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=755", "tmpfs", str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(place: Path) -> Path:
    """A file that takes all the room there is; the disk has room again without it."""
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        for size in (1 << 20, 1 << 12):
            with suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass
    return ballast


@contextmanager
def postgres(disk_mib: int = 0) -> Iterator[tuple[Path, Postgres]]:
    """A folder for a run, and a PostgreSQL in it; on a small disk of its own if ``disk_mib`` is given."""
    with tempfile.TemporaryDirectory(prefix="mainstay-cluster-") as made, ExitStack() as stack:
        if disk_mib:
            stack.enter_context(small_disk(Path(made), disk_mib))
        Path(made).chmod(0o755)  # PostgreSQL runs as another user
        server = Postgres(Path(made) / "postgres")
        stack.callback(server.stop)
        yield Path(made), server


def admin_token(services: list[Service]) -> str:
    """The one that the first to start has made."""
    tokens = [one.directory / "admin-token" for one in services]
    return next(path.read_text().strip() for path in tokens if path.exists())
