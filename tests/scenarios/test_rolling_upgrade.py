"""Two services are upgraded one after the other: nodes keep reporting, and detection continues at each step.

The newer release is this code with another version and one more migration, which only adds. Nodes of both releases
report through a load balancer, which sends a connection to any service that accepts it.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

import psycopg
import pytest

from mainstay.probes.spool import Spool
from mainstay.service.common.migrate import MIGRATIONS
from mainstay.service.demo.processes import mainstay_command
from mainstay.service.demo.stack import Stack
from tests.scenarios.pair import NODE, REPORT, Pair

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.postgres, pytest.mark.timeout(300)]
NEWER = """
import sys
from pathlib import Path

import mainstay

mainstay.__version__ = "0.2.0"
from mainstay.probes import identity
from mainstay.service.common import migrate

identity._version = lambda: mainstay.__version__
migrate.MIGRATIONS = Path(__file__).parent / "migrations"
from mainstay.cli import main

main()
"""
EXPAND = """
import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "later", "{newest}", None, None


def upgrade() -> None:
    op.create_table("later", sa.Column("id", sa.Integer(), primary_key=True))
    for table in ("processes", "leases", "nodes", "findings"):
        op.add_column(table, sa.Column("later", sa.Integer(), nullable=True, server_default="7"))
    op.create_index("ix_findings_later", "findings", ["later"])
"""


@pytest.fixture
def newer(tmp_path: Path) -> list[str]:
    """The command ``mainstay`` of a newer release."""
    directory = tmp_path / "release"
    shutil.copytree(MIGRATIONS, directory / "migrations")
    versions = directory / "migrations" / "versions"
    newest = max(path.name for path in versions.glob("0*.py")).split("_")[0]
    (versions / "later.py").write_text(EXPAND.format(newest=newest))
    (directory / "newer.py").write_text(NEWER)
    return [sys.executable, str(directory / "newer.py")]


class Balancer:
    """Sends each connection to the next port that accepts it; no port twice for one connection."""

    def __init__(self, *ports: int) -> None:
        self._next, self._count = cycle(ports), len(ports)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(self._count):
            try:
                there, back = await asyncio.open_connection("127.0.0.1", next(self._next))
            except OSError:
                continue
            await asyncio.gather(_copy(reader, back), _copy(there, writer))
            return
        writer.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
    except OSError:
        pass
    finally:
        target.close()


@contextmanager
def balanced(port: int, *ports: int) -> Iterator[str]:
    """The URL of a balancer in front of ``ports``, while the block lasts."""
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(Balancer(*ports).serve, "127.0.0.1", port))
    thread = threading.Thread(target=loop.run_forever, name="balancer", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10.0)
        server.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


@contextmanager
def always_ready(pair: Pair) -> Iterator[None]:
    """One of the two services answers ``/readyz`` whenever it is asked, while the block lasts."""
    over, asked = threading.Event(), list[bool]()

    def poll() -> None:
        while not over.wait(0.1):
            asked.append(any(stack.api.ready() for stack in pair.stacks))

    thread = threading.Thread(target=poll, name="ready", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(30.0)
    assert len(asked) > 20
    assert all(asked), f"no service was ready {asked.count(False)} of {len(asked)} times"


@pytest.fixture
def pair(
    tmp_path: Path, postgres_url: str, free_port: Callable[[], int], service_stack: Callable[..., Stack]
) -> Iterator[Pair]:
    made = Pair(tmp_path, postgres_url, free_port, service_stack)
    yield made
    made.close()


def start_nodes(pair: Pair, service: str, commands: dict[str, list[str]], directory: Path) -> None:
    """A node daemon of each name and command."""
    stack = pair.stacks[0]
    for name, command in commands.items():
        body = {"name": f"join {name}", "kind": "join", "scopes": ["report"]}
        join = stack.api.post("/auth/tokens", body)["token"]
        place = ["--service", service, "--name", name, "--join-token", join, "--data-dir", str(directory / name)]
        stack.children.start(name, [*command, *place], stack.env)


def stop(pair: Pair, number: int, child: str = "service") -> None:
    pair.stacks[number].children.running[child].terminate()
    pair.stacks[number].children.wait(child, 30.0)


def detects(pair: Pair, number: int, code: int) -> None:
    """A new event, sent to service ``number``, becomes a finding."""
    before = len(pair.found(number))
    pair.xid(number, code, f"GPU-{code}")
    pair.stacks[number].until(lambda: len(pair.found(number)) > before, 15.0, f"a finding about XID {code}")
    assert all(pair.found(number).values())


def versions(pair: Pair) -> dict[str, str]:
    """URL → version of each process that runs."""
    told = pair.stacks[1].api.get("/cluster")["processes"]
    return {one["url"]: one["version"] for one in told if one["state"] == "running"}


def nodes(pair: Pair) -> dict[str, str]:
    """Name → version of the daemon of each node that reports."""
    items = pair.stacks[1].api.get("/nodes")["items"]
    return {one["name"]: pair.stacks[1].api.get(f"/nodes/{one['name']}")["version"] for one in items}


def stored(pair: Pair, name: str) -> list[int]:
    """Sequence numbers of the frames of a node that are in PostgreSQL."""
    with psycopg.connect(pair.url.replace("+psycopg", "")) as connection:
        rows = connection.execute("SELECT sequence FROM blocks WHERE subject = %s ORDER BY 1", (name,)).fetchall()
    return [row[0] for row in rows]


def test_nodes_and_detection_continue_while_both_services_are_upgraded(
    pair: Pair, newer: list[str], free_port: Callable[[], int], tmp_path: Path
) -> None:
    a, b = pair.stacks
    daemons = {"older": mainstay_command("node"), "newer": [*newer, "node"]}
    a.api.put(f"/nodes/{NODE}", REPORT)
    first = pair.xid(0, 79, "GPU-79")
    a.until(lambda: len(pair.found(0)) == 1, 30.0, "an incident")
    with balanced(free_port(), a.port, b.port) as url, always_ready(pair):
        start_nodes(pair, url, daemons, tmp_path)
        a.until(lambda: all(stored(pair, name) for name in daemons), 60.0, "frames of both nodes", vital=(*daemons,))
        told = nodes(pair)
        assert told["newer"] == "0.2.0"
        assert told["older"] != "0.2.0"

        stop(pair, 0)
        detects(pair, 1, 48)
        pair.start(0, *newer, "serve", "--migrate")
        assert versions(pair) == {a.api.url: "0.2.0", b.api.url: "0.1.0"}
        detects(pair, 1, 63)  # the older release, on the newer schema
        detects(pair, 0, 64)
        b.api.put("/nodes/later", REPORT | {"version": "0.2.0", "coolant": "water"})

        stop(pair, 1)
        detects(pair, 0, 95)
        pair.start(1, *newer, "serve")
        detects(pair, 1, 119)
        assert versions(pair) == {a.api.url: "0.2.0", b.api.url: "0.2.0"}
        before = {name: len(stored(pair, name)) for name in daemons}
        reported = lambda: all(len(stored(pair, name)) > before[name] for name in daemons)  # noqa: E731
        a.until(reported, 60.0, "further frames of both nodes", vital=(*daemons,))
        for name in daemons:
            stop(pair, 0, name)
    for name in daemons:
        assert_nothing_lost(tmp_path / name / "frames", stored(pair, name))
    with psycopg.connect(pair.url.replace("+psycopg", "")) as connection:
        found = connection.execute("SELECT active FROM findings WHERE kind = 'xid'").fetchall()
        assert found == [(True,)] * 6, "each XID is one finding, which holds"  # a busy host may have others of its own
        rows = connection.execute("SELECT active, later FROM findings WHERE event_id = %s", (first,)).fetchall()
    assert rows == [(True, 7)], "the first finding is there once, in the newer schema"


def assert_nothing_lost(spool: Path, frames: list[int]) -> None:
    """Each frame that a daemon made is stored once, or waits in its spool."""
    assert not (spool / "rejected").exists()
    with Spool(spool) as left:
        made = frames + [entry.sequence for entry in left.peek(1000)]
    assert sorted(set(made)) == list(range(1, max(made) + 1))
    assert len(frames) == len(set(frames))
