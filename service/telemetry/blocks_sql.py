"""What both block stores share: the table and its statements, in SQLAlchemy Core."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import BigInteger, Column, Double, LargeBinary, MetaData, Select, Table, Text, select

from mainstay.probes.frame import Axis
from mainstay.service.telemetry.blocks import HOUR, StoredBlock


def block_table(name: str, metadata: MetaData) -> Table:
    return Table(
        name,
        metadata,
        Column("hour", BigInteger, nullable=False),
        Column("subject", Text, nullable=False),
        Column("stream", Text, nullable=False),
        Column("sequence", BigInteger, nullable=False),
        Column("axis", Text, nullable=False),
        Column("start", Double, nullable=False),
        Column("stop", Double, nullable=False),
        Column("body", LargeBinary, nullable=False),
    )


def as_row(block: StoredBlock) -> dict[str, Any]:
    return {
        "hour": block.hour,
        "subject": block.subject,
        "stream": block.stream,
        "sequence": block.sequence,
        "axis": block.axis.value,
        "start": block.start,
        "stop": block.stop,
        "body": block.body,
    }


def in_range(
    table: Table, start: float, stop: float, subject: str | None, axis: Axis, *, collation: str | None = None
) -> Select[Any]:
    """Blocks of ``table`` that touch ``[start, stop)``, oldest first, then by subject, stream and sequence.

    Text is compared by its bytes, as Python does: name the ``collation`` that does so where it is not the default.
    """
    statement = select(table).where(table.c.start < stop, table.c.stop >= start, table.c.axis == axis.value)
    if subject is not None:
        statement = statement.where(table.c.subject == subject)
    names = (table.c.subject, table.c.stream)
    ordered = names if collation is None else tuple(name.collate(collation) for name in names)
    return statement.order_by(table.c.start, *ordered, table.c.sequence)


def as_blocks(rows: Iterable[Any]) -> Iterator[StoredBlock]:
    for row in rows:
        yield StoredBlock(row.subject, Axis(row.axis), row.stream, row.sequence, row.start, row.stop, bytes(row.body))


def touched(hours: Sequence[int], start: float, stop: float) -> list[int]:
    """Those of ``hours`` that may hold data of ``[start, stop)``: a block reaches at most an hour past its own."""
    return [hour for hour in hours if int(start) // HOUR - 1 <= hour <= int(stop) // HOUR]
