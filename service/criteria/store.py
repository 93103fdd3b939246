"""Rows of criteria: their store. ``mainstay.detectors.validation.criteria`` learns and applies them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Select, select

from mainstay.detectors.validation.criterion_learning import MetricSample, learn_criteria
from mainstay.detectors.validation.sessions import by_time
from mainstay.detectors.validation.validator import BestLimits
from mainstay.detectors.validation.verdict import Criterion
from mainstay.probes.benchmarks.result import Better
from mainstay.probes.core_types import Verdict
from mainstay.probes.decoding import build_decoders
from mainstay.service.common.db import AnySession, WriteSession
from mainstay.service.common.problem import NotFoundError
from mainstay.service.common.rows import insert_into, require_row
from mainstay.service.criteria.schemas import CriterionDetail, CriterionRead, CriterionRun, DistributionRead
from mainstay.service.validation import cohorts
from mainstay.service.validation.models import CriterionRow, ResultRow, ValidationRow

LEARN_FROM: Final = 20_000
"""Newest results that are looked at: months of a small fleet, a day of a large one."""

SHOWN_RUNS: Final = 32
"""Newest runs that are drawn beside a criterion."""
SHOWN_VALUES: Final = 256
"""Values of each: more than a chart is wide."""


class UnknownCriterionError(NotFoundError):
    slug, title = "unknown-criterion", "Unknown criterion"


class NotMeasuredError(NotFoundError):
    slug, title = "not-measured", "Not measured in that validation"


build_decoders(Criterion)


def of_cohort(session: AnySession, cohort: str) -> list[Criterion]:
    """Return the criteria for a run of this cohort: its own, and those of its hardware where it has none."""
    own, general = (
        {(row.benchmark, row.metric): to_criterion(row) for row in _rows(session, name)}
        for name in (cohort, cohorts.hardware(cohort))
    )
    return [msgspec.structs.replace(criterion, cohort=cohort) for criterion in (general | own).values()]


def _rows(session: AnySession, cohort: str) -> Iterable[CriterionRow]:
    return session.scalars(select(CriterionRow).where(CriterionRow.cohort == cohort))


def to_criterion(row: CriterionRow) -> Criterion:
    return msgspec.convert(row, Criterion, from_attributes=True)


def store(session: WriteSession, rows: Sequence[dict[str, Any]]) -> None:
    """Insert criteria, replacing those of the same benchmark, metric and cohort."""
    if not rows:
        return
    statement = insert_into(session, CriterionRow)
    keys = ("benchmark", "metric", "cohort")
    renewed = {name: statement.excluded[name] for name in rows[0] if name not in keys}
    session.execute(statement.on_conflict_do_update(index_elements=list(keys), set_=renewed), rows)


def learn(session: WriteSession, cohort: str | None, *, now: float) -> list[dict[str, Any]]:
    """Learn from stored results, of one cohort or of all, and store what could be learned; the rows.

    A metric that failed is no example of health and is left out; stated criteria are replaced by learned ones. A metric
    that does not repeat well enough for a distribution gets robust limits. Runs of one node within an hour are one
    session: limits are to hold in the hours to come.
    """
    learned = learn_criteria(_samples(session, cohort), estimator=BestLimits).criteria
    rows = [_row(criterion, now) for criterion in learned]
    store(session, rows)
    return rows


def _samples(session: AnySession, cohort: str | None) -> Iterable[MetricSample]:
    statement = (
        select(ResultRow, ValidationRow.finished_at, ValidationRow.node)
        .join(ValidationRow, ValidationRow.id == ResultRow.validation_id)
        .where(ResultRow.value.is_not(None), ResultRow.verdict != Verdict.FAIL, ResultRow.cohort != "")
        .order_by(ValidationRow.created_at.desc(), ResultRow.id.desc())
        .limit(LEARN_FROM)
    )
    if cohort is not None:
        statement = statement.where(cohorts.within(ResultRow.cohort, cohort))
    found = session.execute(statement).all()
    stretches = by_time([node for _, _, node in found], [finished_at for _, finished_at, _ in found])
    for (row, finished_at, node), stretch in zip(found, stretches, strict=True):
        yield MetricSample(
            benchmark=row.benchmark,
            metric=row.metric,
            unit=row.unit,
            better=Better(row.better),
            cohort=row.cohort,
            values=tuple(row.values),
            time=finished_at,
            device=f"{node}/{row.device}",
            session=stretch,
        )


def _row(criterion: Criterion, now: float) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.to_builtins(criterion)
    return row | {"learned_at": now if criterion.learned_at is None else criterion.learned_at}


def detail(
    session: AnySession, *, cohort: str, benchmark: str, metric: str, validation: str | None = None
) -> CriterionDetail:
    """A criterion with what is drawn of it: its reference sample and the newest runs.

    Args:
        session: to read.
        cohort: of the criterion.
        benchmark: the same.
        metric: the same.
        validation: whose runs are to be among those drawn, however old they are.

    Raises:
        UnknownCriterionError: there is none.
        NotMeasuredError: there is no such validation, or it did not measure this.
    """
    missing = UnknownCriterionError(f"no criterion for {benchmark!r} {metric!r} of cohort {cohort!r}")
    row = require_row(session, CriterionRow, (benchmark, metric, cohort), missing)
    kept, runs = row.distribution, _runs(session, row)
    if validation is not None and all(run.validation_id != validation for run in runs):
        runs += _runs_of(session, row, validation)
    return CriterionDetail(
        **CriterionRead.model_validate(row).model_dump(),
        distribution=None if kept is None else DistributionRead.model_validate(kept),
        runs=runs,
    )


def _runs(session: AnySession, criterion: CriterionRow) -> list[CriterionRun]:
    newest = _measured(criterion).where(ResultRow.cohort == criterion.cohort)
    newest = newest.order_by(ValidationRow.created_at.desc(), ResultRow.id.desc()).limit(SHOWN_RUNS)
    return [_read(result, validation) for result, validation in session.execute(newest)]


def _runs_of(session: AnySession, criterion: CriterionRow, validation: str) -> list[CriterionRun]:
    """Return those of one validation; a criterion for the hardware alone applies to every driver."""
    asked = _measured(criterion).where(
        ValidationRow.id == validation, cohorts.within(ResultRow.cohort, criterion.cohort)
    )
    found = [_read(*both) for both in session.execute(asked.order_by(ResultRow.position))]
    if not found:
        what = f"{criterion.benchmark!r} {criterion.metric!r} of cohort {criterion.cohort!r}"
        raise NotMeasuredError(f"no validation {validation!r} measured {what}")
    return found


def _measured(criterion: CriterionRow) -> Select[ResultRow, ValidationRow]:
    return (
        select(ResultRow, ValidationRow)
        .join(ValidationRow, ValidationRow.id == ResultRow.validation_id)
        .where(ResultRow.benchmark == criterion.benchmark, ResultRow.metric == criterion.metric)
    )


def _read(result: ResultRow, validation: ValidationRow) -> CriterionRun:
    return CriterionRun(
        validation_id=validation.id,
        node=validation.node,
        device=result.device,
        verdict=Verdict(result.verdict),
        finished_at=validation.finished_at,
        values=shown(result.values),
    )


def shown(values: Iterable[float]) -> list[float]:
    """Rising; evenly chosen where there are too many, both ends among them."""
    ordered = sorted(map(float, values))
    step = max(1.0, (len(ordered) - 1) / (SHOWN_VALUES - 1))
    return [ordered[round(i * step)] for i in range(min(len(ordered), SHOWN_VALUES))]
