"""NVSentinel's HealthEvents as events of ours: an XID stays an XID, all else is another monitor's report.

Entities of one event (index, UUID and PCI address of the same card) are brought together into devices as this node
reported them; an event about several cards becomes one event a card. Ids derive from the content, so a retry changes
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from mainstay.probes.core_types import NAME_PATTERN, NIC_PREFIX, EventKind, RecommendedAction
from mainstay.service.common.db import AnySession
from mainstay.service.events.schemas import EventIn
from mainstay.service.fleet import repository as fleet
from mainstay.service.fleet.models import DeviceRow
from mainstay.service.sources.ids import content_id
from mainstay.service.sources.schemas import EnumValue, HealthEvent, ImpactedEntity

SOURCE: Final = "nvsentinel"
_NUMBERS: Final = {
    0: "NONE", 2: "COMPONENT_RESET", 5: "CONTACT_SUPPORT", 6: "RUN_FIELDDIAG", 15: "RESTART_VM", 24: "RESTART_BM",
    25: "REPLACE_VM", 26: "RUN_DCGMEUD", 27: "CUSTOM", 39: "RESTART_APP", 99: "UNKNOWN",
}  # fmt: skip
_ANALYZE: Final = "STORE_AND_ANALYSE"  # words-check: allow
_STRATEGIES: Final = {0: "UNSPECIFIED", 1: "EXECUTE_REMEDIATION", 2: "STORE_ONLY", 3: _ANALYZE}
_PASSIVE: Final = frozenset({"STORE_ONLY", _ANALYZE})
"""Kept to be looked at: their own machinery does not act on such an event, and neither does ours."""
_REMEDIES: Final = {
    "NONE": RecommendedAction.NONE,
    "RESTART_APP": RecommendedAction.RESTART_JOB,
    "COMPONENT_RESET": RecommendedAction.RESET_GPU,
    "RESTART_VM": RecommendedAction.REBOOT_NODE,
    "RESTART_BM": RecommendedAction.REBOOT_NODE,
    "RUN_DCGMEUD": RecommendedAction.INSPECT_NODE,
    "RUN_FIELDDIAG": RecommendedAction.INSPECT_NODE,
    "CONTACT_SUPPORT": RecommendedAction.INSPECT_NODE,
    "REPLACE_VM": RecommendedAction.REPLACE,
}
"""An action that is not here (CUSTOM, UNKNOWN, a later one) is monitored: an unknown action drains no node."""
_XID: Final = re.compile(r"^(?:XID[-_ ]?)?(\d{1,6})$", re.IGNORECASE)
_DIGITS: Final = re.compile(r"^(?:GPU[-_ ]?)?(\d{1,4})$", re.IGNORECASE)


def translate(session: AnySession, told: HealthEvent) -> list[EventIn]:
    """Our events for one of theirs: one for each device that it names, or one for the node."""
    known = fleet.devices_of(session, told.nodeName)
    named = sorted(_devices(told.entitiesImpacted, known))
    devices: list[str | None] = [*named] or [None]
    codes = _xids(told) if _is_xid(told) else []
    if codes and not told.isHealthy and _name(told.processingStrategy, _STRATEGIES) not in _PASSIVE:
        return [_xid(told, device, code) for device in devices for code in codes]
    return [_report(told, device) for device in devices]


def _is_xid(told: HealthEvent) -> bool:
    """Whether it repeats a line of the kernel's log: their syslog monitor, not a polled counter."""
    check = told.checkName.lower().replace("_", "").replace("-", "")
    by_log = "syslog" in told.agent.lower() or check.startswith("syslogs")
    # Beware of SysLogsXIDError, which holds the letters of an SXID.
    return by_log and check.removeprefix("syslogs").startswith("xid")


def _xids(told: HealthEvent) -> list[int]:
    found = (_XID.match(code) for code in told.errorCode)
    return sorted({int(match.group(1)) for match in found if match})


def _name(value: EnumValue, names: dict[int, str]) -> str:
    return names.get(value, f"number {value}") if isinstance(value, int) else value.upper()


def _devices(entities: Iterable[ImpactedEntity], known: Sequence[DeviceRow]) -> set[str]:
    """Ids of the devices that are named; index, UUID and address of one card give one."""
    exact: set[str] = set()
    guessed: set[str] = set()
    for entity in entities:
        kind, value = entity.entityType.upper().replace("-", "_"), entity.entityValue
        if kind in {"GPU", "GPU_UUID", "GPU_INDEX", "PCI", "PCI_BUS_ID"}:
            row = next((row for row in known if row.kind == "gpu" and _is_it(row, value)), None)
            index = _DIGITS.match(value)
            exact.update(() if row is None else (row.id,))
            guessed.update((f"gpu{index.group(1)}",) if row is None and index else ())
        elif kind in {"NIC", "NIC_PORT", "NICPORT"}:
            exact.update(_port(value, known))
    # A card that the node never reported can still be called by its index, unless another name found it.
    return exact or guessed


def _is_it(row: DeviceRow, value: str) -> bool:
    index = _DIGITS.match(value)
    if index:
        return row.index == int(index.group(1))
    return value.lower() == (row.uuid or "").lower() or _pci(value) == _pci(row.facts.get("pci", "")) != ""


def _pci(address: str) -> str:
    """``PCI:0000:17:00.0``, ``00000000:17:00.0`` and ``0000:17:00`` are the same place."""
    parts = address.lower().removeprefix("pci:").split(".")[0].split(":")
    return ":".join(part.lstrip("0") or "0" for part in parts) if len(parts) == 3 else ""


def _port(value: str, known: Sequence[DeviceRow]) -> list[str]:
    named = value.removeprefix(NIC_PREFIX)
    rows = [row.id for row in known if row.kind == "nic"]
    found = [name for name in rows if name in {NIC_PREFIX + named, f"{NIC_PREFIX}{named}:1"}]
    if found:
        return found
    name = f"{NIC_PREFIX}{named}"
    return [name] if re.match(NAME_PATTERN, name) else []


def _xid(told: HealthEvent, device: str | None, code: int) -> EventIn:
    pci = next((e.entityValue for e in told.entitiesImpacted if e.entityType.upper() in {"PCI", "PCI_BUS_ID"}), None)
    data: dict[str, Any] = {"code": code, "source": SOURCE, "text": told.message, "pci": pci}
    return _event(told, device, EventKind.XID, {key: value for key, value in data.items() if value is not None})


def _report(told: HealthEvent, device: str | None) -> EventIn:
    action = _name(told.recommendedAction, _NUMBERS)
    passive = _name(told.processingStrategy, _STRATEGIES) in _PASSIVE
    recommended_action = _REMEDIES.get(action, RecommendedAction.MONITOR)
    data: dict[str, Any] = {
        "source": SOURCE,
        "check": told.checkName,
        "fatal": told.isFatal and not passive,
        "healthy": told.isHealthy,
        "message": told.message,
        "recommended_action": (RecommendedAction.NONE if passive or told.isHealthy else recommended_action).value,
        "codes": told.errorCode,
        "agent": told.agent,
        "action": told.customRecommendedAction if action == "CUSTOM" else action,
        "store_only": passive,
    }
    if passive:
        data["severity"] = "info"
    return _event(told, device, EventKind.HEALTH_REPORT, data)


def _event(told: HealthEvent, device: str | None, kind: EventKind, data: dict[str, Any]) -> EventIn:
    time = told.time
    said = (told.id, told.agent, told.checkName, told.isFatal, told.isHealthy, told.message, told.metadata)
    key = content_id(time, SOURCE, told.nodeName, device, kind, data.get("code"), told.errorCode, time, *said)
    return EventIn(id=key, time=time, kind=kind, node=told.nodeName, device=device, data=data)
