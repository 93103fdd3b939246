"""Blocks in PostgreSQL, one partition an hour: dropping history is dropping a table.

Bodies are stored EXTERNAL (uncompressed, out of line): compressing what hardly compresses doubled the cost of an
insert when it was measured.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from typing import Final

from sqlalchemy import Connection, Engine, MetaData, PrimaryKeyConstraint, delete, func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError

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
_MEMBERS: Final = member_table("block_members", _METADATA)


class PostgresBlockStore:
    """Blocks in the partitioned table ``blocks`` of ``engine``'s database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._partitions: set[int] = set()
        self._lock = threading.Lock()
        self._members = MemberIndex()
        with engine.begin() as connection:
            _serialize(connection)
            _create(connection)
        self._partitions = set(self.hours())

    def append(self, blocks: Sequence[StoredBlock]) -> list[bool]:
        self._partition({block.hour for block in blocks})
        rows = [{name: getattr(block, name) for name in _COLUMNS} for block in blocks]
        members = self._members.new_rows(blocks)
        statement = insert(_BLOCKS).on_conflict_do_nothing()
        try:
            with self._engine.begin() as connection:
                stored = connection.execute(
                    statement.returning(_BLOCKS.c.subject, _BLOCKS.c.stream, _BLOCKS.c.sequence), rows
                )
                new = {tuple(row) for row in stored}
                if members:
                    connection.execute(insert(_MEMBERS).on_conflict_do_nothing(), members)
        except DBAPIError:
            # Another process may have dropped a partition: look again before the next attempt.
            self._partitions.clear()
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
            with self._lock, self._engine.begin() as connection:
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
                with self._engine.begin() as connection:
                    _serialize(connection)
                    connection.exec_driver_sql(
                        f"CREATE TABLE IF NOT EXISTS blocks_h{hour} PARTITION OF blocks"
                        f" FOR VALUES FROM ({hour}) TO ({hour + 1})"
                    )
                self._partitions.add(hour)


def _create(connection: Connection) -> None:
    if connection.exec_driver_sql("SELECT to_regclass('blocks')").scalar_one() is None:
        _BLOCKS.create(connection)
        connection.exec_driver_sql("ALTER TABLE blocks ALTER COLUMN body SET STORAGE EXTERNAL")
    _MEMBERS.create(connection, checkfirst=True)


def _serialize(connection: Connection) -> None:
    """CREATE IF NOT EXISTS still collides with itself when two processes run it at once."""
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
