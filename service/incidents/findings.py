"""A detector's ``Finding`` as a row and as JSON. Numbers that JSON cannot carry become null: unknown, never zero."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Final

from mainstay.detectors.finding import Cause, Entity, Evidence, Finding, FindingKind
from mainstay.probes.core_types import RecommendedAction, Severity
from mainstay.probes.ids import uuid7
from mainstay.service.incidents.models import FindingRow
from mainstay.service.incidents.schemas import FindingRead

MAX_POINTS = 2000
"""Points kept of one evidence series: more than a chart is wide."""


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def evidence_json(evidence: Evidence) -> dict[str, Any]:
    """Evidence as finite JSON; the newest ``MAX_POINTS`` of each series."""
    body: dict[str, Any] = _finite(dataclasses.asdict(evidence))
    for series in body["series"]:
        for axis in ("x", "y", "peers"):
            series[axis] = series[axis][-MAX_POINTS:]
    return body


def to_row(finding: Finding, incident_id: str | None) -> FindingRow:
    return FindingRow(
        id=uuid7(),
        key=finding.key,
        kind=finding.kind.value,
        **dataclasses.asdict(finding.entity),
        began_at=finding.time,
        cleared_at=None if finding.active else finding.time,
        incident_id=incident_id,
        **renewed_columns(finding),
    )


def renewed_columns(finding: Finding) -> dict[str, Any]:
    """The columns that a repeated statement about the same thing renews."""
    return {
        "time": finding.time,
        "severity": finding.severity.value,
        "detector": finding.detector,
        "confidence": finding.confidence,
        "evidence": evidence_json(finding.evidence),
        "active": finding.active,
        "recommended_action": finding.recommended_action.value,
        "cause": None if finding.cause is None else finding.cause.value,
        "event_id": finding.event,
    }


def entity_of(row: FindingRow) -> Entity:
    return Entity(node=row.node, device=row.device, job=row.job, rank=row.rank, peer=row.peer)


SHORT: Final = (
    *(FindingRow.kind, FindingRow.node, FindingRow.device, FindingRow.job, FindingRow.rank, FindingRow.peer),
    *(FindingRow.time, FindingRow.severity, FindingRow.detector, FindingRow.confidence, FindingRow.active),
    *(FindingRow.recommended_action, FindingRow.cause, FindingRow.event_id),
    FindingRow.evidence["summary"].as_string().label("summary"),
)
"""Columns of a finding without its series: enough to correlate with, cheap to load by the thousand."""


def from_row(row: FindingRow) -> Finding:
    """The finding without its series."""
    return from_columns(row, str(row.evidence["summary"]))


def from_columns(row: Any, summary: str) -> Finding:
    """The same from a row of the columns ``SHORT``."""
    return Finding(
        kind=FindingKind(row.kind),
        entity=entity_of(row),
        time=row.time,
        severity=Severity(row.severity),
        detector=row.detector,
        confidence=row.confidence,
        evidence=Evidence(summary=summary),
        active=row.active,
        recommended_action=RecommendedAction(row.recommended_action),
        cause=None if row.cause is None else Cause(row.cause),
        event=row.event_id,
    )


def read(row: FindingRow) -> FindingRead:
    told = {name: getattr(row, name, None) for name in FindingRead.model_fields}
    return FindingRead.model_validate(told | {"entity": row, "event": row.event_id, "incident": row.incident_id})
