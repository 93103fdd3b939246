"""A device's past, told by the hardware: serial number before UUID, wherever it sat.

A fact about ``gpu0`` of a node belongs to a piece of hardware only while that hardware was there. Each source gives
its newest rows before the cursor, and the page is cut from all of them together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, and_, func, literal, or_, select, tuple_
from sqlalchemy.orm import InstrumentedAttribute

from mainstay.probes.core_types import Severity, Verdict
from mainstay.service.common.db import AnySession
from mainstay.service.common.pagination import PageParams, decode_cursor, encode_cursor
from mainstay.service.common.problem import ConflictError, NotFoundError
from mainstay.service.common.rows import equal_to
from mainstay.service.events.models import EventRow
from mainstay.service.fleet import device_locations
from mainstay.service.fleet.models import DeviceLocationRow, DeviceRow, TransitionRow
from mainstay.service.fleet.schemas import DeviceDetail, DeviceLocationRead, DeviceRead, HistoryEntry, HistoryKind
from mainstay.service.incidents.models import FindingRow
from mainstay.service.remediation.models import RemediationRow
from mainstay.service.validation.models import ValidationRow


class UnknownDeviceError(NotFoundError):
    slug, title = "unknown-device", "Unknown device"


class AmbiguousDeviceError(ConflictError):
    slug, title = "ambiguous-device", "Several devices are called so"


@dataclass(frozen=True, slots=True)
class Hardware:
    """A device as it is known now, and its stays, the newest first."""

    row: DeviceRow
    stays: tuple[DeviceLocationRow, ...]


@dataclass(frozen=True, slots=True)
class _Source:
    """One table that tells something of a device."""

    row: Any
    time: InstrumentedAttribute[Any]
    where: Callable[[Hardware], ColumnElement[bool]]
    entry: Callable[[Any, Hardware], HistoryEntry]


def find(session: AnySession, name: str, node: str | None) -> Hardware:
    """The device that a serial number, a UUID, ``serial:…``, ``uuid:…`` or a node's own name for it means.

    Raises:
        UnknownDeviceError: no node ever reported it.
        AmbiguousDeviceError: several are called so, and no node is named.
    """
    by_hardware = or_(DeviceRow.hardware == name, DeviceRow.serial == name, DeviceRow.uuid == name)
    for condition in (by_hardware, DeviceRow.id == name):
        statement = select(DeviceRow).where(condition, *equal_to({DeviceRow.node: node}))
        order = (DeviceRow.present.desc(), DeviceRow.last_seen_at.desc(), DeviceRow.node)
        rows = list(session.scalars(statement.order_by(*order).limit(50)))
        if rows:
            return _one(session, name, rows)
    moved = _overwritten(session, name)
    if moved is not None:
        return moved
    raise UnknownDeviceError(f"no node ever reported a device {name!r}" + (f" on {node!r}" if node else ""))


def _one(session: AnySession, name: str, rows: Sequence[DeviceRow]) -> Hardware:
    if len({row.hardware or (row.node, row.id) for row in rows}) > 1:
        nodes = ", ".join(sorted({row.node for row in rows})[:5])
        raise AmbiguousDeviceError(f"several devices are called {name!r}: name the node ({nodes}) or a serial number")
    row = rows[0]
    known = () if row.hardware is None else tuple(device_locations.of_hardware(session, row.hardware))
    if known:
        return Hardware(row, known)
    always = DeviceLocationRow(id="", hardware="", node=row.node, device=row.id, first_seen_at=row.first_seen_at)
    always.last_seen_at, always.left_at = row.last_seen_at, None if row.present else row.last_seen_at
    return Hardware(row, (always,))


def _overwritten(session: AnySession, name: str) -> Hardware | None:
    """Hardware that another device replaced and that no other node reported; only its stays mention it."""
    names = (name, f"serial:{name}", f"uuid:{name}")
    hardware = session.scalar(select(DeviceLocationRow.hardware).where(DeviceLocationRow.hardware.in_(names)).limit(1))
    if hardware is None:
        return None
    known = device_locations.of_hardware(session, hardware)
    kind, _, number = hardware.partition(":")
    last = known[0]
    row = DeviceRow(
        node=last.node, id=last.device, hardware=hardware, previous_node=None, index=0, kind="gpu", model="",
        serial=number if kind == "serial" else None, uuid=number if kind == "uuid" else None, memory_bytes=None,
        facts={}, present=False, first_seen_at=known[-1].first_seen_at, last_seen_at=last.last_seen_at,
    )  # fmt: skip
    return Hardware(row, tuple(known))


def read_device(session: AnySession, hardware: Hardware) -> DeviceDetail:
    """The device as answered."""
    said = select(func.count()).select_from(FindingRow).where(_named(FindingRow, hardware))
    homes = [
        DeviceLocationRead(
            node=s.node, first_seen_at=s.first_seen_at, last_seen_at=s.last_seen_at, present=s.left_at is None
        )
        for s in hardware.stays
    ]
    return DeviceDetail(
        device=DeviceRead.model_validate(hardware.row),
        hardware=hardware.row.hardware,
        locations=homes,
        findings_active=session.scalar(said.where(FindingRow.active)) or 0,
        findings_total=session.scalar(said) or 0,
    )


def page(session: AnySession, hardware: Hardware, params: PageParams) -> tuple[list[HistoryEntry], str | None]:
    """One page of the past, newest first, and the cursor of the next."""
    before = None if params.cursor is None else decode_cursor(params.cursor, (float, str))
    found: list[tuple[float, str, HistoryEntry]] = []
    for source in _SOURCES:
        rows = session.scalars(_rows(source, hardware, before).limit(params.limit + 1))
        found += [(getattr(row, source.time.key), row.id, source.entry(row, hardware)) for row in rows]
    found.sort(key=lambda item: item[:2], reverse=True)
    cut = found[: params.limit]
    cursor = encode_cursor(cut[-1][:2]) if len(found) > params.limit else None
    return [entry for *_, entry in cut], cursor


def _rows(source: _Source, hardware: Hardware, before: Sequence[Any] | None) -> Select[Any]:
    statement = select(source.row).where(source.time.is_not(None), source.where(hardware))
    if before is not None:
        bound = tuple_(literal(before[0], source.time.type), literal(before[1], source.row.id.type))
        statement = statement.where(tuple_(source.time, source.row.id) < bound)
    return statement.order_by(source.time.desc(), source.row.id.desc())


def _named(table: Any, hardware: Hardware) -> ColumnElement[bool]:
    """Rows that name the device, from while it sat there."""
    return _during(hardware, table.node, table.time, lambda stay: table.device == stay.device)


def _during(
    hardware: Hardware,
    node: InstrumentedAttribute[Any],
    time: InstrumentedAttribute[Any],
    also: Callable[[DeviceLocationRow], ColumnElement[bool]] | None = None,
) -> ColumnElement[bool]:
    return or_(*(and_(*_within(stay, node, time), *([also(stay)] if also else [])) for stay in hardware.stays))


def _within(
    stay: DeviceLocationRow, node: InstrumentedAttribute[Any], time: InstrumentedAttribute[Any]
) -> Iterable[ColumnElement[bool]]:
    yield node == stay.node
    yield time >= stay.first_seen_at - EARLY_SECONDS
    if stay.left_at is not None:
        yield time <= stay.left_at


EARLY_SECONDS: Final = 60.0
"""A daemon looks before it reports: what it saw just before its first report was of the same hardware."""


def _finding(row: FindingRow, _: Hardware) -> HistoryEntry:
    title = row.kind if row.active else f"{row.kind} (over)"
    text, severity = str(row.evidence["summary"]), Severity(row.severity)
    return _entry(row, "finding", row.time, title=title, text=text, severity=severity)


def _event(row: EventRow, _: Hardware) -> HistoryEntry:
    text = row.data.get("text") or row.data.get("reason") or row.data.get("message") or ""
    code = row.data.get("code")
    title = row.kind if code is None else f"{row.kind} {code}"
    return _entry(row, "event", row.time, title=title[:200], text=str(text)[:2000])


def _move(row: DeviceLocationRow, hardware: Hardware) -> HistoryEntry:
    before = [s for s in hardware.stays if (s.first_seen_at, s.id) < (row.first_seen_at, row.id)]
    if before and before[0].node != row.node:
        title = f"moved from {before[0].node} to {row.node}"
    else:
        title = f"{'back' if before else 'first seen'} on {row.node}"
    return _entry(row, "move", row.first_seen_at, title=title, text=f"as {row.device}")


def _transition(row: TransitionRow, _: Hardware) -> HistoryEntry:
    title = f"node {row.from_state} → {row.to_state}"
    return _entry(row, "transition", row.time, title=title, text=f"{row.actor}: {row.reason}")


_SEVERITY: Final = {Verdict.FAIL: Severity.CRITICAL, Verdict.WARN: Severity.WARNING}


def _verdict(row: ValidationRow, _: Hardware) -> HistoryEntry:
    at, title = row.finished_at or row.created_at, f"validation {row.suite}: {row.verdict}"
    return _entry(row, "verdict", at, title=title, text=row.reason, severity=_SEVERITY.get(Verdict(row.verdict)))


def _remediation(row: RemediationRow, _: Hardware) -> HistoryEntry:
    return _entry(row, "remediation", row.created_at, title=f"{row.recommended_action}: {row.state}", text=row.reason)


def _entry(
    row: Any, kind: HistoryKind, time: float, *, title: str, text: str, severity: Severity | None = None
) -> HistoryEntry:
    said = {"kind": kind, "severity": severity, "title": title, "text": text}
    return HistoryEntry.model_validate({"time": time, "node": row.node or "", "ref": row.id, **said})


def _of_hardware(table: Any, hardware: Hardware) -> ColumnElement[bool]:
    condition: ColumnElement[bool] = table.hardware == (hardware.row.hardware or "")
    return condition


_SOURCES: Final = (
    _Source(FindingRow, FindingRow.time, lambda h: _named(FindingRow, h), _finding),
    _Source(EventRow, EventRow.time, lambda h: _named(EventRow, h), _event),
    _Source(DeviceLocationRow, DeviceLocationRow.first_seen_at, lambda h: _of_hardware(DeviceLocationRow, h), _move),
    _Source(TransitionRow, TransitionRow.time, lambda h: _during(h, TransitionRow.node, TransitionRow.time),
            _transition),
    _Source(ValidationRow, ValidationRow.finished_at,
            lambda h: _during(h, ValidationRow.node, ValidationRow.finished_at), _verdict),
    _Source(RemediationRow, RemediationRow.created_at, lambda h: _of_hardware(RemediationRow, h), _remediation),
)  # fmt: skip
