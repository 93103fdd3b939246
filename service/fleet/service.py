"""What nodes say of themselves, and what follows from their voice and their silence.

Silence turns a healthy node unknown, and words make an unknown one healthy again as long as nothing was found against
it; every other state stays until whoever set it lifts it (``fleet.life_cycle``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from mainstay.probes.core_types import HealthState
from mainstay.service.common.db import AnySession, WriteSession
from mainstay.service.common.problem import NotFoundError
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


class UnknownNodeError(NotFoundError):
    slug, title = "unknown-node", "Unknown node"


def require_node(session: AnySession, name: str) -> NodeRow:
    """The node's row.

    Raises:
        UnknownNodeError: no node enrolled or reported under this name.
    """
    row = session.get(NodeRow, name)
    if row is None:
        raise UnknownNodeError(f"no node is called {name!r}")
    return row


def report(session: WriteSession, name: str, said: NodeReportCreate, *, now: float) -> NodeRow:
    """Keep what a node said about itself and its devices."""
    row = session.get(NodeRow, name)
    if row is None:
        row = NodeRow(name=name, first_seen_at=now)
        session.add(row)
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
    session.flush()
    _report_devices(session, name, said, now)
    record_change(session, Topic.NODE, {"id": name, "state": row.state, "reason": "reported"})
    return row


def _report_devices(session: WriteSession, node: str, said: NodeReportCreate, now: float) -> None:
    known = {device.id: device for device in repository.devices_of(session, node)}
    for device in known.values():
        device.present = False
    names = _hardware(said.devices)
    for told in said.devices:
        row = known.get(told.id)
        if row is None:
            row = DeviceRow(node=node, id=told.id, first_seen_at=now, previous_node=None)
        hardware = names.get(told.id)
        if hardware is not None and row.hardware != hardware:
            row.previous_node = repository.previous_location(session, hardware, node)
        row.hardware, row.present, row.last_seen_at = hardware, True, now
        for field in ("index", "kind", "model", "serial", "uuid", "memory_bytes", "facts"):
            setattr(row, field, getattr(told, field))
        session.add(row)  # complete only now: the query above writes out what was added before
    session.flush()
    device_locations.follow(session, node, {hardware: device for device, hardware in names.items()}, now=now)


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
    session: WriteSession, heard: Mapping[str, float], *, now: float, heartbeat_timeout_seconds: float
) -> None:
    """Record when nodes last reported, and apply the state changes that follow from silence and new reports."""
    repository.note_seen(session, heard)
    for row in repository.back_from_shutdown_notice(session, SHUTDOWN_NOTICE_SECONDS):
        row.stopped_at = None
    session.flush()
    for row in repository.fallen_silent(session, now - heartbeat_timeout_seconds):
        age = now - (row.last_seen_at or row.first_seen_at)
        known = NodeFacts(state=HealthState(row.state), silent=True)
        propose(session, row, NodeTrigger.TIMED_OUT, reason=f"silent since {age:.0f} s", now=now, known=known)
    speaking = repository.speaking_again(session, now - heartbeat_timeout_seconds)
    proven = repository.validated(session, [row.name for row in speaking])
    for row in speaking:
        why = SPEAKING if row.name in proven else UNPROVEN
        propose(session, row, NodeTrigger.REPORTED, reason=why, now=now, known=NodeFacts(state=HealthState(row.state)))
