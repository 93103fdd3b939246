"""A wake-up call reaches the listeners of other processes on one PostgreSQL, also after its connection was cut."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from sqlalchemy import text

from mainstay.service.common.db import Database
from mainstay.service.common.shared_wakeups import CHANNEL, TOGETHER_SECONDS, SharedWakeups
from mainstay.service.common.wakeups import WakeupRegistry

pytestmark = pytest.mark.postgres
OTHER = """
import sys
from mainstay.service.common.db import Database
from mainstay.service.common.shared_wakeups import SharedWakeups
from mainstay.service.common.wakeups import WakeupRegistry

registry = WakeupRegistry()
registry.listen("ask", lambda: registry.wake("answer"))
with SharedWakeups(Database(sys.argv[1]), registry):
    sys.stdin.read()
"""
_CONNECTIONS = text(
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = :name"
    " AND state = 'idle' AND (query LIKE 'LISTEN%' OR query LIKE 'SELECT pg_notify%')"
)


@pytest.fixture
def database(postgres_url: str) -> Iterator[Database]:
    made = Database(postgres_url)
    yield made
    made.close()


@contextmanager
def other_process(database: Database) -> Iterator[None]:
    url = database.url.render_as_string(hide_password=False)
    process = subprocess.Popen([sys.executable, "-c", OTHER, url], stdin=subprocess.PIPE)
    try:
        yield
    finally:
        process.communicate(timeout=60)
    assert process.returncode == 0


def listening(database: Database) -> set[int]:
    with database.reading() as session:
        return set(session.scalars(_CONNECTIONS, {"name": CHANNEL}))


def test_a_call_reaches_another_process_also_after_both_lost_their_connections(
    database: Database, eventually: Callable[..., object]
) -> None:
    heard: Counter[str] = Counter()
    registry = WakeupRegistry()
    for name in ("ask", "answer", "own"):
        registry.listen(name, lambda name=name: heard.update([name]), only_here=name == "own")
    with SharedWakeups(database, registry), other_process(database):
        eventually(lambda: len(listening(database)) == 2)
        registry.wake("ask")
        eventually(lambda: heard["answer"] == 1)
        assert heard["ask"] == 1, "its own call came back"
        cut = listening(database)
        with database.session() as session:
            for pid in cut:
                session.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
        eventually(lambda: len(listening(database) - cut) == 2)
        registry.wake("own")
        registry.wake("ask")
        eventually(lambda: heard["answer"] == 2)
    assert heard == {"ask": 2, "answer": 2, "own": 1}


def test_services_on_one_database_wake_each_other(
    start: Callable[..., Any], postgres_url: str, eventually: Callable[..., object]
) -> None:
    here, there = start(database_url=postgres_url), start(database_url=postgres_url)
    eventually(lambda: len(listening(here.services.database)) == 2)
    heard: list[str] = []
    there.services.wakers.listen("orders", lambda: heard.append("orders"))
    here.services.wakers.wake("orders")
    eventually(lambda: heard)


def test_a_burst_of_calls_is_told_a_few_times(database: Database, eventually: Callable[..., object]) -> None:
    registry = WakeupRegistry()
    url = database.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url, autocommit=True) as witness, SharedWakeups(database, registry):
        witness.execute(f"LISTEN {CHANNEL}".encode())
        eventually(lambda: len(listening(database)) == 1)
        began = time.monotonic()
        for _ in range(500):
            registry.wake("detection")
        registry.wake("last")
        told: list[str] = []
        while "last" not in told:
            told.extend(each.payload for each in witness.notifies(timeout=0.1))
            assert time.monotonic() < began + 60
    assert 1 <= told.count("detection") <= 2 + (time.monotonic() - began) / TOGETHER_SECONDS
    assert told.count("detection") < 100


def test_calls_reach_this_process_while_the_database_is_away(
    database: Database, eventually: Callable[..., object], caplog: pytest.LogCaptureFixture
) -> None:
    away = Database("postgresql://postgres@127.0.0.1:1/nothing")
    heard: list[str] = []
    registry = WakeupRegistry()
    registry.listen("detection", lambda: heard.append("detection"))
    with SharedWakeups(away, registry):
        eventually(lambda: "trying again" in caplog.text)
        registry.wake("detection")
    registry.wake("detection")  # after its end, too
    assert heard == ["detection", "detection"]
    away.close()
