"""Blocks in SQLite, one file an hour: dropping history is deleting a file, never a vacuum.

Each file is in WAL mode with synchronous FULL, which costs nothing over NORMAL under group commit (measured), and
64 KiB pages, so that a block lies in one or two of them. The journal of a savepoint stays in memory: it was a file made
and deleted for each commit. A damaged file is set aside as ``blocks-….db.damaged-…``.
"""

from __future__ import annotations

import logging
import re
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from sqlalchemy import (
    Connection,
    Engine,
    Index,
    MetaData,
    Row,
    Select,
    create_engine,
    event,
    func,
    literal_column,
    select,
)
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.exc import DatabaseError

from mainstay.service.telemetry.blocks import BlockKind, StoredBlock
from mainstay.service.telemetry.blocks_sql import (
    MemberIndex,
    as_blocks,
    block_table,
    in_range,
    member_table,
    touched,
)

_FILE: Final = re.compile(r"blocks-(\d+)\.db")
_log: Final = logging.getLogger(__name__)
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
"""No fault of the disk is among them: a full one makes good files unreadable for a while."""
_OPEN_FILES: Final = 6
"""Hours kept open: the current one, the one before, and what readers look at."""

_METADATA: Final = MetaData()
_BLOCKS: Final = block_table("blocks", _METADATA)
Index("uq_blocks_key", _BLOCKS.c.subject, _BLOCKS.c.stream, _BLOCKS.c.sequence, unique=True)
_MEMBERS: Final = member_table("members", _METADATA)
_INSERT_MEMBERS: Final = insert(_MEMBERS).on_conflict_do_nothing()
_INSERT: Final = (
    "INSERT OR IGNORE INTO blocks (hour, subject, stream, sequence, kind, start, stop, body)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
"""As the driver takes it: building a statement for each row cost more than storing it."""


class SqliteBlockStore:
    """Blocks under ``directory``, ``blocks-<unix hour>.db`` each."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._engines: OrderedDict[int, Engine] = OrderedDict()
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        """Held by a transaction that writes: a file is not set aside under it."""
        self._members = MemberIndex()

    def append(self, blocks: Sequence[StoredBlock]) -> list[bool]:
        new = [False] * len(blocks)
        order = sorted(range(len(blocks)), key=lambda i: blocks[i].hour)
        for hour, group in groupby(order, key=lambda i: blocks[i].hour):
            places = list(group)
            try:
                stored = self._append(hour, [blocks[i] for i in places])
            except DatabaseError as error:
                self._set_aside(hour, error)
                stored = self._append(hour, [blocks[i] for i in places])
            for place, fresh in zip(places, stored, strict=True):
                new[place] = fresh
        return new

    def _append(self, hour: int, blocks: Sequence[StoredBlock]) -> list[bool]:
        with self._writing:
            members = self._members.new_rows(blocks)
            with self._engine(hour).begin() as connection:
                stored = _insert(connection, blocks)
                if members:
                    connection.execute(_INSERT_MEMBERS, members)
            self._members.note(members)
        return stored

    def read(
        self,
        start: float,
        stop: float,
        *,
        subject: str | None = None,
        kinds: Sequence[BlockKind],
        relayed: bool = True,
    ) -> Iterator[StoredBlock]:
        statement = in_range((_BLOCKS, _MEMBERS), start, stop, subject, kinds, relayed=relayed)
        for hour in touched(self.hours(), start, stop):
            yield from as_blocks(self._rows(hour, statement))

    def count(self, hour: int) -> int:
        # A row is never deleted alone: the newest number is the count, and a lookup where counting is a scan.
        newest: Select[tuple[int | None]] = select(func.max(literal_column("rowid"))).select_from(_BLOCKS)
        return next((row[0] or 0 for row in self._rows(hour, newest)), 0)

    def senders(self, hour: int) -> list[str]:
        return [row.subject for row in self._rows(hour, select(_BLOCKS.c.subject).distinct().order_by("subject"))]

    def _rows(self, hour: int, statement: Select[Any]) -> Iterator[Row[Any]]:
        """What a query finds in an hour; nothing where there is no file, or a damaged one."""
        if not self._path(hour).exists():
            return
        try:
            statement = statement.execution_options(yield_per=64)
            with self._engine(hour).connect() as connection, connection.execute(statement) as rows:
                yield from rows
        except DatabaseError as error:
            self._set_aside(hour, error)

    def hours(self) -> list[int]:
        found = (_FILE.fullmatch(path.name) for path in self.directory.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def drop_before(self, hour: int) -> int:
        old = [h for h in self.hours() if h < hour]
        for gone in old:
            with self._lock:
                engine = self._engines.pop(gone, None)
                if engine is not None:
                    engine.dispose()
                for suffix in ("-wal", "-shm", ""):
                    self._path(gone, suffix).unlink(missing_ok=True)
        return len(old)

    def _set_aside(self, hour: int, error: DatabaseError) -> None:
        """Rename the file of an hour that SQLite calls damaged; any other error is raised again."""
        if getattr(error.orig, "sqlite_errorcode", 0) & 0xFF not in _DAMAGED:
            raise error
        mark = f".damaged-{time.time_ns()}"
        with self._writing, self._lock:
            self._members = MemberIndex()
            engine = self._engines.pop(hour, None)
            if engine is not None:
                engine.dispose()
            for suffix in ("-wal", "-shm", ""):
                if (path := self._path(hour, suffix)).exists():
                    path.rename(path.with_name(path.name + mark))
        _log.error("%s is damaged (%s) and was set aside as %s", self._path(hour), error.orig, self._path(hour, mark))

    def close(self) -> None:
        with self._lock:
            while self._engines:
                self._engines.popitem()[1].dispose()

    def _path(self, hour: int, suffix: str = "") -> Path:
        return self.directory / f"blocks-{hour}.db{suffix}"

    def _engine(self, hour: int) -> Engine:
        with self._lock:
            engine = self._engines.get(hour)
            if engine is None:
                engine = self._engines[hour] = _open(self._path(hour))
            self._engines.move_to_end(hour)
            while len(self._engines) > _OPEN_FILES:
                self._engines.popitem(last=False)[1].dispose()
            return engine


def _insert(connection: Connection, blocks: Sequence[StoredBlock]) -> list[bool]:
    """Insert all; one row count identifies the usual cases: all new, or all stored before."""
    attempt = connection.begin_nested()
    before = connection.exec_driver_sql("SELECT total_changes()").scalar_one()
    connection.exec_driver_sql(_INSERT, [_row(block) for block in blocks])
    stored = connection.exec_driver_sql("SELECT total_changes()").scalar_one() - before
    if stored == len(blocks):
        return [True] * stored
    if stored == 0:
        return [False] * len(blocks)
    # Some were there: find out which, one by one.
    attempt.rollback()
    return [connection.exec_driver_sql(_INSERT, _row(block)).rowcount == 1 for block in blocks]


def _row(block: StoredBlock) -> tuple[int, str, str, int, str, float, float, bytes]:
    return (
        block.hour, block.subject, block.stream, block.sequence, block.kind.value, block.start, block.stop, block.body
    )  # fmt: skip


def _open(path: Path) -> Engine:
    engine = create_engine(f"sqlite:///{path}", pool_size=4, max_overflow=8, connect_args={"timeout": 15.0})
    event.listen(engine, "connect", _on_connect)
    event.listen(engine, "begin", _on_begin)
    _METADATA.create_all(engine)
    return engine


def _on_connect(connection: Any, _record: Any) -> None:
    connection.isolation_level = None
    for pragma in (
        "page_size=65536",
        "journal_mode=WAL",
        "synchronous=FULL",
        "busy_timeout=15000",
        "temp_store=MEMORY",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _on_begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")
