"""Both block stores keep the same promises."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import IntegrityError, OperationalError

from mainstay.service.common import db
from mainstay.service.common.db import Database
from mainstay.service.telemetry.blocks import BlockKind, BlockStore, StoredBlock
from mainstay.service.telemetry.blocks_postgres import PostgresBlockStore
from mainstay.service.telemetry.blocks_sqlite import SqliteBlockStore

HOUR = 480_000
"""An hour in 2024, in Unix hours."""
START = HOUR * 3600.0


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BlockStore]:
    if request.param == "sqlite":
        sqlite = SqliteBlockStore(tmp_path / "blocks")
        yield sqlite
        sqlite.close()
        return
    database = Database(request.getfixturevalue("postgres_url"))
    yield PostgresBlockStore(database.engine)
    database.close()


def block(
    sequence: int, start: float = START, *, subject: str = "n1", kind: BlockKind = BlockKind.TIME, span: float = 1.0
) -> StoredBlock:
    return StoredBlock(
        subject, kind, "s", sequence, start, start + span, f"body {sequence}".encode() + bytes(range(256))
    )


def read(
    store: BlockStore, start: float, stop: float, subject: str | None = None, kind: BlockKind = BlockKind.TIME
) -> list[int]:
    return [b.sequence for b in store.read(start, stop, subject=subject, kinds=[kind])]


def test_what_is_stored_comes_back_as_it_was(store: BlockStore) -> None:
    blocks = [block(i, START + 2 * i) for i in range(5)]
    assert store.append(blocks) == [True] * 5
    assert list(store.read(START, START + 100, subject="n1", kinds=[BlockKind.TIME])) == blocks


def test_a_block_is_stored_once(store: BlockStore) -> None:
    assert store.append([block(1), block(2)]) == [True, True]
    assert store.append([block(1), block(2)]) == [False, False]
    assert store.append([block(2), block(3), block(1), block(4)]) == [False, True, False, True]
    assert sorted(read(store, START, START + 10)) == [1, 2, 3, 4]


def test_the_same_number_in_another_stream_or_subject_is_another_block(store: BlockStore) -> None:
    other_stream = StoredBlock("n1", BlockKind.TIME, "t", 1, START, START, b"x")
    assert store.append([block(1), other_stream, block(1, subject="n2")]) == [True] * 3


def test_a_batch_over_several_hours(store: BlockStore) -> None:
    blocks = [block(i, START + 3600 * (i % 3) + i) for i in range(9)]
    assert store.append(blocks) == [True] * 9
    assert store.hours() == [HOUR, HOUR + 1, HOUR + 2]
    assert sorted(read(store, START, START + 4 * 3600)) == list(range(9))
    assert store.append(blocks) == [False] * 9


def test_a_range_reads_what_touches_it(store: BlockStore) -> None:
    store.append([block(1, START), block(2, START + 10), block(3, START + 3590, span=60.0), block(4, START + 3700)])
    assert read(store, START + 5, START + 10) == []
    assert read(store, START + 10.5, START + 11) == [2]
    assert read(store, START + 3620, START + 3650) == [3], "a block that reaches into the next hour"
    assert read(store, START + 3620, START + 3800) == [3, 4]


def test_subject_and_kind_select(store: BlockStore) -> None:
    store.append([block(1), block(2, subject="n2"), block(3, subject="job", kind=BlockKind.STEP)])
    assert read(store, START, START + 10, "n2") == [2]
    assert read(store, START, START + 10) == [1, 2]
    assert read(store, START, START + 10, kind=BlockKind.STEP) == [3]


def test_old_hours_are_dropped_whole(store: BlockStore) -> None:
    store.append([block(i, START + 3600 * i) for i in range(4)])
    assert store.drop_before(HOUR + 2) == 2
    assert store.hours() == [HOUR + 2, HOUR + 3]
    assert read(store, START, START + 5 * 3600) == [2, 3]
    assert store.drop_before(HOUR + 2) == 0
    assert store.append([block(0)]) == [True], "a late block makes its hour again"


def test_many_hours_more_than_are_kept_open(store: BlockStore) -> None:
    blocks = [block(i, START + 3600 * i) for i in range(12)]
    assert store.append(blocks) == [True] * 12
    assert read(store, START, START + 13 * 3600) == list(range(12))


def test_a_second_process_sees_and_respects_what_is_there(store: BlockStore, tmp_path: Path) -> None:
    store.append([block(1)])
    if isinstance(store, SqliteBlockStore):
        other: BlockStore = SqliteBlockStore(tmp_path / "blocks")
    else:
        assert isinstance(store, PostgresBlockStore)
        other = PostgresBlockStore(store._engine)
    assert other.append([block(1), block(2)]) == [False, True]
    assert store.append([block(2)]) == [False]
    other.close()


@pytest.mark.postgres
def test_a_partition_dropped_by_another_process_is_made_again(postgres_url: str) -> None:
    database = Database(postgres_url)
    store = PostgresBlockStore(database.engine)
    store.append([block(1)])
    PostgresBlockStore(database.engine).drop_before(HOUR + 1)
    with pytest.raises(IntegrityError, match="no partition"):
        store.append([block(2)])
    assert store.append([block(2)]) == [True], "the next attempt finds out"
    database.close()


@pytest.mark.postgres
@pytest.mark.timeout(60)
def test_a_process_that_is_stopped_within_a_commit_does_not_stop_the_others(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db, "WRITER_IDLE_SECONDS", 0.2)
    stopped, other = Database(postgres_url), Database(postgres_url)
    stores = [PostgresBlockStore(database.engine) for database in (stopped, other)]
    inside, go_on = threading.Event(), threading.Event()

    @event.listens_for(stopped.engine, "before_cursor_execute")
    def stop(*arguments: Any) -> None:
        if "block_commits" in arguments[2]:  # its blocks are written, and not committed
            inside.set()
            go_on.wait(30)

    with ThreadPoolExecutor() as pool:
        held = pool.submit(stores[0].append, [block(1)])
        assert inside.wait(10)
        try:
            assert pool.submit(stores[1].append, [block(1)]).result(10) == [True], "the sender turned to the other"
        finally:
            go_on.set()
        with pytest.raises(OperationalError):
            held.result(10)
    assert stores[0].append([block(1)]) == [False]
    stopped.close()
    other.close()


@pytest.mark.postgres
@pytest.mark.timeout(60)
def test_a_commit_waits_for_an_earlier_one_that_seemed_to_fail(postgres_url: str, eventually: Any) -> None:
    lost, later = Database(postgres_url), Database(postgres_url)
    stores = [PostgresBlockStore(database.engine, writer=7) for database in (lost, later)]
    inside, go_on = threading.Event(), threading.Event()

    @event.listens_for(lost.engine, "before_cursor_execute")
    def stop(*arguments: Any) -> None:
        if "block_commits" in arguments[2]:
            inside.set()
            go_on.wait(30)

    waiting = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 7 AND NOT granted")
    with ThreadPoolExecutor() as pool, later.engine.connect() as connection:
        first = pool.submit(stores[0].append, [block(1)])
        assert inside.wait(10)
        stores[1]._position = 1
        second = pool.submit(stores[1].append, [block(2)])
        try:
            eventually(lambda: second.done() or connection.scalar(waiting))
            assert not second.done(), "whoever reads this commit skips the first"
        finally:
            go_on.set()
        assert (first.result(10), second.result(10)) == ([True], [True])
    lost.close()
    later.close()


@pytest.mark.parametrize("harm", ["header", "pages", "text"])
def test_a_damaged_file_is_set_aside_with_one_line(tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture) -> None:
    store = SqliteBlockStore(tmp_path / "blocks")
    store.append([replace(block(n), body=bytes(50_000)) for n in range(1, 40)])
    store.append([block(99, START + 3 * 3600)])
    store.close()
    path = store._path(block(1).hour)
    content = bytearray(path.read_bytes())
    if harm == "header":
        content[:16] = bytes(16)
    elif harm == "pages":
        content[65536:-1] = b"\xa5" * (len(content) - 65537)
    else:
        content[:] = b"no database at all"
    path.write_bytes(bytes(content))
    again = SqliteBlockStore(tmp_path / "blocks")
    kept = list(again.read(START - 10, START + 4 * 3600, kinds=[BlockKind.TIME]))
    assert [found.sequence for found in kept][-1:] == [99], "other hours are read"
    assert again.append([block(100)]) == [True], "the hour continues in a new file"
    assert [found.sequence for found in again.read(START - 10, START + 600, kinds=[BlockKind.TIME])] == [100]
    again.close()
    assert len([record for record in caplog.records if "set aside" in record.message]) == 1
    assert [file.read_bytes() for file in path.parent.glob(f"{path.name}.damaged-*")] == [bytes(content)]


def test_a_writer_that_meets_the_damage_first_loses_nothing_of_its_own(tmp_path: Path) -> None:
    store = SqliteBlockStore(tmp_path / "blocks")
    store.append([block(1)])
    store.close()
    store._path(block(1).hour).write_bytes(b"no database at all")
    again = SqliteBlockStore(tmp_path / "blocks")
    assert again.append([block(2), block(3)]) == [True, True]
    assert [found.sequence for found in again.read(START - 10, START + 600, kinds=[BlockKind.TIME])] == [2, 3]
    again.close()
