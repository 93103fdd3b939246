"""Forgetting what is over, a bounded number of rows at a time. What is active, or waits, is never touched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, and_, delete, or_, select
from sqlalchemy.orm import InstrumentedAttribute

from mainstay.recovery.job_request import OPEN
from mainstay.service.check_selection.models import SelectionRow
from mainstay.service.common.db import WriteSession
from mainstay.service.events.models import EventRow
from mainstay.service.fleet.models import NodeRow, TransitionRow
from mainstay.service.incidents.lifecycle import IncidentState
from mainstay.service.incidents.models import ActionRow, FindingRow, IncidentRow, PlanRow, RunPaceRow, TimelineRow
from mainstay.service.jobs.models import JobRequestRow, JobRow, RecoveryRow
from mainstay.service.localization.models import LocalizationRow
from mainstay.service.notifications.models import NotificationGroupRow, NotificationRow
from mainstay.service.remediation.models import RemediationRow
from mainstay.service.remediation.schemas import UNDECIDED, RemediationState
from mainstay.service.silences.models import SilenceRow
from mainstay.service.validation.models import NodeVerdictRow, SweepRunRow, ValidationRow
from mainstay.service.validation.service import IS_PENDING

_OPEN: Final = (*(state.value for state in UNDECIDED), RemediationState.ACCEPTED.value)
Forget = Callable[[WriteSession, float, int], int]


def _delete(session: WriteSession, id_: InstrumentedAttribute[str], ids: Select[str]) -> int:
    """Delete the rows with these ids; how many."""
    found = list(session.scalars(ids))
    if found:
        session.execute(delete(id_.class_).where(id_.in_(found)).execution_options(synchronize_session=False))
    return len(found)


def incidents(session: WriteSession, before: float, limit: int) -> int:
    """Closed incidents with everything that hangs on them, unless something of it is active after all."""
    active = select(FindingRow.incident_id).where(FindingRow.active, FindingRow.incident_id.is_not(None))
    waiting = select(RemediationRow.incident_id).where(RemediationRow.state.in_(_OPEN))
    over = and_(IncidentRow.state == IncidentState.CLOSED.value, IncidentRow.closed_at < before)
    chosen = select(IncidentRow.id).where(over, IncidentRow.id.not_in(active), IncidentRow.id.not_in(waiting))
    ids = list(session.scalars(chosen.order_by(IncidentRow.closed_at).limit(limit)))
    if ids:
        tables: tuple[Any, ...] = (TimelineRow, ActionRow, PlanRow, FindingRow, RemediationRow)
        for table in tables:
            _bulk(session, table, table.incident_id.in_(ids))
        _bulk(session, IncidentRow, IncidentRow.id.in_(ids))
    return len(ids)


def _bulk(session: WriteSession, table: Any, condition: ColumnElement[bool]) -> None:
    session.execute(delete(table).where(condition).execution_options(synchronize_session=False))


def findings(session: WriteSession, before: float, limit: int) -> int:
    """Findings that opened nothing and no longer hold."""
    over = or_(FindingRow.cleared_at < before, and_(FindingRow.cleared_at.is_(None), FindingRow.time < before))
    chosen = select(FindingRow.id).where(~FindingRow.active, FindingRow.incident_id.is_(None), over)
    return _delete(session, FindingRow.id, chosen.order_by(FindingRow.time).limit(limit))


def events(session: WriteSession, before: float, limit: int) -> int:
    """Judged events that no finding of a kept incident, and none that holds, points at."""
    cited = select(FindingRow.event_id).where(
        FindingRow.event_id.is_not(None), or_(FindingRow.active, FindingRow.incident_id.is_not(None))
    )
    chosen = select(EventRow.id).where(
        EventRow.time < before,
        EventRow.received_at < before,
        EventRow.judged_at.is_not(None),
        EventRow.id.not_in(cited),
    )
    return _delete(session, EventRow.id, chosen.order_by(EventRow.time).limit(limit))


def transitions(session: WriteSession, before: float, limit: int) -> int:
    """Moves of nodes, but for the one that put a node where it is."""
    chosen = (
        select(TransitionRow.id)
        .join(NodeRow, NodeRow.name == TransitionRow.node)
        .where(TransitionRow.time < before, TransitionRow.version < NodeRow.state_version)
    )
    return _delete(session, TransitionRow.id, chosen.order_by(TransitionRow.time).limit(limit))


def _ended(time: InstrumentedAttribute[Any], *over: ColumnElement[bool]) -> Forget:
    """Return what forgets rows by one of their times, oldest first, if all of ``over`` is true of them."""
    id_: InstrumentedAttribute[str] = time.class_.id

    def forget(session: WriteSession, before: float, limit: int) -> int:
        return _delete(session, id_, select(id_).where(time < before, *over).order_by(time).limit(limit))

    return forget


FORGET: Final[tuple[tuple[str, Forget], ...]] = (
    ("incidents", incidents),
    ("findings", findings),
    ("events", events),
    ("transitions", transitions),
    ("notifications", _ended(NotificationRow.ended_at)),
    ("notification groups", _ended(NotificationGroupRow.resolved_at)),
    ("silences", _ended(SilenceRow.ends_at)),
)
"""After ``retention.days``. Incidents first: rows that they release can be deleted by the others."""
_CURRENT_VERDICT: Final = ValidationRow.id.in_(select(NodeVerdictRow.validation_id))
_HAS_VALIDATION: Final = select(ValidationRow.id).where(ValidationRow.run_id == SweepRunRow.id).exists()
FORGET_HISTORY: Final[tuple[tuple[str, Forget], ...]] = (
    ("validations", _ended(ValidationRow.created_at, ~IS_PENDING, ~_CURRENT_VERDICT)),
    ("runs of sweeps", _ended(SweepRunRow.finished_at, ~_HAS_VALIDATION)),
    ("localizations", _ended(LocalizationRow.finished_at)),
    ("check selections", _ended(SelectionRow.created_at)),
    ("recoveries", _ended(RecoveryRow.failed_at, RecoveryRow.outcome != "recovering")),
    ("job requests", _ended(JobRequestRow.updated_at, JobRequestRow.state.not_in(OPEN))),
    ("jobs", _ended(JobRow.finished_at)),
    ("paces of runs", _ended(RunPaceRow.measured_at)),
)
"""After ``retention.history_days``: check selection and estimates learn from them. What hangs on a row goes with it."""
