"""Every detector with its policy, and changes of a policy by compare-and-set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, Final

from sqlalchemy import and_, exists, func, or_, select

from mainstay.detectors.base import ArrayDetector, DetectorState
from mainstay.detectors.finding import ADVICE, FindingKind
from mainstay.detectors.reference import about_detector, detector_limits, literal
from mainstay.detectors.registry import DETECTORS
from mainstay.service.common.db import AnySession, WriteSession
from mainstay.service.common.problem import ConflictError, NotFoundError
from mainstay.service.common.rows import compare_and_set, insert_into
from mainstay.service.detector_policies.in_force import policies_in_force
from mainstay.service.detector_policies.models import DetectorMode, DetectorPolicyRow
from mainstay.service.detector_policies.schemas import (
    DetectorList,
    DetectorPolicyRead,
    DetectorPolicyUpdate,
    DetectorRead,
)
from mainstay.service.fleet.lifecycle_facts import EVICTING
from mainstay.service.incidents.detector_status import DetectorStatusCache
from mainstay.service.incidents.job_detectors import OF_JOBS
from mainstay.service.incidents.models import FindingRow
from mainstay.service.remediation.models import RemediationRow
from mainstay.service.remediation.schemas import RemediationState
from mainstay.service.settings import RemediationSettings

RECENT_SECONDS: Final = 30 * 86_400.0
_UNCHANGED: Final = DetectorPolicyRead(
    mode=DetectorMode.DEFAULT, min_confidence=None, reason="", changed_by="", changed_at=None, version=0
)


class UnknownDetectorError(NotFoundError):
    slug, title = "unknown-detector", "Unknown detector"


class DetectorPolicyChangedError(ConflictError):
    slug, title = "detector-policy-changed", "Detector policy changed"


def update_policy(
    session: WriteSession, detector: str, update: DetectorPolicyUpdate, *, actor: str, now: float
) -> DetectorPolicyRow:
    """Replace the policy of a detector.

    Raises:
        UnknownDetectorError: there is no such detector; the message names the nearest one.
        DetectorPolicyChangedError: another request changed the policy first.
    """
    if detector not in DETECTORS:
        near = get_close_matches(detector, DETECTORS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ". GET /v1/detector-policies lists all detectors."
        raise UnknownDetectorError(f"no detector has the name {detector!r}{hint}")
    first = insert_into(session, DetectorPolicyRow).values(detector=detector, changed_at=now)
    session.execute(first.on_conflict_do_nothing())
    row, values = session.get_one(DetectorPolicyRow, detector), update.model_dump(mode="json")
    values |= {"changed_by": actor, "changed_at": now, "version": update.version + 1}
    if not compare_and_set(session, row, DetectorPolicyRow.version == update.version, **values):
        raise DetectorPolicyChangedError(
            f"the policy of {detector} has version {row.version}, not {update.version}: read it again, then change it"
        )
    return row


def list_detectors(
    session: AnySession, accounts: DetectorStatusCache, limits: RemediationSettings, now: float, *, changed: bool
) -> DetectorList:
    """Every detector by name, or each whose policy was changed, with its status, what it found, and its policy."""
    policies, found = policies_in_force(session), _found(session, now - RECENT_SECONDS)
    jobs = accounts.jobs.values()
    states = Counter((name, status.state) for job in jobs for name, status in job.detectors)
    items = [
        DetectorRead(
            **_described(name),
            jobs={state: states[name, state] for state in DetectorState if states[name, state]},
            **found.get(name, {"active_findings": 0, "recent_findings": 0, "drains": 0}),
            policy=DetectorPolicyRead.model_validate(policies[name]) if name in policies else _UNCHANGED,
            effects=_effects(kind.kinds, limits),
        )
        for name, kind in sorted(DETECTORS.items())
        if name in policies or not changed
    ]
    return DetectorList(items=items, min_confidence=limits.min_confidence)


@cache
def _described(name: str) -> dict[str, Any]:
    """What the code says about a detector: the documentation shows the same."""
    kind = DETECTORS[name]
    limits = [
        {"name": limit, "value": _text(value), "about": _sentence(about)}
        for limit, value, about in detector_limits(kind().config)
    ]
    is_per_job = issubclass(kind, ArrayDetector) and kind.feed in OF_JOBS
    about = _sentence(about_detector(kind))
    return {"name": name, "about": about, "kinds": sorted(kind.kinds), "limits": limits, "is_per_job": is_per_job}


def _sentence(text: str) -> str:
    return " ".join(text.split("\n\n", maxsplit=1)[0].replace("`", "").split())


def _text(value: Any) -> str:
    return f"{len(value)} entries" if isinstance(value, Mapping) else "none" if value is None else literal(value)


def _effects(kinds: frozenset[FindingKind], limits: RemediationSettings) -> dict[DetectorMode, str]:
    if kinds <= ADVICE:
        same = "Its findings are recommendations: they open no incident and propose nothing."
        return dict.fromkeys(DetectorMode, same)
    modes = {"drains nodes": limits.mode, "moves ranks": limits.migrate}
    automatic = " and ".join(what for what, mode in modes.items() if mode == "automatic")
    site = f"Mainstay {automatic} itself where every rule allows it" if automatic else "a person decides"
    return {
        DetectorMode.DEFAULT: f"Findings open incidents and propose remediations, and {site}.",
        DetectorMode.PROPOSE: "Findings open incidents and propose remediations, each of which waits for a person.",
        DetectorMode.RECORD: "Findings are stored and shown. They open no incident, propose nothing, and send nothing.",
    }


def _found(session: AnySession, since: float) -> dict[str, dict[str, int]]:
    """Detector → its active findings, its recent ones, and those of them for which a node was drained."""
    recent = FindingRow.time >= since
    drained = exists().where(
        RemediationRow.incident_id == FindingRow.incident_id,
        RemediationRow.node == FindingRow.node,
        RemediationRow.recommended_action.in_(EVICTING),
        RemediationRow.decided_at.is_not(None),
        RemediationRow.state != RemediationState.DISMISSED.value,
    )
    drains = and_(recent, FindingRow.recommended_action.in_(EVICTING), drained)
    counts = {"active_findings": FindingRow.active, "recent_findings": recent, "drains": drains}
    columns = (func.count().filter(condition).label(name) for name, condition in counts.items())
    statement = select(FindingRow.detector, *columns).where(or_(FindingRow.active, recent))
    found = session.execute(statement.group_by(FindingRow.detector)).mappings()
    return {row["detector"]: {name: row[name] for name in counts} for row in found}
