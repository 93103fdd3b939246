"""A real server on a free loopback port for each test that asks for one, and the frames to send to it.

``service`` runs on SQLite, ``service_anywhere`` once on SQLite and once on PostgreSQL. ``frames`` makes valid frames
and lets a test spoil one field at a time.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import uvicorn
from fastapi import FastAPI

from mainstay.probes.frame import Axis, Frame, checksum, encode
from mainstay.probes.signals import Catalog, SignalSource, catalog
from mainstay.service.app import create_app
from mainstay.service.common import migrate
from mainstay.service.common.clock import Clock
from mainstay.service.common.db import Database, normalize_url
from mainstay.service.services import Services
from mainstay.service.settings import Settings
from mainstay.service.telemetry.frame_protocol import FrameProtocol
from tests.shared_statements import share_statements

share_statements()

_TLS = ssl.create_default_context()
"""For every client: reading the certificates again took each one 25 ms, and none of them speaks TLS."""


@dataclass
class Running:
    """A served app."""

    app: FastAPI
    url: str
    settings: Settings
    stack: ExitStack = field(default_factory=ExitStack)

    @property
    def services(self) -> Services:
        found: Services = self.app.state.services
        return found

    @property
    def admin_token(self) -> str:
        return (self.settings.data_dir / "admin-token").read_text().strip()

    def hold_still(self) -> None:
        """Stop the background loops: only requests of the test, and loops that it runs itself, change state."""
        self.app.state.loops.stop()

    def client(self, token: str | None = None, **headers: str) -> httpx.Client:
        """A client with a bearer token (the admin's unless another, or "" for none, is given)."""
        bearer = self.admin_token if token is None else token
        sent = {"Authorization": f"Bearer {bearer}", **headers} if bearer else headers
        client = httpx.Client(base_url=self.url, headers=sent, timeout=30.0, verify=_TLS)
        return self.stack.enter_context(client)

    def node_client(self, name: str) -> httpx.Client:
        """A client that speaks for a freshly enrolled node."""
        join = self.client().post("/v1/auth/tokens", json={"name": f"join {name}", "kind": "join"}).json()["token"]
        enrolled = self.client(join).post("/v1/nodes:enroll", json={"name": name})
        assert enrolled.status_code == 201, enrolled.text
        return self.client(enrolled.json()["token"])


class _Server(uvicorn.Server):
    """Sees within milliseconds that it should end; uvicorn's own looks ten times a second."""

    async def main_loop(self) -> None:
        counter = 0
        while not await self.on_tick(counter):
            counter += 1
            await asyncio.sleep(0.01)


@contextmanager
def serve(settings: Settings, clock: Clock | None = None) -> Iterator[Running]:
    app = create_app(settings, clock)
    sock = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app,
        http=FrameProtocol,
        log_config=None,
        access_log=False,
        lifespan="on",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=2,
    )
    server = _Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not server.started:
        assert thread.is_alive(), "the server did not start: see the log"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    running = Running(app, f"http://127.0.0.1:{sock.getsockname()[1]}", settings)
    try:
        with running.stack:
            yield running
    finally:
        app.state.services.hub.close()
        server.should_exit = True
        thread.join(20)
        sock.close()


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite database with today's schema and nothing in it, to copy: a third of a second saved each time."""
    return _migrated(f"sqlite:///{tmp_path_factory.mktemp('migrated') / 'empty.db'}")


@pytest.fixture(scope="session")
def migrated_template(databases: Any) -> Iterator[str]:
    """The name of the same on PostgreSQL."""
    url = databases.make()
    _migrated(url)
    yield url.rsplit("/", 1)[1]
    databases.drop(url)


@pytest.fixture
def postgres(databases: Any, migrated_template: str) -> Iterator[Database]:
    """A fresh PostgreSQL database with today's schema."""
    url = databases.make(template=migrated_template)
    made = Database(url)
    yield made
    made.close()
    databases.drop(url)


def _migrated(url: str) -> Path:
    database = Database(url)
    migrate.upgrade(database)
    database.close()
    return Path(database.url.database or "")


def _lay(migrated: Path, settings: Settings) -> Settings:
    """Spare a new service on SQLite the way through all migrations; it still looks whether there are any."""
    url = normalize_url(settings.resolved_database_url)
    if url.get_backend_name() == "sqlite" and url.database and not Path(url.database).exists():
        Path(url.database).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        Path(shutil.copyfile(migrated, url.database)).chmod(0o600)
    return settings


@pytest.fixture
def make_settings(tmp_path: Path, migrated_file: Path) -> Callable[..., Settings]:
    def make(**changes: Any) -> Settings:
        return _lay(migrated_file, Settings(**{"data_dir": tmp_path / "data", "migrate": True, **changes}))

    return make


@pytest.fixture
def start(make_settings: Callable[..., Settings]) -> Iterator[Callable[..., Running]]:
    """Start a service with changed settings (or another clock); it ends with the test."""
    with ExitStack() as stack:

        def run(clock: Clock | None = None, **changes: Any) -> Running:
            return stack.enter_context(serve(make_settings(**changes), clock))

        yield run


@pytest.fixture
def service(start: Callable[..., Running]) -> Running:
    return start()


BOTH = ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)]


@pytest.fixture(params=BOTH)
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without a schema, once of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'fresh.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture(params=BOTH)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A fresh database with today's schema, once of each kind."""
    if request.param == "sqlite":
        Path(shutil.copyfile(request.getfixturevalue("migrated_file"), tmp_path / "fresh.db")).chmod(0o600)
        yield f"sqlite:///{tmp_path / 'fresh.db'}"
        return
    databases = request.getfixturevalue("databases")
    url = databases.make(template=request.getfixturevalue("migrated_template"))
    yield url
    databases.drop(url)


@pytest.fixture
def service_anywhere(start: Callable[..., Running], database_url: str) -> Running:
    """The service on SQLite and on PostgreSQL."""
    return start(database_url=database_url)


@pytest.fixture(scope="module")
def lasting_service(tmp_path_factory: pytest.TempPathFactory, migrated_file: Path) -> Iterator[Running]:
    """One service for a module whose tests do not disturb each other."""
    with serve(_lay(migrated_file, Settings(data_dir=tmp_path_factory.mktemp("lasting")))) as running:
        yield running


@pytest.fixture
def admin(service: Running) -> httpx.Client:
    return service.client()


@dataclass
class FrameMaker:
    """Valid frames of a host with rising counters."""

    catalog: Catalog = field(default_factory=lambda: catalog(SignalSource.HOST))

    def frame(self, sequence: int = 1, **changes: Any) -> Frame:
        """A frame of two seconds that ended just now; ``changes`` replace its fields (and spoil it, if they do)."""
        samples = changes.get("samples", 2)
        entities = changes.get("entities", ("host",))
        shape = (len(entities), samples)
        narrow = np.full((shape[0], len(self.catalog.narrow), shape[1]), 0.25, "<f4")
        rising = (sequence * samples + np.arange(samples)) * 100
        wide = np.broadcast_to(rising, (shape[0], len(self.catalog.wide), shape[1])).astype("<i8")
        values, big = changes.pop("values", narrow.tobytes()), changes.pop("wide", wide.tobytes())
        fields: dict[str, Any] = {
            "version": 1, "subject": "n1", "axis": Axis.TIME, "stream": "s1", "sequence": sequence,
            "t0": float(int(time.time()) - 600 + 2 * sequence), "dt": 1.0, "catalog": self.catalog.digest,
            "entities": entities, "samples": samples, "values": values, "wide": big, "crc32": checksum(values, big),
        }  # fmt: skip
        return Frame(**{**fields, **changes})

    def body(self, sequence: int = 1, **changes: Any) -> bytes:
        return encode(self.frame(sequence, **changes))

    def with_narrow(self, signal: str, value: float, sequence: int = 1) -> bytes:
        """A frame whose first sample of one signal is ``value``."""
        values = np.full((1, len(self.catalog.narrow), 2), 0.25, "<f4")
        values[0, self.catalog.narrow.index(signal), 0] = value
        return self.body(sequence, values=values.tobytes())


def wait_until(check: Callable[[], Any], seconds: float = 60.0) -> Any:
    """What ``check`` returns once it is true."""
    deadline, pause = time.monotonic() + seconds, 0.01
    while not (found := check()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(pause)
        pause = min(1.5 * pause, 0.1)  # most checks are requests: what takes seconds need not be asked for so often
    return found


@pytest.fixture
def eventually() -> Callable[..., Any]:
    return wait_until


@pytest.fixture
def frames() -> FrameMaker:
    return FrameMaker()


REPORT: dict[str, Any] = {
    "hostname": "host-1", "os": "Debian 12", "kernel": "6.1", "version": "0.1.0", "boot_id": "b-1", "cohort": "cpu",
    "cpu_count": 2, "memory_bytes": 8 * 2**30, "started_at": 1_700_000_000.0,
    "devices": [
        {"id": "host", "index": 0, "kind": "host", "model": "EPYC", "serial": None, "uuid": None, "memory_bytes": None}
    ],
    "catalog": {"narrow": [], "wide": []},
}  # fmt: skip


@pytest.fixture(scope="session")
def any_report() -> dict[str, Any]:
    """What a node may say about itself; not to be changed."""
    return REPORT


@pytest.fixture
def report() -> dict[str, Any]:
    """The same, for a test to change."""
    return {**REPORT, "devices": [dict(device) for device in REPORT["devices"]]}
