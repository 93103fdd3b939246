"""What may be done with nodes. Health changes only through ``set_state``: every change is told and has a reason.

Silence turns a healthy node unknown, and words make an unknown one healthy again as long as nothing was found against
it; every other state stays until whoever set it lifts it.
"""

from __future__ import annotations

from collections.abc import Mapping

from probes.words import HealthState
from service.fleet import repository
from service.fleet.models import DeviceRow, NodeRow
from service.fleet.schemas import DeviceReport, NodeReport
from service.kit.db import AnySession, WriteSession
from service.kit.problem import NotFoundError
from service.stream.changes import Topic, record_change

SPEAKING = "reporting; nothing found against it"


class UnknownNodeError(NotFoundError):
    slug, title = "unknown-node", "Unknown node"


def require_node(session: AnySession, name: str) -> NodeRow:
    """The node's row.

    Raises:
        UnknownNodeError: nobody enrolled or reported under this name.
    """
    row = session.get(NodeRow, name)
    if row is None:
        raise UnknownNodeError(f"no node is called {name!r}")
    return row


def set_state(session: WriteSession, name: str, state: HealthState, reason: str) -> NodeRow:
    """Move a node to ``state``; watchers are told when that changes anything."""
    row = require_node(session, name)
    if (row.state, row.state_reason) != (state.value, reason[:500]):
        row.state, row.state_reason = state.value, reason[:500]
        record_change(session, Topic.NODE, {"id": name, "state": state.value, "reason": reason[:500]})
    return row


def report(session: WriteSession, name: str, said: NodeReport, *, now: float) -> NodeRow:
    """Keep what a node said about itself and its devices."""
    row = session.get(NodeRow, name)
    if row is None:
        row = NodeRow(name=name, first_seen_at=now)
        session.add(row)
    fields = ("hostname", "os", "kernel", "version", "boot_id", "cohort", "cpu_count", "memory_bytes", "started_at")
    for field in fields:
        setattr(row, field, getattr(said, field))
    row.last_seen_at = now
    session.flush()
    _report_devices(session, name, said, now)
    record_change(session, Topic.NODE, {"id": name, "state": row.state, "reason": "reported"})
    return row


def _report_devices(session: WriteSession, node: str, said: NodeReport, now: float) -> None:
    known = {device.id: device for device in repository.devices_of(session, node)}
    for device in known.values():
        device.present = False
    for told in said.devices:
        row = known.get(told.id)
        if row is None:
            row = DeviceRow(node=node, id=told.id, first_seen_at=now, moved_from=None)
        hardware = _hardware(told)
        if hardware is not None and row.hardware != hardware:
            row.moved_from = repository.earlier_home(session, hardware, node)
        row.hardware, row.present, row.last_seen_at = hardware, True, now
        for field in ("index", "kind", "model", "serial", "uuid", "memory_bytes"):
            setattr(row, field, getattr(told, field))
        session.add(row)  # complete only now: the query above writes out what was added before
    session.flush()


def _hardware(device: DeviceReport) -> str | None:
    """What stays the same when the device is moved: a serial number before a UUID."""
    if device.serial:
        return f"serial:{device.serial}"
    return f"uuid:{device.uuid}" if device.uuid else None


def follow_voices(session: WriteSession, heard: Mapping[str, float], *, now: float, silent_after: float) -> None:
    """Write down when nodes last spoke, and let silence and speech change the states that they may change."""
    repository.note_seen(session, heard)
    for row in repository.fallen_silent(session, now - silent_after):
        age = now - (row.last_seen_at or row.first_seen_at)
        set_state(session, row.name, HealthState.UNKNOWN, f"silent since {age:.0f} s")
    for row in repository.speaking_again(session, now - silent_after):
        set_state(session, row.name, HealthState.HEALTHY, SPEAKING)
