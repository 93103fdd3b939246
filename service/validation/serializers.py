"""Validations as answered."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Final

from sqlalchemy import select

from mainstay.service.common.db import AnySession
from mainstay.service.validation.models import ResultRow, ValidationRow
from mainstay.service.validation.schemas import (
    ValidationRead,
    ValidationResult,
)

_OWN: Final = frozenset({"sweep", "run", "results"})
"""Fields of an answer that its row does not have under the same name."""


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
        **{name: getattr(row, name) for name in ValidationRead.model_fields if name not in _OWN},
        sweep=row.sweep_id,
        run=row.run_id,
        results=[ValidationResult.model_validate(result) for result in results],
    )
