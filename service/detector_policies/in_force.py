"""What policies of detectors say about findings, for the detection loop and for remediation.

Each caller reads the policies in the transaction in which it acts, once for many findings: the table has a row for a
detector at most.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import ColumnElement, and_, case, literal, select

from mainstay.service.common.db import AnySession
from mainstay.service.detector_policies.models import DetectorMode, DetectorPolicyRow
from mainstay.service.incidents.models import FindingRow


def policies_in_force(session: AnySession) -> dict[str, DetectorPolicyRow]:
    """Detector → its policy; detectors whose policy was never changed are absent."""
    return {row.detector: row for row in session.scalars(select(DetectorPolicyRow))}


def recording_detectors(session: AnySession) -> frozenset[str]:
    """Detectors whose findings are only recorded."""
    return _recording(policies_in_force(session))


def _recording(policies: Mapping[str, DetectorPolicyRow]) -> frozenset[str]:
    return frozenset(name for name, row in policies.items() if row.mode == DetectorMode.RECORD)


def is_acted_on(
    policies: Mapping[str, DetectorPolicyRow], limit: float, *, certain: bool = True
) -> ColumnElement[bool]:
    """The condition on findings that may propose something.

    Args:
        policies: in force.
        limit: the site's least confidence, from 0 to 1.
        certain: findings from the least confidence on, else those below it.
    """
    own = {name: row.min_confidence for name, row in policies.items() if row.min_confidence is not None}
    least = case(own, value=FindingRow.detector, else_=limit) if own else literal(limit)
    enough = FindingRow.confidence >= least if certain else FindingRow.confidence < least
    return and_(FindingRow.detector.not_in(_recording(policies)), enough)


def held_detectors(policies: Mapping[str, DetectorPolicyRow]) -> frozenset[str]:
    """Detectors whose proposals wait for a person."""
    return frozenset(name for name, row in policies.items() if hold_reason(row))


def hold_reason(policy: DetectorPolicyRow | None) -> str:
    """Why a person has to accept what findings of a detector propose; empty where Mainstay may."""
    if policy is None or policy.mode == DetectorMode.DEFAULT:
        return ""
    return f"{policy.changed_by} lets detector {policy.detector} only {policy.mode}: {policy.reason}"
