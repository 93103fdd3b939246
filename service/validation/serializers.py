"""Validations as answered."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from sqlalchemy import select

from mainstay.probes.core_types import Verdict
from mainstay.service.common.db import AnySession
from mainstay.service.validation.models import ResultRow, ValidationRow
from mainstay.service.validation.schemas import (
    ValidationProgressRead,
    ValidationRead,
    ValidationResult,
    ValidationState,
)


def serialize_validations(
    session: AnySession, rows: Sequence[ValidationRow], *, with_results: bool = True
) -> list[ValidationRead]:
    """Validations, with their results on request; one further query in total."""
    results = _results(session, [row.id for row in rows] if with_results else [])
    return [_read(row, results[row.id]) for row in rows]


def _results(session: AnySession, ids: Collection[str]) -> dict[str, list[ResultRow]]:
    statement = select(ResultRow).where(ResultRow.validation_id.in_(ids)).order_by(ResultRow.position)
    found: dict[str, list[ResultRow]] = defaultdict(list)
    for row in session.scalars(statement):
        found[row.validation_id].append(row)
    return found


def _read(row: ValidationRow, results: Sequence[ResultRow]) -> ValidationRead:
    return ValidationRead(
        id=row.id,
        node=row.node,
        suite=row.suite,
        benchmarks=row.benchmarks,
        sweep=row.sweep_id,
        run=row.run_id,
        held=row.held,
        attempt=row.attempt,
        remeasure=row.remeasure,
        progress=None if row.progress is None else ValidationProgressRead.model_validate(row.progress),
        cancelled_at=row.cancelled_at,
        state=ValidationState(row.state),
        verdict=Verdict(row.verdict),
        reason=row.reason,
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        results=[ValidationResult.model_validate(result) for result in results],
    )
