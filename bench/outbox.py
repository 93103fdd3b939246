"""Transactions a second that eight writers commit on PostgreSQL, with a lock for the order of changes and without.

``python -m bench.outbox [--json FILE]``; the lock is that of releases before decision 50, held until after the commit.
"""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psycopg
from sqlalchemy import func, select

from bench.report import Row, publish, target_file
from mainstay.service.common import migrate
from mainstay.service.common.db import Database
from mainstay.service.stream.changes import Topic, record_change
from tests.machine import find_postgres

WRITERS, SECONDS, TIMES = 8, 5.0, 5


def rate(database: Database, *, locked: bool) -> float:
    ends = time.perf_counter() + SECONDS

    def write(writer: int) -> int:
        count = 0
        while time.perf_counter() < ends:
            with database.session() as session:
                if locked:
                    session.execute(select(func.pg_advisory_xact_lock(1)))
                record_change(session, Topic.NODE, {"id": f"n{writer}"})  # at the end
            count += 1
        return count

    with ThreadPoolExecutor(WRITERS) as pool:
        return sum(pool.map(write, range(WRITERS))) / SECONDS


def main() -> None:
    file, server, name = target_file("outbox"), find_postgres(), f"bench_{uuid.uuid4().hex}"
    assert server is not None, "no PostgreSQL answers"
    with psycopg.connect(server.replace("+psycopg", ""), autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{name}"'.encode())
        database = Database(f"{server.rsplit('/', 1)[0]}/{name}")
        migrate.upgrade(database)
        pairs = [(rate(database, locked=True), rate(database, locked=False)) for _ in range(TIMES)]
        admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())
    before, after = np.median(pairs, axis=0).tolist()
    publish("outbox", [Row(
        claim="eight writers commit changes without waiting for each other", figure=after, unit="transactions/s",
        target=">= 2 times as many as with the lock", holds=after >= 2 * before, kind="live", n=TIMES,
        baseline=f"{before:.0f} with the lock", note=f"medians of {SECONDS:.0f} s, in turns, one process, real fsync",
    )], file)  # fmt: skip


if __name__ == "__main__":
    main()
