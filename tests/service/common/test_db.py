"""Sessions commit once at the edge; a reader writes nothing; both databases agree about time."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import String, select
from sqlalchemy.orm import Mapped, mapped_column

from mainstay.service.common.db import (
    Base,
    Database,
    UnixTime,
    WriteSession,
    after_commit,
    before_commit,
    normalize_url,
)


class Thing(Base):
    __tablename__ = "test_things"
    __table_args__ = {"info": {"skip": True}}  # noqa: RUF012

    name: Mapped[str] = mapped_column(String(20), primary_key=True)
    at: Mapped[float] = mapped_column(UnixTime)


Base.metadata.remove(Thing.__table__)  # only these tests know it


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    made = Database(database_url)
    Thing.__table__.create(made.engine)
    yield made
    made.close()


def names(database: Database) -> list[str]:
    with database.reading() as session:
        return list(session.scalars(select(Thing.name).order_by(Thing.at)))


def test_a_session_commits_at_its_end(database: Database) -> None:
    with database.session() as session:
        session.add(Thing(name="a", at=1.0))
    assert names(database) == ["a"]


def test_an_error_rolls_everything_back(database: Database) -> None:
    told: list[str] = []

    def write_and_fail() -> None:
        with database.session() as session:
            session.add(Thing(name="a", at=1.0))
            after_commit(session, lambda: told.append("committed"))
            raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        write_and_fail()
    assert (names(database), told) == ([], [])


def test_what_a_reader_writes_is_gone(database: Database) -> None:
    with database.reading() as session:
        session.add(Thing(name="a", at=1.0))
        session.flush()
    assert names(database) == []


def test_work_at_the_edge_runs_in_order(database: Database) -> None:
    order: list[str] = []

    def first(session: WriteSession) -> None:
        order.append("before")
        session.add(Thing(name="b", at=2.0))

    with database.session() as session:
        before_commit(session, "x", lambda _s: order.append("replaced"))
        before_commit(session, "x", first)
        after_commit(session, lambda: order.append(f"after {names(database)}"))
        order.append("body")
    assert order == ["body", "before", "after ['b']"]


@pytest.mark.parametrize("at", [0.0, 1_795_220_025.123456, 4_102_444_800.5])
def test_time_survives_to_the_microsecond(database: Database, at: float) -> None:
    with database.session() as session:
        session.add(Thing(name="a", at=at))
    with database.reading() as session:
        read = session.scalars(select(Thing)).one().at
        assert abs(read - at) < 1e-6
        assert session.scalars(select(Thing).where(Thing.at >= read)).one().name == "a"


def test_writers_wait_for_each_other(database: Database) -> None:
    """Read, then write: on SQLite this is where a lock upgrade would fail."""

    def add_tokens(prefix: str) -> None:
        for number in range(10):
            with database.session() as session:
                session.scalars(select(Thing)).all()
                session.add(Thing(name=f"{prefix}{number}", at=float(number)))

    threads = [threading.Thread(target=add_tokens, args=(prefix,)) for prefix in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(names(database)) == 40


def test_urls(tmp_path: Path) -> None:
    assert normalize_url("postgresql://u@h/d").drivername == "postgresql+psycopg"
    with pytest.raises(ValueError, match="mysql"):
        normalize_url("mysql://u@h/d")
    with pytest.raises(ValueError, match="file"):
        Database("sqlite://")


def test_a_person_writes_before_those_who_have_waited_longer(tmp_path: Path) -> None:
    database, order = Database(f"sqlite:///{tmp_path / 'd.db'}"), list[str]()

    def write(name: str, *, first: bool) -> None:
        with database.session(first=first) as session:
            session.connection()
            order.append(name)

    def started(name: str, waiting: Sequence[object], *, first: bool) -> threading.Thread:
        thread = threading.Thread(target=write, args=(name,), kwargs={"first": first})
        deadline, before = time.monotonic() + 30, len(waiting)
        thread.start()
        while len(waiting) == before:
            assert time.monotonic() < deadline
        return thread

    queue = database._queue
    with database.session() as session:
        session.connection()
        threads = [started("loop", queue._others, first=False), started("report", queue._others, first=False)]
        threads.append(started("person", queue._people, first=True))
    for thread in threads:
        thread.join(30)
    database.close()
    assert order == ["person", "loop", "report"]


@pytest.mark.postgres
def test_a_server_that_is_gone_is_noticed_within_seconds(postgres_url: str) -> None:
    database = Database(f"{postgres_url}?keepalives_count=4")
    with database.engine.connect() as connection:
        raw: Any = connection.connection.dbapi_connection
        with socket.socket(fileno=os.dup(raw.fileno())) as sock:
            names = ("TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
            told = [sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names]
    database.close()
    assert told == [10_000, 5, 2, 4], "what the URL says counts"
