"""What nodes say of themselves, and what follows from their voice and their silence.

Silence turns a healthy node unknown, and words make an unknown one healthy again as long as nothing was found against
it; every other state stays until whoever set it lifts it (``fleet.life_cycle``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from sqlalchemy import select

from mainstay.probes.core_types import EventKind, HealthState
from mainstay.probes.ids import uuid7
from mainstay.service.common.db import AnySession, Database, WriteSession
from mainstay.service.common.problem import NotFoundError
from mainstay.service.common.rows import require_row
from mainstay.service.events import service as events
from mainstay.service.events.schemas import EventIn
from mainstay.service.fleet import device_locations, repository
from mainstay.service.fleet.directory import REPORTED
from mainstay.service.fleet.lifecycle import NodeFacts, NodeTrigger
from mainstay.service.fleet.models import NodeRow
from mainstay.service.fleet.schemas import DeviceReport, NodeReportCreate
from mainstay.service.fleet.transitions import Measured, propose_all
from mainstay.service.stream.changes import Topic, record_change

SPEAKING: Final = "reporting; nothing found against it"
UNPROVEN: Final = "reporting; nothing found against it, but never validated"
SHUTDOWN_NOTICE_SECONDS: Final = 5.0
"""How long data that a node sent before its shutdown notice may still arrive after it."""
RETURN_SECONDS: Final = 15.0
"""How long a node daemon waits at most before it tries again to reach a service that was away."""
SEEN: Final = 2000
"""Report times written in one transaction: some 20 ms."""
MOVES: Final = 500
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
    events.record(
        session,
        [
            _reboot(known[name], said, now)
            for name, said in reports.items()
            if name in known and _is_rebooted(known[name], said)
        ],
        now=now,
    )
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
        record_change(session, Topic.NODE, {"id": row.name, "state": row.state, "reason": REPORTED})
    return rows


def _is_rebooted(row: NodeRow, said: NodeReportCreate) -> bool:
    """Whether a report names another boot; one that names none, as an exporter's, tells nothing."""
    unknown = {"", "unknown"}
    return row.boot_id != said.boot_id and row.boot_id not in unknown and said.boot_id not in unknown


def _reboot(row: NodeRow, said: NodeReportCreate, now: float) -> EventIn:
    data = {"boot_id": said.boot_id, "away": max(0.0, now - (row.last_seen_at or now))}
    if said.booted_at is not None:
        data["booted_at"] = said.booted_at
    return EventIn(id=uuid7(), time=now, kind=EventKind.NODE_REBOOTED, node=row.name, data=data)


def _describe(row: NodeRow, said: NodeReportCreate, now: float) -> None:
    fields = (
        "hostname", "os", "kernel", "version", "boot_id", "cohort", "rack", "switches", "power_domain", "cpu_count",
        "memory_bytes", "booted_at", "started_at",
    )  # fmt: skip
    for field in fields:
        setattr(row, field, getattr(said, field))
    row.gpus = sum(device.kind == "gpu" for device in said.devices)
    row.last_seen_at = now
    if row.stopped_at is not None and said.started_at > row.stopped_at:
        row.stopped_at = None


def _report_devices(session: WriteSession, reports: Mapping[str, NodeReportCreate], now: float) -> None:
    known = repository.hardware_of_devices(session, reports)
    hardware = {node: _hardware(said.devices) for node, said in reports.items()}
    told = {(node, device.id) for node, said in reports.items() for device in said.devices}
    # What a node of this batch no longer has may be what another one has now.
    repository.mark_absent(session, known.keys() - told)
    moved = {
        name: node
        for node, names in hardware.items()
        for device, name in names.items()
        if (node, device) not in known or known[node, device][0] != name
    }
    before = repository.previous_locations(session, moved)
    rows = []
    for node, said in reports.items():
        for device in said.devices:
            name = hardware[node].get(device.id)
            last, previous = known.get((node, device.id), (None, None))
            if name is not None and name != last:
                previous = before.get(name)
            place = {"node": node, "hardware": name, "previous_node": previous, "present": True, "last_seen_at": now}
            rows.append(device.model_dump(mode="json") | place)
    repository.store_devices(session, [row for row in rows if (row["node"], row["id"]) not in known], new=True)
    repository.store_devices(session, [row for row in rows if (row["node"], row["id"]) in known], new=False)
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
    def found(row: NodeRow) -> Measured:
        reason = f"silent since {now - (row.last_seen_at or row.first_seen_at):.0f} s"
        return Measured(row, NodeTrigger.TIMED_OUT, reason, NodeFacts(state=HealthState(row.state), silent=True))

    propose_all(session, [found(row) for row in rows], now=now)


def _bring_back(session: WriteSession, rows: Iterable[NodeRow], proven: Collection[str], now: float) -> None:
    def found(row: NodeRow) -> Measured:
        reason = SPEAKING if row.name in proven else UNPROVEN
        return Measured(row, NodeTrigger.REPORTED, reason, NodeFacts(state=HealthState(row.state)))

    propose_all(session, [found(row) for row in rows], now=now)
