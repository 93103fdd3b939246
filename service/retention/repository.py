"""Forgetting what is over, a bounded number of rows at a time. What is active, or waits, is never touched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, and_, delete, or_, select
from sqlalchemy.orm import InstrumentedAttribute

from mainstay.recovery.migration_request import OPEN
from mainstay.service.check_selection.models import SelectionRow
from mainstay.service.common.db import WriteSession
from mainstay.service.events.models import EventRow
from mainstay.service.fleet.models import NodeRow, TransitionRow
from mainstay.service.incidents.lifecycle import IncidentState
from mainstay.service.incidents.models import ActionRow, FindingRow, IncidentRow, PlanRow, TimelineRow
from mainstay.service.jobs.models import JobRow, MigrationRequestRow, RecoveryRow
from mainstay.service.localization.models import LocalizationRow
from mainstay.service.remediation.models import RemediationRow
from mainstay.service.remediation.schemas import UNDECIDED, RemediationState
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


def validations(session: WriteSession, before: float, limit: int) -> int:
    """Finished validations with their results, but for the one that gave a node its current verdict."""
    current = select(NodeVerdictRow.validation_id)
    chosen = select(ValidationRow.id).where(
        ValidationRow.created_at < before, ~IS_PENDING, ValidationRow.id.not_in(current)
    )
    return _delete(session, ValidationRow.id, chosen.order_by(ValidationRow.created_at).limit(limit))


def sweep_runs(session: WriteSession, before: float, limit: int) -> int:
    """Finished runs of sweeps none of whose validations is left."""
    left = select(ValidationRow.id).where(ValidationRow.run_id == SweepRunRow.id).exists()
    chosen = select(SweepRunRow.id).where(SweepRunRow.finished_at < before, ~left)
    return _delete(session, SweepRunRow.id, chosen.order_by(SweepRunRow.started_at).limit(limit))


def localizations(session: WriteSession, before: float, limit: int) -> int:
    """Finished localizations with their measurements."""
    chosen = select(LocalizationRow.id).where(LocalizationRow.finished_at < before)
    return _delete(session, LocalizationRow.id, chosen.order_by(LocalizationRow.created_at).limit(limit))


def selections(session: WriteSession, before: float, limit: int) -> int:
    """Which checks were chosen for which nodes, and why."""
    chosen = select(SelectionRow.id).where(SelectionRow.created_at < before)
    return _delete(session, SelectionRow.id, chosen.order_by(SelectionRow.created_at).limit(limit))


def recoveries(session: WriteSession, before: float, limit: int) -> int:
    """Ended recoveries of jobs; the last ones of a job that runs, too."""
    chosen = select(RecoveryRow.id).where(RecoveryRow.failed_at < before, RecoveryRow.outcome != "recovering")
    return _delete(session, RecoveryRow.id, chosen.order_by(RecoveryRow.failed_at).limit(limit))


def migration_requests(session: WriteSession, before: float, limit: int) -> int:
    """Answered requests to move ranks."""
    table = MigrationRequestRow
    chosen = select(table.id).where(table.updated_at < before, table.state.not_in(state.value for state in OPEN))
    return _delete(session, table.id, chosen.order_by(table.updated_at).limit(limit))


def jobs(session: WriteSession, before: float, limit: int) -> int:
    """Ended jobs."""
    chosen = select(JobRow.id).where(JobRow.finished_at < before)
    return _delete(session, JobRow.id, chosen.order_by(JobRow.started_at).limit(limit))


FORGET: Final[tuple[tuple[str, Forget], ...]] = (
    ("incidents", incidents),
    ("findings", findings),
    ("events", events),
    ("transitions", transitions),
)
"""After ``retention.days``. Incidents first: rows that they release can be deleted by the others."""
FORGET_HISTORY: Final[tuple[tuple[str, Forget], ...]] = (
    ("validations", validations),
    ("runs of sweeps", sweep_runs),
    ("localizations", localizations),
    ("check selections", selections),
    ("recoveries", recoveries),
    ("migration requests", migration_requests),
    ("jobs", jobs),
)
"""After ``retention.history_days``: check selection and estimates learn from them."""
