"""What both block stores share: the table and its statements, in SQLAlchemy Core."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import BigInteger, Column, Double, LargeBinary, MetaData, Select, Table, Text, and_, or_, select

from mainstay.service.telemetry.blocks import HOUR, BlockKind, StoredBlock


def block_table(name: str, metadata: MetaData, **options: Any) -> Table:
    return Table(
        name,
        metadata,
        Column("hour", BigInteger, nullable=False),
        Column("subject", Text, nullable=False),
        Column("stream", Text, nullable=False),
        Column("sequence", BigInteger, nullable=False),
        Column("kind", Text, nullable=False),
        Column("start", Double, nullable=False),
        Column("stop", Double, nullable=False),
        Column("body", LargeBinary, nullable=False),
        **options,
    )


def member_table(name: str, metadata: MetaData) -> Table:
    """Which nodes a relay sent for in an hour."""
    return Table(
        name,
        metadata,
        Column("hour", BigInteger, primary_key=True),
        Column("subject", Text, primary_key=True),
        Column("relay", Text, primary_key=True),
    )


@dataclass
class MemberIndex:
    """Rows of the member table that need not be written again."""

    _known: dict[tuple[int, str], set[str]] = field(default_factory=dict)
    """(hour, relay) → nodes."""

    def new_rows(self, blocks: Iterable[StoredBlock]) -> list[dict[str, Any]]:
        """Rows that this process did not write yet; call ``note`` once they are durable."""
        found: dict[tuple[int, str], set[str]] = defaultdict(set)
        for block in blocks:
            if block.members:
                key = (block.hour, block.subject)
                found[key].update(set(block.members).difference(self._known.get(key, ())))
        return [
            {"hour": hour, "subject": node, "relay": relay}
            for (hour, relay), nodes in found.items()
            for node in sorted(nodes)
        ]

    def note(self, rows: Sequence[dict[str, Any]]) -> None:
        """Remember durable rows; only the newest hours are written."""
        for row in rows:
            self._known.setdefault((row["hour"], row["relay"]), set()).add(row["subject"])
        if rows:
            newest = max(hour for hour, _ in self._known)
            self._known = {key: nodes for key, nodes in self._known.items() if key[0] >= newest - 1}


def in_range(
    tables: tuple[Table, Table],
    start: float,
    stop: float,
    subject: str | None,
    kinds: Sequence[BlockKind],
    *,
    relayed: bool = True,
    collation: str | None = None,
) -> Select[Any]:
    """Blocks that touch ``[start, stop)``, oldest first, then by subject, stream and sequence.

    Text is compared by its bytes, as Python does: name the ``collation`` that does so where it is not the default.
    """
    table, members = tables
    wanted = [kind.value for kind in kinds]
    statement = select(table).where(table.c.start < stop, table.c.stop >= start, table.c.kind.in_(wanted))
    if subject is not None and not relayed:
        statement = statement.where(table.c.subject == subject)
    elif subject is not None:
        relays = select(members.c.relay).where(members.c.subject == subject, members.c.hour == table.c.hour)
        is_relayed = and_(table.c.kind == BlockKind.BUNDLE.value, table.c.subject.in_(relays))
        statement = statement.where(or_(table.c.subject == subject, is_relayed))
    names = (table.c.subject, table.c.stream)
    ordered = names if collation is None else tuple(name.collate(collation) for name in names)
    return statement.order_by(table.c.start, *ordered, table.c.sequence)


def as_blocks(rows: Iterable[Any]) -> Iterator[StoredBlock]:
    for row in rows:
        yield StoredBlock(
            row.subject, BlockKind(row.kind), row.stream, row.sequence, row.start, row.stop, bytes(row.body)
        )


def touched(hours: Sequence[int], start: float, stop: float) -> list[int]:
    """Those of ``hours`` that may hold data of ``[start, stop)``: a block reaches at most an hour past its own."""
    return [hour for hour in hours if int(start) // HOUR - 1 <= hour <= int(stop) // HOUR]
