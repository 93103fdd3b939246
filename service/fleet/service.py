"""What nodes say of themselves, and what follows from their voice and their silence.

Silence turns a healthy node unknown, and words make an unknown one healthy again as long as nothing was found against
it; every other state stays until whoever set it lifts it (``fleet.life_cycle``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from sqlalchemy import select

from mainstay.probes.core_types import HealthState
from mainstay.service.common.db import AnySession, Database, WriteSession
from mainstay.service.common.problem import NotFoundError
from mainstay.service.common.rows import require_row
from mainstay.service.fleet import device_locations, repository
from mainstay.service.fleet.lifecycle import NodeFacts, NodeTrigger
from mainstay.service.fleet.models import DeviceRow, NodeRow
from mainstay.service.fleet.schemas import DeviceReport, NodeReportCreate
from mainstay.service.fleet.transitions import propose
from mainstay.service.stream.changes import Topic, record_change

SPEAKING: Final = "reporting; nothing found against it"
UNPROVEN: Final = "reporting; nothing found against it, but never validated"
SHUTDOWN_NOTICE_SECONDS: Final = 5.0
"""How long data that a node sent before its shutdown notice may still arrive after it."""
RETURN_SECONDS: Final = 15.0
"""How long a node daemon waits at most before it tries again to reach a service that was away."""
SEEN: Final = 2000
"""Report times written in one transaction: some 20 ms."""
MOVES: Final = 100
"""State changes in one transaction: some 100 ms."""


class UnknownNodeError(NotFoundError):
    slug, title = "unknown-node", "Unknown node"


def require_node(session: AnySession, name: str) -> NodeRow:
    """The node's row.

    Raises:
        UnknownNodeError: no node enrolled or reported under this name.
    """
    return require_row(session, NodeRow, name, UnknownNodeError(f"no node is called {name!r}"))


def require_nodes(session: AnySession, names: Collection[str]) -> None:
    """Check that all these nodes are known.

    Raises:
        UnknownNodeError: names the first that is not.
    """
    known = session.scalars(select(NodeRow.name).where(NodeRow.name.in_(names)))
    unknown = sorted(set(names) - set(known))
    if unknown:
        others = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
        raise UnknownNodeError(f"no node is called {unknown[0]!r}{others}")


def report(session: WriteSession, name: str, said: NodeReportCreate, *, now: float) -> NodeRow:
    """Keep what a node said about itself and its devices."""
    return report_all(session, {name: said}, now=now)[0]


def report_all(session: WriteSession, reports: Mapping[str, NodeReportCreate], *, now: float) -> list[NodeRow]:
    """The same for many nodes: as many statements as for one."""
    known = {row.name: row for row in session.scalars(select(NodeRow).where(NodeRow.name.in_(reports)))}
    rows = []
    for name, said in reports.items():
        row = known.get(name)
        if row is None:
            row = NodeRow(name=name, first_seen_at=now)
            session.add(row)
        _describe(row, said, now)
        rows.append(row)
    session.flush()
    _report_devices(session, reports, now)
    for row in rows:
        record_change(session, Topic.NODE, {"id": row.name, "state": row.state, "reason": "reported"})
    return rows


def _describe(row: NodeRow, said: NodeReportCreate, now: float) -> None:
    fields = (
        "hostname", "os", "kernel", "version", "boot_id", "cohort", "rack", "switches", "cpu_count", "memory_bytes",
        "booted_at", "started_at",
    )  # fmt: skip
    for field in fields:
        setattr(row, field, getattr(said, field))
    row.gpus = sum(device.kind == "gpu" for device in said.devices)
    row.last_seen_at = now
    if row.stopped_at is not None and said.started_at > row.stopped_at:
        row.stopped_at = None


def _report_devices(session: WriteSession, reports: Mapping[str, NodeReportCreate], now: float) -> None:
    known = {node: {d.id: d for d in rows} for node, rows in repository.devices_by_node(session, reports).items()}
    hardware = {node: _hardware(said.devices) for node, said in reports.items()}
    for node, said in reports.items():
        told = {device.id for device in said.devices}
        for row in known[node].values():
            row.present = row.id in told
    session.flush()  # what a node of this batch no longer has may be what another one has now
    moved = {
        name: node
        for node, names in hardware.items()
        for device, name in names.items()
        if device not in known[node] or known[node][device].hardware != name
    }
    before = repository.previous_locations(session, moved)
    for node, said in reports.items():
        for device in said.devices:
            found = known[node].get(device.id)
            if found is None:
                found = DeviceRow(node=node, id=device.id, first_seen_at=now, previous_node=None)
                session.add(found)
            name = hardware[node].get(device.id)
            if name is not None and found.hardware != name:
                found.previous_node = before.get(name)
            found.hardware, found.present, found.last_seen_at = name, True, now
            for field in ("index", "kind", "model", "serial", "uuid", "memory_bytes", "facts"):
                setattr(found, field, getattr(device, field))
    session.flush()
    device_locations.follow(session, {node: {h: d for d, h in names.items()} for node, names in hardware.items()}, now)


def _hardware(devices: Sequence[DeviceReport]) -> dict[str, str]:
    """Device id → what stays the same when it is moved: a serial number before a UUID, absent where there is neither.

    A serial number that stands twice is that of a board with several devices: it tells none of them apart.
    """
    serials = Counter(device.serial for device in devices)
    found = {}
    for device in devices:
        if device.serial and serials[device.serial] == 1:
            found[device.id] = f"serial:{device.serial}"
        elif device.uuid:
            found[device.id] = f"uuid:{device.uuid}"
    return found


def follow_voices(
    database: Database,
    heard: Mapping[str, float],
    *,
    now: float,
    heartbeat_timeout_seconds: float,
    listening_since: float = 0.0,
) -> None:
    """Record when nodes last reported, and apply the state changes that follow from silence and new reports.

    Silence counts from ``listening_since``: a service that was away or frozen could not hear its nodes.

    Each ``MOVES`` nodes have a transaction of their own: when a whole fleet stops reporting, others write in between.
    """
    since = now - heartbeat_timeout_seconds
    for some in _parts(sorted(heard), SEEN):
        with database.session() as session:
            repository.note_seen(session, {name: heard[name] for name in some})
    with database.reading() as session:
        back = repository.back_from_shutdown_notice(session, SHUTDOWN_NOTICE_SECONDS)
        listened = listening_since <= since - RETURN_SECONDS
        fallen = repository.fallen_silent(since).with_only_columns(NodeRow.name)
        silent = list(session.scalars(fallen)) if listened else []
    for some in _parts(back, MOVES):
        with database.session() as session:
            repository.forget_shutdown_notice(session, some)
    for some in _parts(silent, MOVES):
        with database.session() as session:
            _time_out(session, session.scalars(repository.fallen_silent(since).where(NodeRow.name.in_(some))), now)
    with database.reading() as session:  # also those whose shutdown notice was forgotten just now
        speaking = list(session.scalars(repository.speaking_again(since).with_only_columns(NodeRow.name)))
    for some in _parts(speaking, MOVES):
        with database.session() as session:
            rows = session.scalars(repository.speaking_again(since).where(NodeRow.name.in_(some)))
            _bring_back(session, rows, repository.validated(session, some), now)


def _parts(names: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    return (names[start : start + size] for start in range(0, len(names), size))


def _time_out(session: WriteSession, rows: Iterable[NodeRow], now: float) -> None:
    for row in rows:
        age = now - (row.last_seen_at or row.first_seen_at)
        known = NodeFacts(state=HealthState(row.state), silent=True)
        propose(session, row, NodeTrigger.TIMED_OUT, reason=f"silent since {age:.0f} s", now=now, known=known)


def _bring_back(session: WriteSession, rows: Iterable[NodeRow], proven: Collection[str], now: float) -> None:
    for row in rows:
        why = SPEAKING if row.name in proven else UNPROVEN
        propose(session, row, NodeTrigger.REPORTED, reason=why, now=now, known=NodeFacts(state=HealthState(row.state)))
