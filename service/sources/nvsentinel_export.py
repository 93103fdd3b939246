"""Findings of an incident in NVSentinel's shape, for a site whose machinery acts on that.

While the machine only proposes (``dry_run``) every event is ``STORE_ONLY``: whoever takes it in acts on nothing either.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from mainstay.detectors.finding import FindingKind
from mainstay.probes.core_types import NIC_PREFIX, RecommendedAction, Severity
from mainstay.service.common.db import AnySession
from mainstay.service.common.schemas import Output
from mainstay.service.detector_policies.in_force import held_detectors, policies_in_force
from mainstay.service.fleet import repository as fleet
from mainstay.service.fleet.models import DeviceRow
from mainstay.service.incidents.models import FindingRow

AGENT: Final = "mainstay"
_ACTIONS: Final = {
    RecommendedAction.NONE: "NONE",
    RecommendedAction.MONITOR: "NONE",
    RecommendedAction.RESTART_JOB: "RESTART_APP",
    RecommendedAction.RESET_GPU: "COMPONENT_RESET",
    RecommendedAction.REBOOT_NODE: "RESTART_BM",
    RecommendedAction.INSPECT_NODE: "CONTACT_SUPPORT",
    RecommendedAction.REPLACE: "REPLACE_VM",
}


class EmittedEntity(Output):
    entityType: str  # noqa: N815 - their name
    entityValue: str  # noqa: N815


class EmittedEvent(Output):
    """NVSentinel's HealthEvent with every field."""

    version: int
    agent: str
    componentClass: str  # noqa: N815
    checkName: str  # noqa: N815
    isFatal: bool  # noqa: N815
    isHealthy: bool  # noqa: N815
    message: str
    recommendedAction: str  # noqa: N815
    errorCode: list[str]  # noqa: N815
    entitiesImpacted: list[EmittedEntity]  # noqa: N815
    metadata: dict[str, str]
    generatedTimestamp: str  # noqa: N815
    nodeName: str  # noqa: N815
    processingStrategy: str  # noqa: N815
    id: str


class EmittedEvents(Output):
    version: int
    events: list[EmittedEvent]


def emit(session: AnySession, findings: Sequence[FindingRow], *, acts: bool) -> EmittedEvents:
    """One event for each finding about a node; findings about jobs have no place in that shape.

    A finding whose proposals wait for a person by policy is for storing, too.
    """
    about = [row for row in findings if row.node is not None]
    devices = fleet.devices_by_node(session, {row.node for row in about if row.node is not None})
    held = held_detectors(policies_in_force(session))
    events = [_event(row, devices[row.node or ""], acts=acts and row.detector not in held) for row in about]
    return EmittedEvents(version=1, events=events)


def _event(row: FindingRow, known: Sequence[DeviceRow], *, acts: bool) -> EmittedEvent:
    recommended_action = RecommendedAction(row.recommended_action)
    device = next((device for device in known if device.id == row.device), None)
    at = row.time if row.cleared_at is None else row.cleared_at
    return EmittedEvent(
        version=1,
        agent=AGENT,
        componentClass="NODE" if device is None else device.kind.upper(),
        checkName=row.kind,
        isFatal=row.active and row.severity == Severity.CRITICAL and recommended_action.evicts,
        isHealthy=not row.active,
        message=str(row.evidence.get("summary", "")),
        recommendedAction=_ACTIONS[recommended_action] if row.active else "NONE",
        errorCode=_codes(row),
        entitiesImpacted=[EmittedEntity(entityType=kind, entityValue=value) for kind, value in _entities(row, device)],
        metadata={
            "finding": row.id,
            "incident": row.incident_id or "",
            "detector": row.detector,
            "confidence": f"{row.confidence:.2f}",
        },
        generatedTimestamp=datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        nodeName=row.node or "",
        processingStrategy="EXECUTE_REMEDIATION" if acts else "STORE_ONLY",
        id=row.id,
    )


def _codes(row: FindingRow) -> list[str]:
    numbers: dict[str, Any] = row.evidence.get("numbers") or {}
    code = numbers.get("code") if row.kind in {FindingKind.XID, FindingKind.SXID} else None
    return [str(int(code))] if isinstance(code, int | float) else []


def _entities(row: FindingRow, device: DeviceRow | None) -> list[tuple[str, str]]:
    if row.device is None or row.device == "host":
        return [("NODE", row.node or "")]
    if row.device.startswith(NIC_PREFIX):
        return [("NIC", row.device.removeprefix(NIC_PREFIX))]
    named = [("GPU", row.device.removeprefix("gpu"))]
    if device is None:
        return named
    more = (("GPU_UUID", device.uuid), ("PCI", device.facts.get("pci")))
    return named + [(kind, value) for kind, value in more if value]
