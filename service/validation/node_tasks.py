"""Tasks of a node: validations to run, and validations to cancel.

Invariant: an order is handed out until something comes of it. The node knows an order by its id, one an attempt, so
that one which is delivered twice does no harm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import and_, false, or_, select

from mainstay.detectors.validation.verdict import Criteria
from mainstay.service.common.db import AnySession, WriteSession
from mainstay.service.common.rows import compare_and_set
from mainstay.service.criteria import store as criteria_store
from mainstay.service.fleet.service import require_node
from mainstay.service.localization import service as localization_service
from mainstay.service.settings import Settings
from mainstay.service.validation import limits, service
from mainstay.service.validation.cohorts import cohort_of
from mainstay.service.validation.models import ValidationRow, ValidationState
from mainstay.service.validation.schemas import ValidationProgressCreate, ValidationTaskRead

REDELIVER_SECONDS: Final = 30.0
"""A node that asks again so long after an order never got it, or was restarted and forgot."""
RETELL_SECONDS: Final = 2.0
"""The same for cancellations: a waiting client is promised the node within 5 s."""

_AT_WORK: Final = (ValidationState.TAKEN.value, ValidationState.RUNNING.value)


def _to_run(now: float) -> Any:
    queued = and_(
        ValidationRow.state == ValidationState.QUEUED,
        ValidationRow.held == false(),
        or_(ValidationRow.not_before_at.is_(None), ValidationRow.not_before_at <= now),
    )
    lost = ValidationRow.state.in_(_AT_WORK) & (ValidationRow.taken_at <= now - REDELIVER_SECONDS)
    return and_(ValidationRow.cancelled_at.is_(None), ValidationRow.deadline_at > now, or_(queued, lost))


def _to_end(now: float) -> Any:
    untold = or_(ValidationRow.cancel_told_at.is_(None), ValidationRow.cancel_told_at <= now - RETELL_SECONDS)
    return and_(ValidationRow.cancelled_at.is_not(None), ValidationRow.state.in_(_AT_WORK), untold)


def nodes_with_orders(session: AnySession, nodes: Sequence[str], now: float) -> set[str]:
    """Which of the nodes have an order, of a validation or of a pair: two queries for all that wait."""
    statement = (
        select(ValidationRow.node)
        .distinct()
        .where(service.IS_PENDING, ValidationRow.node.in_(nodes), or_(_to_run(now), _to_end(now)))
    )
    return set(session.scalars(statement)) | localization_service.nodes_with_orders(session, nodes, now)


def claim_tasks(
    session: WriteSession, node: str, jobs: Mapping[str, Sequence[str]], *, now: float, settings: Settings
) -> list[ValidationTaskRead]:
    """Hand the node its orders, what is to end first, then the oldest; they are its own from now on.

    What would disturb one of ``jobs`` (``Occupancy.by_node``) is held instead: the job may have begun after the order.
    """
    ending = select(ValidationRow).where(ValidationRow.node == node, _to_end(now)).order_by(ValidationRow.cancelled_at)
    ended = list(session.scalars(ending.limit(100)))
    for row in ended:
        row.cancel_told_at = now
    running = select(ValidationRow).where(ValidationRow.node == node, _to_run(now)).order_by(ValidationRow.created_at)
    begun: list[ValidationRow] = []
    for row in session.scalars(running.limit(10)):
        why = limits.occupied_reason(row, jobs)
        if why and row.state == ValidationState.QUEUED:
            limits.wait_for_job(session, row, why, now=now, settings=settings)
            continue
        row.taken_at = now
        if not why:  # one that the node lost does not begin again beside a job
            begun.append(row)
        if row.state == ValidationState.QUEUED:
            row.state, row.reason = ValidationState.TAKEN.value, "the node has the order"
            service.publish(session, row)
    known = _criteria(session, node) if any(row.remeasure for row in begun) else None
    return [
        *(_read(row, "cancel") for row in ended),
        *(_read(row, "validate", known if row.remeasure else None) for row in begun),
    ]


def _criteria(session: AnySession, node: str) -> dict[str, Any]:
    """Return the criteria with which the node recognizes failures, as the service will evaluate them."""
    cohort = cohort_of(session, require_node(session, node))
    known = Criteria(criteria=tuple(criteria_store.of_cohort(session, cohort)), judge_as=cohort)
    told: dict[str, Any] = msgspec.to_builtins(known)
    return told


def _read(row: ValidationRow, kind: Any, known: dict[str, Any] | None = None) -> ValidationTaskRead:
    return ValidationTaskRead(
        id=f"{row.id}.{row.attempt}",
        kind=kind,
        suite=row.suite,
        benchmarks=row.benchmarks or [],
        validation_id=row.id,
        deadline_at=row.deadline_at,
        reason=row.cancel_reason,
        remeasure=row.remeasure,
        criteria=known,
    )


def progress(session: WriteSession, row: ValidationRow, body: ValidationProgressCreate, *, now: float) -> None:
    """Store the progress of a running validation; ignore it for one that has ended."""
    told = {"state": ValidationState.RUNNING.value, "progress": body.model_dump(mode="json"), "taken_at": now}
    if not compare_and_set(session, row, ValidationRow.state.in_(_AT_WORK), reread=False, **told):
        return
    row.started_at = row.started_at or now
    row.reason = f"{body.index} of {body.total} done, {body.benchmark} on {body.device}"
    service.publish(session, row)


def cancel(session: WriteSession, row: ValidationRow, reason: str, *, now: float, settings: Settings) -> ValidationRow:
    """Call a validation off. One that no node has yet ends at once; one that runs, with what it measured until then.

    Repeated cancellation changes nothing, and a validation that has ended stays as it is.
    """
    unchanged = (service.IS_PENDING, ValidationRow.cancelled_at.is_(None))
    if not compare_and_set(session, row, *unchanged, cancelled_at=now, cancel_reason=reason):
        return row
    if row.state == ValidationState.QUEUED:
        why = f"cancelled before it began: {reason}"
        service.end_unmeasured(session, row, ValidationState.DONE, why, now=now, settings=settings)
    else:
        row.reason = f"cancelled: {reason}"
        service.publish(session, row)
    return row


def preempt(
    session: WriteSession, nodes: Sequence[str], reason: str, *, now: float, settings: Settings
) -> list[ValidationRow]:
    """Cancel all pending validations on these nodes."""
    statement = select(ValidationRow).where(
        ValidationRow.node.in_(nodes), service.IS_PENDING, ValidationRow.cancelled_at.is_(None)
    )
    rows = list(session.scalars(statement.order_by(ValidationRow.created_at)))
    return [cancel(session, row, reason, now=now, settings=settings) for row in rows]
