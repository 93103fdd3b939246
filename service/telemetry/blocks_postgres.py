"""Blocks in PostgreSQL, one partition an hour: dropping history is dropping a table.

Bodies are stored EXTERNAL (uncompressed, out of line): compressing what hardly compresses doubled the cost of an
insert when it was measured.

The blocks are also the log from which the other processes of a service fill their memory. Each process numbers its
commits, one after another in one thread, so that the number grows in the order in which others can see them. A row of
``block_commits`` tells in which hours a commit's blocks are.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    Connection,
    DateTime,
    Engine,
    Index,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    delete,
    func,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError

from mainstay.service.common.db import WRITES
from mainstay.service.telemetry.blocks import BlockKind, StoredBlock
from mainstay.service.telemetry.blocks_sql import (
    MemberIndex,
    as_blocks,
    block_table,
    in_range,
    member_table,
    touched,
)

_LOCK: Final = 7_233_003
_PARTITION: Final = re.compile(r"blocks_h(\d+)")
_METADATA: Final = MetaData()
_BLOCKS: Final = block_table("blocks", _METADATA, postgresql_partition_by="RANGE (hour)")
_BLOCKS.append_constraint(PrimaryKeyConstraint("hour", "subject", "stream", "sequence"))
_COLUMNS: Final = tuple(_BLOCKS.c.keys())
_BLOCKS.append_column(Column("writer", BigInteger))
_BLOCKS.append_column(Column("position", BigInteger))
_IN_LOG: Final = Index("ix_blocks_writer_position", _BLOCKS.c.writer, _BLOCKS.c.position)
_COMMITS: Final = Table(
    "block_commits",
    _METADATA,
    Column("writer", BigInteger, primary_key=True),
    Column("position", BigInteger, primary_key=True),
    Column("hours", ARRAY(BigInteger), nullable=False),
    Column("at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
)
_MEMBERS: Final = member_table("block_members", _METADATA)


_HAS_LOG: Final = "SELECT count(*) FROM pg_attribute WHERE attrelid = to_regclass('blocks') AND attname = 'position'"
_AFTER: Final = text(
    "SELECT c.writer, c.position, c.hours, extract(epoch FROM clock_timestamp() - c.at)::float8 FROM processes p"
    " CROSS JOIN LATERAL (SELECT * FROM block_commits b WHERE b.writer = p.id"
    " AND b.position > coalesce((CAST(:known AS jsonb) ->> p.id::text)::bigint, 0)"
    " ORDER BY b.position LIMIT :limit) c"
    " WHERE p.id <> :me OR CAST(:known AS jsonb) -> p.id::text IS NOT NULL ORDER BY c.writer, c.position"
)


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit of another process."""

    writer: int
    position: int
    hours: list[int]
    """Unix hours of its blocks."""
    age: float
    """Seconds since it was made."""


class PostgresBlockStore:
    """Blocks in the partitioned table ``blocks`` of ``engine``'s database.

    Args:
        engine: of the database.
        writer: the number of this process, whose blocks it does not read back from the log; random unless given.
    """

    def __init__(self, engine: Engine, writer: int | None = None) -> None:
        self._engine, self._position = engine, 0
        # Each statement a transaction: what polls four times a second asks once and not four times.
        self._polling = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._writing = engine.execution_options(**{WRITES: True})
        self.writer = secrets.randbits(62) if writer is None else writer
        self._partitions: set[int] = set()
        self._lock = threading.Lock()
        self._failed: int | None = None
        self._members = MemberIndex()
        with engine.begin() as connection:
            _serialize(connection)
            _create(connection)
        self._partitions = set(self.hours())

    def append(self, blocks: Sequence[StoredBlock]) -> list[bool]:
        self._partition({block.hour for block in blocks})
        # Also after a failure: the commit may have happened, and others passed its position.
        self._position += 1
        where = {"writer": self.writer, "position": self._position}
        rows = [{name: getattr(block, name) for name in _COLUMNS} | where for block in blocks]
        members = self._members.new_rows(blocks)
        statement = insert(_BLOCKS).on_conflict_do_nothing()
        try:
            with self._writing.begin() as connection:
                # Not before a commit that seemed to fail has ended: whoever read this position skips those before it.
                connection.execute(select(func.pg_advisory_xact_lock(self.writer)))
                stored = connection.execute(
                    statement.returning(_BLOCKS.c.subject, _BLOCKS.c.stream, _BLOCKS.c.sequence), rows
                )
                new = {tuple(row) for row in stored}
                if new:
                    hours = sorted({block.hour for block in blocks if block.key in new})
                    connection.execute(insert(_COMMITS), where | {"hours": hours})
                if members:
                    connection.execute(insert(_MEMBERS).on_conflict_do_nothing(), members)
        except DBAPIError:
            # Another process may have dropped a partition: look again before the next attempt.
            self._partitions.clear()
            with self._lock:
                self._failed = self._position if self._failed is None else self._failed
            raise
        self._members.note(members)
        return [block.key in new for block in blocks]

    def read(
        self,
        start: float,
        stop: float,
        *,
        subject: str | None = None,
        kinds: Sequence[BlockKind],
        relayed: bool = True,
    ) -> Iterator[StoredBlock]:
        for hour in touched(self.hours(), start, stop):
            statement = in_range((_BLOCKS, _MEMBERS), start, stop, subject, kinds, relayed=relayed, collation="C")
            statement = statement.where(_BLOCKS.c.hour == hour)
            statement = statement.execution_options(yield_per=64)
            with self._engine.connect() as connection, connection.execute(statement) as rows:
                yield from as_blocks(rows)

    def newest_commits(self) -> dict[int, int]:
        """Process → position of its newest commit."""
        statement = select(_COMMITS.c.writer, func.max(_COMMITS.c.position).label("newest")).group_by(_COMMITS.c.writer)
        with self._engine.connect() as connection:
            return {row.writer: row.newest for row in connection.execute(statement)}

    def take_failed(self) -> int | None:
        """Position of the first commit that failed since the last call: it may have happened."""
        with self._lock:
            failed, self._failed = self._failed, None
            return failed

    def commits_after(self, known: Mapping[int, int], limit: int) -> list[Commit]:
        """Commits beyond the ``known`` positions, for each process at most ``limit``, oldest first.

        Those of this process are among them only if its position is ``known``.
        """
        given = {"me": self.writer, "known": json.dumps(known), "limit": limit}
        with self._polling.connect() as connection:
            return [Commit(*row) for row in connection.execute(_AFTER, given)]

    def read_commits(self, commits: Sequence[Commit]) -> Iterator[StoredBlock]:
        """Their blocks, in the order of the commits of each process."""
        for hour, writer in sorted({(hour, commit.writer) for commit in commits for hour in commit.hours}):
            wanted = [commit.position for commit in commits if commit.writer == writer and hour in commit.hours]
            statement = select(_BLOCKS).where(
                _BLOCKS.c.hour == hour, _BLOCKS.c.writer == writer, _BLOCKS.c.position.between(wanted[0], wanted[-1])
            )
            with self._engine.connect() as connection:
                yield from as_blocks(connection.execute(statement.order_by(_BLOCKS.c.position)))

    def forget_commits(self, seconds: float) -> None:
        """Forget which commits there were until so many seconds ago; their blocks stay."""
        oldest = func.clock_timestamp() - timedelta(seconds=seconds)
        with self._writing.begin() as connection:
            connection.execute(delete(_COMMITS).where(_COMMITS.c.at < oldest))

    def count(self, hour: int) -> int:
        with self._engine.connect() as connection:
            counted = select(func.count()).select_from(_BLOCKS).where(_BLOCKS.c.hour == hour)
            return connection.execute(counted).scalar_one()

    def senders(self, hour: int) -> list[str]:
        with self._engine.connect() as connection:
            found = select(_BLOCKS.c.subject).where(_BLOCKS.c.hour == hour).distinct()
            return sorted(connection.scalars(found))

    def hours(self) -> list[int]:
        query = text(
            "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
            " WHERE i.inhparent = to_regclass('blocks')"
        )
        with self._engine.connect() as connection:
            found = (_PARTITION.fullmatch(name) for name in connection.scalars(query))
            return sorted(int(match[1]) for match in found if match)

    def drop_before(self, hour: int) -> int:
        old = [h for h in self.hours() if h < hour]
        for gone in old:
            with self._lock, self._writing.begin() as connection:
                connection.exec_driver_sql("SET LOCAL lock_timeout = '5s'")
                connection.exec_driver_sql(f"DROP TABLE IF EXISTS blocks_h{gone}")
                connection.execute(delete(_MEMBERS).where(_MEMBERS.c.hour <= gone))
                self._partitions.discard(gone)
        return len(old)

    def close(self) -> None:
        """The engine belongs to the database; nothing of our own is open."""

    def _partition(self, hours: set[int]) -> None:
        with self._lock:
            for hour in sorted(hours - self._partitions):
                with self._writing.begin() as connection:
                    _serialize(connection)
                    if connection.exec_driver_sql(f"SELECT to_regclass('blocks_h{hour}')").scalar_one() is None:
                        # Made, then attached: PARTITION OF would wait for whoever reads blocks, a backup among them.
                        connection.exec_driver_sql(f"CREATE TABLE blocks_h{hour} (LIKE blocks INCLUDING ALL)")
                        connection.exec_driver_sql(
                            f"ALTER TABLE blocks ATTACH PARTITION blocks_h{hour}"
                            f" FOR VALUES FROM ({hour}) TO ({hour + 1})"
                        )
                self._partitions.add(hour)


def _create(connection: Connection) -> None:
    if connection.exec_driver_sql("SELECT to_regclass('blocks')").scalar_one() is None:
        _BLOCKS.create(connection)
        connection.exec_driver_sql("ALTER TABLE blocks ALTER COLUMN body SET STORAGE EXTERNAL")
    elif not connection.exec_driver_sql(_HAS_LOG).scalar_one():  # made when a service was one process
        for column in (_BLOCKS.c.writer, _BLOCKS.c.position):
            connection.exec_driver_sql(f"ALTER TABLE blocks ADD COLUMN IF NOT EXISTS {column.name} bigint")
        _IN_LOG.create(connection, checkfirst=True)
    _MEMBERS.create(connection, checkfirst=True)
    _COMMITS.create(connection, checkfirst=True)


def _serialize(connection: Connection) -> None:
    """CREATE IF NOT EXISTS still collides with itself when two processes run it at once."""
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
