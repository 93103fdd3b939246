"""Criteria as rows. Judging and learning are ``detectors.criteria``'s; here they are only kept and lent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite

from detectors import criteria as pure
from probes.benchmarks.result import Better
from probes.words import Verdict
from service.kit.db import AnySession, WriteSession
from service.validation.models import CriterionRow, ResultRow, ValidationRow

LEARN_FROM: Final = 20_000
"""Newest results that are looked at: months of a small fleet, a day of a large one."""


def of_cohort(session: AnySession, cohort: str) -> list[pure.Criterion]:
    rows = session.scalars(select(CriterionRow).where(CriterionRow.cohort == cohort))
    return [to_criterion(row) for row in rows]


def to_criterion(row: CriterionRow) -> pure.Criterion:
    return pure.Criterion(
        benchmark=row.benchmark,
        metric=row.metric,
        cohort=row.cohort,
        better=Better(row.better),
        low=row.low,
        high=row.high,
        n=row.n,
        source=row.source,
        unit=row.unit,
        warn=row.warn,
        center=row.center,
        allowed=tuple(row.allowed),
        learned_at=row.learned_at,
    )


def store(session: WriteSession, rows: Sequence[dict[str, Any]]) -> None:
    """Insert criteria, replacing those of the same benchmark, metric and cohort."""
    if not rows:
        return
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    statement = insert(CriterionRow)
    keys = ("benchmark", "metric", "cohort")
    renewed = {name: statement.excluded[name] for name in rows[0] if name not in keys}
    session.execute(statement.on_conflict_do_update(index_elements=list(keys), set_=renewed), rows)


def learn(session: WriteSession, cohort: str | None, *, now: float) -> list[pure.Criterion]:
    """Learn from stored results, of one cohort or of all, and store what could be learned.

    A metric that failed is no example of health and is left out; stated criteria are replaced by learned ones.
    """
    learned = pure.learn(_samples(session, cohort)).criteria
    store(session, [_row(criterion, now) for criterion in learned])
    return list(learned)


def _samples(session: AnySession, cohort: str | None) -> Iterable[pure.Sample]:
    statement = (
        select(ResultRow, ValidationRow.finished_at)
        .join(ValidationRow, ValidationRow.id == ResultRow.validation_id)
        .where(ResultRow.value.is_not(None), ResultRow.verdict != Verdict.FAIL, ResultRow.cohort != "")
        .order_by(ValidationRow.created_at.desc(), ResultRow.id.desc())
        .limit(LEARN_FROM)
    )
    if cohort is not None:
        statement = statement.where(ResultRow.cohort == cohort)
    for row, finished_at in session.execute(statement):
        yield pure.Sample(
            benchmark=row.benchmark,
            metric=row.metric,
            unit=row.unit,
            better=Better(row.better),
            cohort=row.cohort,
            values=tuple(row.values),
            time=finished_at,
        )


def _row(criterion: pure.Criterion, now: float) -> dict[str, Any]:
    return {
        "benchmark": criterion.benchmark,
        "metric": criterion.metric,
        "cohort": criterion.cohort,
        "better": criterion.better.value,
        "low": criterion.low,
        "high": criterion.high,
        "unit": criterion.unit,
        "warn": criterion.warn,
        "center": criterion.center,
        "allowed": list(criterion.allowed),
        "n": criterion.n,
        "source": criterion.source,
        "learned_at": now if criterion.learned_at is None else criterion.learned_at,
    }
