"""Queries over nodes and devices."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Select, bindparam, insert, or_, select, text, tuple_, update

from mainstay.probes.core_types import HealthState, Verdict
from mainstay.service.common.db import AnySession, WriteSession
from mainstay.service.fleet.models import DeviceRow, NodeRow, TransitionRow
from mainstay.service.stream.changes import Topic, record_change
from mainstay.service.validation.models import NodeVerdictRow

_nodes: Final = NodeRow.__table__
_NOTE_SEEN: Final = (
    update(_nodes)  # type: ignore[arg-type]
    .where(_nodes.c.name == bindparam("node"))
    .where(or_(_nodes.c.last_seen_at.is_(None), _nodes.c.last_seen_at < bindparam("at")))
    .values(last_seen_at=bindparam("at"))
)
# One statement for all nodes: half the cost of one for each. Rows are locked in the order of names, so that two writers
# of the same nodes wait for each other and do not lock up.
_NOTE_ALL_SEEN: Final = text(
    "WITH heard AS (SELECT n.name, to_timestamp(t.at) AS at"
    " FROM unnest(CAST(:node AS text[]), CAST(:at AS float8[])) AS t (name, at) JOIN nodes n ON n.name = t.name"
    " WHERE n.last_seen_at IS NULL OR n.last_seen_at < to_timestamp(t.at) ORDER BY n.name FOR NO KEY UPDATE OF n)"
    " UPDATE nodes SET last_seen_at = heard.at FROM heard WHERE nodes.name = heard.name"
)


def devices(*, nodes: Collection[str], ids: Collection[str]) -> Select[DeviceRow]:
    """Those of ``nodes`` with these IDs; an empty collection is no condition."""
    statement = select(DeviceRow)
    for column, wanted in ((DeviceRow.node, nodes), (DeviceRow.id, ids)):
        statement = statement.where(column.in_(wanted)) if wanted else statement
    return statement


def devices_of(session: AnySession, node: str) -> list[DeviceRow]:
    return list(session.scalars(select(DeviceRow).where(DeviceRow.node == node).order_by(DeviceRow.index)))


def devices_by_node(session: AnySession, names: Collection[str]) -> dict[str, list[DeviceRow]]:
    """Node → its devices, the host first."""
    found: dict[str, list[DeviceRow]] = {name: [] for name in names}
    statement = select(DeviceRow).where(DeviceRow.node.in_(names))
    for row in session.scalars(statement.order_by(DeviceRow.node, DeviceRow.kind.desc(), DeviceRow.index)):
        found[row.node].append(row)
    return found


def hardware_of_devices(
    session: AnySession, names: Collection[str]
) -> dict[tuple[str, str], tuple[str | None, str | None]]:
    """(node, device) of these nodes → its hardware, and where that was before."""
    statement = select(DeviceRow.node, DeviceRow.id, DeviceRow.hardware, DeviceRow.previous_node)
    rows = session.execute(statement.where(DeviceRow.node.in_(names)))
    return {(node, device): (hardware, previous) for node, device, hardware, previous in rows}


def mark_absent(session: WriteSession, devices: Collection[tuple[str, str]]) -> None:
    """These (node, device) are not in the latest report of their node."""
    if devices:
        nodes = DeviceRow.node.in_(sorted({node for node, _ in devices}))  # SQLite finds no pairs in an index
        gone = tuple_(DeviceRow.node, DeviceRow.id).in_(sorted(devices))
        session.execute(update(DeviceRow).where(nodes, gone).values(present=False))


def store_devices(session: WriteSession, rows: Sequence[dict[str, Any]], *, new: bool) -> None:
    """Insert or update devices; ``rows`` have all columns but ``first_seen_at``."""
    if rows:
        first = {"first_seen_at": rows[0]["last_seen_at"]}
        session.execute(insert(DeviceRow) if new else update(DeviceRow), [row | first if new else row for row in rows])


def previous_locations(session: AnySession, moved: Mapping[str, str]) -> dict[str, str]:
    """Hardware → another node where it was last, and is no longer reported; ``moved`` says where each is now."""
    statement = select(DeviceRow.hardware, DeviceRow.node).where(
        DeviceRow.hardware.in_(moved), DeviceRow.present.is_(False)
    )
    rows = session.execute(statement.order_by(DeviceRow.last_seen_at)).all()
    return {hardware: node for hardware, node in rows if hardware is not None and node != moved[hardware]}


def transitions(node: str) -> Select[TransitionRow]:
    return select(TransitionRow).where(TransitionRow.node == node)


def note_seen(session: WriteSession, heard: Mapping[str, float]) -> None:
    """Store node → Unix seconds of its last report, where it is newer."""
    if heard:
        rows = [{"node": node, "at": at} for node, at in sorted(heard.items())]
        if session.get_bind().dialect.name == "postgresql":
            session.connection().execute(_NOTE_ALL_SEEN, {key: [row[key] for row in rows] for key in ("node", "at")})
        else:
            session.connection().execute(_NOTE_SEEN, rows)


def fallen_silent(before: float) -> Select[NodeRow]:
    """Healthy nodes that have not reported since ``before``."""
    statement = select(NodeRow).where(NodeRow.state == HealthState.HEALTHY.value, NodeRow.last_seen_at < before)
    return statement.order_by(NodeRow.name)


def speaking_again(since: float) -> Select[NodeRow]:
    """Unknown nodes that report again and have not sent a shutdown notice."""
    statement = select(NodeRow).where(
        NodeRow.state == HealthState.UNKNOWN.value, NodeRow.last_seen_at >= since, NodeRow.stopped_at.is_(None)
    )
    return statement.order_by(NodeRow.name)


def back_from_shutdown_notice(session: AnySession, after: float) -> list[str]:
    """Nodes that sent a shutdown notice and reported more than ``after`` seconds later."""
    stopped = select(NodeRow.name, NodeRow.last_seen_at, NodeRow.stopped_at).where(
        NodeRow.stopped_at.is_not(None), NodeRow.last_seen_at > NodeRow.stopped_at
    )
    rows = session.execute(stopped.order_by(NodeRow.name))
    return [name for name, seen, stopped_at in rows if (seen or 0.0) > (stopped_at or 0.0) + after]


def forget_shutdown_notice(session: WriteSession, names: Collection[str]) -> None:
    """These nodes report again."""
    session.execute(update(NodeRow).where(NodeRow.name.in_(names)).values(stopped_at=None))
    for name in names:
        record_change(session, Topic.NODE, {"id": name, "reason": "reports again"})


def validated(session: AnySession, names: Collection[str]) -> set[str]:
    """Which of the nodes have PASS as the current verdict."""
    statement = select(NodeVerdictRow.node).where(
        NodeVerdictRow.node.in_(names), NodeVerdictRow.verdict == Verdict.PASS.value
    )
    return set(session.scalars(statement)) if names else set()
