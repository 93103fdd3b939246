"""Queries over remediations and what they are made from."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, func, or_, select, true

from mainstay.probes.core_types import HealthState, RecommendedAction, Severity
from mainstay.recovery.job_request import RequestState
from mainstay.service.common.db import AnySession, is_one_of
from mainstay.service.common.rows import equal_to
from mainstay.service.detector_policies.in_force import held_detectors, is_acted_on, policies_in_force
from mainstay.service.fleet.models import DeviceRow, NodeRow, TransitionRow
from mainstay.service.incidents.lifecycle import LIVE
from mainstay.service.incidents.models import FindingRow, IncidentRow
from mainstay.service.jobs.models import JobRequestRow
from mainstay.service.jobs.node_warnings import KINDS
from mainstay.service.remediation.models import RemediationRow
from mainstay.service.remediation.schemas import UNDECIDED, RemediationState
from mainstay.service.settings import RemediationSettings

_EVICTING = tuple(recommended_action.value for recommended_action in RecommendedAction if recommended_action.evicts)
_LIVE = tuple(state.value for state in LIVE)
_ACCEPTED = RemediationRow.state == RemediationState.ACCEPTED.value
_DRAINS = RemediationRow.recommended_action != RecommendedAction.MIGRATE_RANKS.value
_OPEN = (*(state.value for state in UNDECIDED), RemediationState.ACCEPTED.value)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node with evidence from an incident; its strongest finding represents all."""

    incident: str
    node: str
    device: str | None
    recommended_action: RecommendedAction
    finding: str
    detector: str = ""


def listing(*, state: RemediationState | None, node: str | None) -> Select[RemediationRow]:
    return select(RemediationRow).where(*equal_to({RemediationRow.state: state, RemediationRow.node: node}))


def candidates(session: AnySession, limits: RemediationSettings) -> list[Candidate]:
    """Nodes with a certain finding that wants work off them, the oldest incident first; one an incident and node.

    In automatic mode, what a policy holds for a person comes after what Mainstay may do itself.
    """
    policies = policies_in_force(session)
    held = held_detectors(policies) if limits.mode == "automatic" else frozenset()
    wanted = is_acted_on(policies, limits.min_confidence), FindingRow.recommended_action.in_(_EVICTING)
    best: dict[tuple[str, str], tuple[bool, int, float, Candidate]] = {}
    for row in _certain(session, *wanted, order=(FindingRow.time, FindingRow.id)):
        action = RecommendedAction(row.recommended_action)
        made = Candidate(row.incident_id, row.node, row.device, action, row.id, row.detector)
        strength = (row.detector not in held, action.level, row.confidence)
        known = best.get((made.incident, made.node))
        if known is None or strength > known[:3]:
            best[made.incident, made.node] = (*strength, made)
    return [candidate for *_, candidate in best.values()]


def movers(session: AnySession, limits: RemediationSettings) -> list[Candidate]:
    """Nodes with a certain finding about their hardware, as ``candidates`` are; whether ranks are there is not asked.

    What the job itself is to blame for (``restart_app``) is no reason to leave a node.
    """
    policies = policies_in_force(session)
    held = held_detectors(policies) if limits.migrate == "automatic" else frozenset()
    wanted = (FindingRow.kind.in_(KINDS), FindingRow.recommended_action != RecommendedAction.RESTART_JOB.value)
    certain = is_acted_on(policies, limits.min_confidence)
    found: dict[tuple[str, str], Candidate] = {}
    for row in _certain(session, certain, *wanted, order=(FindingRow.confidence.desc(), FindingRow.id)):
        made = Candidate(row.incident_id, row.node, row.device, RecommendedAction.MIGRATE_RANKS, row.id, row.detector)
        known = found.get((made.incident, made.node))
        if known is None or (known.detector in held and made.detector not in held):
            found[made.incident, made.node] = made
    return list(found.values())


def _certain(session: AnySession, *conditions: ColumnElement[bool], order: Sequence[Any]) -> Sequence[Any]:
    """Findings about nodes, by incident, the oldest first, and node; those of one node in ``order``."""
    columns = (FindingRow.incident_id, FindingRow.node, FindingRow.device, FindingRow.recommended_action, FindingRow.id)
    told = (*columns, FindingRow.confidence, FindingRow.detector)
    statement = (
        select(*told)  # without the evidence: it is large, and this is asked every second
        .join(IncidentRow, IncidentRow.id == FindingRow.incident_id)
        .where(
            FindingRow.active,
            FindingRow.severity != Severity.INFO.value,
            FindingRow.node.is_not(None),
            IncidentRow.state.in_(_LIVE),
            *conditions,
        )
    )
    return session.execute(statement.order_by(IncidentRow.opened_at, IncidentRow.id, FindingRow.node, *order)).all()


def strongest(session: AnySession, incident: str, node: str) -> FindingRow | None:
    """The most certain finding about a node's hardware that an incident holds."""
    held = FindingRow.incident_id == incident, FindingRow.node == node, FindingRow.active, FindingRow.kind.in_(KINDS)
    statement = select(FindingRow).where(*held).order_by(FindingRow.confidence.desc(), FindingRow.id)
    return session.scalars(statement.limit(1)).one_or_none()


def summary(session: AnySession, found: Candidate) -> str:
    """What the finding behind a candidate says."""
    row = session.get(FindingRow, found.finding)
    return "" if row is None else str(row.evidence["summary"])


def open_ones(session: AnySession) -> list[RemediationRow]:
    """Remediations that are not over, oldest first."""
    statement = select(RemediationRow).where(is_one_of(RemediationRow.state, _OPEN))
    return sorted(session.scalars(statement), key=lambda row: (row.created_at, row.id))  # SQL would sort by reading all


def accepted(session: AnySession, nodes: Collection[str]) -> dict[str, RemediationRow]:
    """Node → the remediation that it is out of service for; the others are absent."""
    statement = select(RemediationRow).where(RemediationRow.node.in_(nodes), _ACCEPTED, _DRAINS)
    return {row.node: row for row in session.scalars(statement)}


def holding(session: AnySession, found: Collection[Candidate]) -> set[str]:
    """Which candidates' findings hold in this transaction."""
    ids = [candidate.finding for candidate in found]
    return set(session.scalars(select(FindingRow.id).where(FindingRow.id.in_(ids), FindingRow.active)))


def news(session: AnySession) -> list[tuple[RemediationRow, TransitionRow]]:
    """Moves of nodes out of service that their remediations have not taken into account, in order."""
    since = and_(TransitionRow.node == RemediationRow.node, TransitionRow.version > RemediationRow.version_seen)
    statement = (
        select(RemediationRow, TransitionRow)
        .join(TransitionRow, since)
        .where(_ACCEPTED, _DRAINS)
        .order_by(TransitionRow.node, TransitionRow.version)
    )
    return [(row, move) for row, move in session.execute(statement)]


def moving(session: AnySession) -> list[RemediationRow]:
    """Accepted ones whose ranks are on their way to other nodes."""
    statement = select(RemediationRow).where(
        _ACCEPTED, RemediationRow.recommended_action == RecommendedAction.MIGRATE_RANKS.value
    )
    return list(session.scalars(statement.order_by(RemediationRow.created_at, RemediationRow.id)))


def moved(session: AnySession, since: float) -> int:
    """How many nodes were accepted for their ranks to leave, after ``since``."""
    left = (
        RemediationRow.recommended_action == RecommendedAction.MIGRATE_RANKS.value,
        RemediationRow.state != RemediationState.DISMISSED.value,
    )
    statement = select(func.count(func.distinct(RemediationRow.node))).where(*left, RemediationRow.decided_at >= since)
    return session.scalar(statement) or 0


def has_migrated(session: AnySession, incident: str, node: str) -> bool:
    """Whether it was decided before that ranks leave the node for this incident."""
    statement = select(RemediationRow.id).where(
        RemediationRow.incident_id == incident,
        RemediationRow.node == node,
        ~_DRAINS,
        RemediationRow.decided_at.is_not(None),
    )
    return session.scalar(statement.limit(1)) is not None


def is_migrating(session: AnySession, node: str) -> bool:
    """Whether a job is moving ranks off the node: until it reports the end, their slots there may be needed."""
    accepted = JobRequestRow.state == RequestState.ACCEPTED.value
    return session.scalar(select(JobRequestRow.id).where(JobRequestRow.node == node, accepted).limit(1)) is not None


def unfit(session: AnySession, nodes: Collection[str]) -> frozenset[str | None]:
    """Nodes that may get no rank: those of ``nodes`` that are not healthy, and all that a finding wants empty.

    A node without a daemon has no row: what its job says of it counts.
    """
    states = select(NodeRow.name).where(NodeRow.name.in_(nodes), NodeRow.state != HealthState.HEALTHY.value)
    evicting = select(FindingRow.node).where(FindingRow.active, FindingRow.recommended_action.in_(_EVICTING))
    return frozenset((*session.scalars(states), *session.scalars(evicting.order_by(FindingRow.time))))


def latest_of(session: AnySession, incident: str, node: str) -> RemediationRow | None:
    """The newest of an incident and node: all but the newest are over."""
    statement = select(RemediationRow).where(RemediationRow.incident_id == incident, RemediationRow.node == node)
    order = (RemediationRow.created_at.desc(), RemediationRow.id.desc())
    return session.scalars(statement.order_by(*order).limit(1)).one_or_none()


def done_before(
    session: AnySession, *, node: str, device: str | None, hardware: str | None, since: float
) -> list[RemediationRow]:
    """Remedies of the same thing that were verified after ``since``, oldest first."""
    same: ColumnElement[bool] = and_(
        RemediationRow.node == node,
        RemediationRow.device.is_(None) if device is None else RemediationRow.device == device,
        # A place is only as good as a serial number: another card may sit there by now.
        true() if hardware is None else RemediationRow.hardware.is_(None),
    )
    if hardware is not None:
        same = or_(same, RemediationRow.hardware == hardware)
    statement = select(RemediationRow).where(
        same, _DRAINS, RemediationRow.state == RemediationState.DONE.value, RemediationRow.ended_at >= since
    )
    return list(session.scalars(statement.order_by(RemediationRow.ended_at, RemediationRow.id)))


def hardware_of(session: AnySession, node: str, device: str | None) -> str | None:
    row = None if device is None else session.get(DeviceRow, (node, device))
    return None if row is None else row.hardware


def draining(session: AnySession) -> list[NodeRow]:
    statement = select(NodeRow).where(NodeRow.state == HealthState.DRAINING.value)
    return list(session.scalars(statement.order_by(NodeRow.name)))


def count_by_state(session: AnySession) -> dict[str, int]:
    """How many remediations are in each state; states without are absent."""
    rows = session.execute(select(RemediationRow.state, func.count()).group_by(RemediationRow.state))
    return {state: count for state, count in rows}  # noqa: C416 - rows are not tuples to a type checker
