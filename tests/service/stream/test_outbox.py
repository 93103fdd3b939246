"""Readers of changes miss none and see none twice in any order of commits; no writer waits for another."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import func, select, text, update

from mainstay.service.common import migrate
from mainstay.service.common.db import Database, WriteSession, before_commit
from mainstay.service.stream import changes
from mainstay.service.stream.changes import Topic, record_change
from mainstay.service.stream.hub import RESET, ChangeHub, Watcher
from mainstay.service.stream.models import ChangeRow
from mainstay.service.stream.position import START, Position
from tests.service.conftest import wait_until

WRITERS, EACH = 8, 40


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    made = Database(database_url)
    yield made
    made.close()


def change(session: WriteSession, name: str) -> None:
    record_change(session, Topic.NODE, {"id": name})


def commit(database: Database, *names: str) -> None:
    with database.session() as session:
        for name in names:
            change(session, name)


def seen_after(database: Database, last: Position) -> list[str] | None:
    with database.reading() as session:
        rows = changes.after(session, last)
        return None if rows is None else [row.data["id"] for row in rows]


class RollbackError(Exception):
    """Of this test."""


def write(database: Database, writer: int, committed: list[str]) -> None:
    """Transactions that get their numbers, their ids, and their ends in different orders."""
    dice = random.Random(writer)
    for number in range(EACH):
        name, pauses, fails = f"{writer}-{number}", [dice.random() * 0.02 for _ in range(2)], dice.random() < 0.2

        def pause(session: WriteSession, seconds: float = pauses[1], fails: bool = fails) -> None:
            session.execute(select(func.pg_sleep(seconds)))  # between the insert and the commit
            if fails:
                raise RollbackError

        try:
            with database.session() as session:
                if dice.random() < 0.5:  # numbered long before it inserts
                    session.execute(select(func.pg_current_xact_id()))
                    session.execute(select(func.pg_sleep(pauses[0])))
                change(session, name)
                change(session, f"{name}-too")
                before_commit(session, "pause", pause)
        except RollbackError:
            continue
        committed.extend((name, f"{name}-too"))


@pytest.mark.postgres
def test_each_committed_change_is_seen_once_and_by_all_in_one_order(postgres: Database) -> None:
    committed: list[str] = []
    readers: list[list[tuple[Position, str]]] = [[], []]
    over = threading.Event()

    def read(into: list[tuple[Position, str]], limit: int) -> None:
        last = START
        while not over.is_set():
            with postgres.reading() as session:
                rows = changes.after(session, last, limit)
            assert rows is not None
            into.extend((row.position, row.data["id"]) for row in rows)
            last = into[-1][0] if into else START

    def everything_is_seen() -> bool:
        return all(len(reader) >= len(committed) for reader in readers)

    reading = [threading.Thread(target=read, args=(into, limit)) for into, limit in zip(readers, (3, 500), strict=True)]
    writing = [threading.Thread(target=write, args=(postgres, writer, committed)) for writer in range(WRITERS)]
    for thread in (*reading, *writing):
        thread.start()
    for thread in writing:
        thread.join()
    try:
        wait_until(everything_is_seen)
    finally:
        over.set()
        for thread in reading:
            thread.join()
    assert Counter(name for _, name in readers[0]) == Counter(committed)
    assert readers[0] == readers[1]
    positions = [position for position, _ in readers[0]]
    assert positions == sorted(positions)
    ids = [position.id for position in positions]
    assert ids != sorted(ids), "the writers did not overlap: this run has shown nothing"


@pytest.mark.postgres
def test_an_open_transaction_delays_those_that_began_after_it_and_the_delay_is_told(postgres: Database) -> None:
    with postgres.session() as slow:
        slow.execute(select(func.pg_current_xact_id()))
        commit(postgres, "quick")  # does not wait
        assert seen_after(postgres, START) == []
        with postgres.reading() as session:
            at = session.scalars(select(ChangeRow.created_at)).one()
            assert changes.delay(session, at + 5.0) == pytest.approx(5.0)
        change(slow, "slow")
    wait_until(lambda: seen_after(postgres, START) == ["slow", "quick"])
    with postgres.reading() as session:
        wait_until(lambda: changes.delay(session, at + 5.0) == 0.0)


def test_the_newest_are_kept_and_who_missed_others_is_told(database: Database) -> None:
    for number in range(6):
        commit(database, f"n{number}")
    wait_until(lambda: seen_after(database, START) == [f"n{number}" for number in range(6)])
    with database.reading() as session:
        places = [row.position for row in changes.after(session, START) or ()]
    with database.session() as session:
        changes.prune(session, keep=3)
    assert seen_after(database, START) == ["n3", "n4", "n5"]
    assert seen_after(database, places[3]) == ["n4", "n5"]
    assert seen_after(database, places[1]) is None
    assert seen_after(database, places[5]) == []


@pytest.mark.postgres
def test_what_no_reader_could_see_yet_is_not_pruned(postgres: Database) -> None:
    with postgres.session() as slow:
        slow.execute(select(func.pg_current_xact_id()))
        commit(postgres, "a", "b", "c")
        with postgres.session() as session:
            changes.prune(session, keep=1)
    wait_until(lambda: seen_after(postgres, START) == ["a", "b", "c"])


@pytest.mark.postgres
def test_changes_of_another_cluster_that_a_backup_brought_are_forgotten(postgres: Database) -> None:
    commit(postgres, "old")
    with postgres.session() as session:
        session.execute(update(ChangeRow).values(transaction=ChangeRow.transaction + 10**12))
    commit(postgres, "new")
    with postgres.session() as session:
        changes.prune(session, keep=1000)
    with postgres.reading() as session:
        assert [data["id"] for data in session.scalars(select(ChangeRow.data))] == ["new"]


@pytest.mark.postgres
def test_the_id_of_an_earlier_release_is_answered_by_a_reset(postgres: Database) -> None:
    commit(postgres, "a")
    wait_until(lambda: seen_after(postgres, START) == ["a"])
    assert seen_after(postgres, Position.parse("7")) is None


def test_a_hub_that_fell_too_far_behind_says_so(database: Database) -> None:
    class Loop:
        def call_soon_threadsafe(self, call: Callable[..., None], *values: object) -> None:
            call(*values)

    hub, watcher = ChangeHub(database), Watcher(frozenset({Topic.JOB}), Loop())  # type: ignore[arg-type]
    commit(database, "a")
    wait_until(lambda: seen_after(database, START) == ["a"])
    joined = hub.join(watcher)
    commit(database, "b", "c", "d")
    wait_until(lambda: seen_after(database, joined) == ["b", "c", "d"])
    with database.session() as session:
        changes.prune(session, keep=2)
    hub.poll()
    told = watcher.queue.get_nowait()
    assert told is not None
    assert (told.topic, watcher.queue.qsize()) == (RESET, 0)
    assert told.id is not None
    assert told.id > joined


def test_readers_on_sqlite_do_not_read_the_changes_before_their_position(tmp_path: Path) -> None:
    """Every transaction is 0 there: a search by the first column of the index would read all that is kept."""
    made = Database(f"sqlite:///{tmp_path / 'd.db'}")
    migrate.upgrade(made)
    asked = select(ChangeRow).where(changes.AFTER, changes.SETTLED).order_by(*changes.ORDER)
    with made.reading() as session:
        plan = session.connection().exec_driver_sql(f"EXPLAIN QUERY PLAN {asked.compile(made.engine)}", (0, 7))
        assert "transaction=? AND id>?" in plan.one().detail
    made.close()


@pytest.mark.parametrize("position", [START, Position(0, 7), Position(8, 9), Position(10**17, 10**17)])
def test_positions_survive_as_text(position: Position) -> None:
    assert Position.parse(str(position)) == position


@pytest.mark.postgres
def test_a_transaction_that_stands_still_is_ended_unless_the_site_says_otherwise(postgres: Database) -> None:
    name = postgres.url.database
    with postgres.reading() as session:
        assert session.scalar(text("SHOW idle_in_transaction_session_timeout")) == "5min"
    with postgres.session() as session:
        session.execute(text(f'ALTER DATABASE "{name}" SET idle_in_transaction_session_timeout TO 7000'))
    postgres.close()
    with postgres.reading() as session:
        assert session.scalar(text("SHOW idle_in_transaction_session_timeout")) == "7s"
