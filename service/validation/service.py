"""A validation from order to verdict.

queued -> taken -> done, or expired when no result came in time. Invariant: whatever does not end in measured values
judged by criteria is UNKNOWN, and each end reaches the node's standing verdict in the same transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import or_, select, update

from detectors import criteria as pure
from probes.benchmarks.result import BenchmarkResult
from probes.words import Verdict
from service.fleet import returning
from service.fleet.service import require_node
from service.incidents import health
from service.kit.db import AnySession, WriteSession
from service.kit.ids import new_id
from service.kit.problem import NotFoundError, UnprocessableError
from service.settings import Settings
from service.stream.changes import Topic, record_change
from service.validation import criteria
from service.validation.latch import Latch, latched
from service.validation.models import NodeVerdictRow, ResultRow, ValidationRow
from service.validation.schemas import ResultsIn, ValidationState
from service.validation.suites import deadline, expected_benchmarks, require_suite

PENDING: Final = (ValidationState.QUEUED.value, ValidationState.TAKEN.value, ValidationState.RUNNING.value)
REDELIVER_SECONDS: Final = 30.0
"""A node fetches orders only when it has none left. One that asks again for so long after the last answer never got it,
or was restarted and forgot; to run a validation twice does no harm."""


class UnknownValidationError(NotFoundError):
    slug, title = "unknown-validation", "Unknown validation"


class WrongSuiteError(UnprocessableError):
    slug, title = "wrong-suite", "Results of another suite"


def require(session: AnySession, validation_id: str) -> ValidationRow:
    """The validation.

    Raises:
        UnknownValidationError: there is none with this id.
    """
    row = session.get(ValidationRow, validation_id)
    if row is None:
        raise UnknownValidationError(f"no validation has the id {validation_id!r}")
    return row


def order(
    session: WriteSession,
    settings: Settings,
    *,
    node: str,
    suite: str,
    now: float,
    sweep_id: str | None = None,
    run_id: str | None = None,
) -> ValidationRow:
    """Order a validation: the node fetches it by long poll.

    Raises:
        UnknownNodeError, UnknownSuiteError: there is no such thing.
    """
    require_node(session, node)
    row = ValidationRow(
        id=new_id(),
        node=node,
        suite=suite,
        sweep_id=sweep_id,
        run_id=run_id,
        state=ValidationState.QUEUED.value,
        verdict=Verdict.UNKNOWN.value,
        reason="waiting for the node to fetch the order",
        created_at=now,
        deadline_at=deadline(require_suite(suite), settings.validation, now=now),
    )
    session.add(row)
    _tell(session, row)
    return row


def _tell(session: WriteSession, row: ValidationRow) -> None:
    told = {"id": row.id, "node": row.node, "state": row.state, "verdict": row.verdict, "sweep": row.sweep_id}
    record_change(session, Topic.VALIDATION, told)


def _waiting(node: str, now: float) -> Any:
    queued = ValidationRow.state == ValidationState.QUEUED
    lost = (ValidationRow.state == ValidationState.TAKEN) & (ValidationRow.taken_at <= now - REDELIVER_SECONDS)
    return (ValidationRow.node == node) & (ValidationRow.deadline_at > now) & or_(queued, lost)


def has_orders(session: AnySession, node: str, now: float) -> bool:
    return session.scalar(select(ValidationRow.id).where(_waiting(node, now)).limit(1)) is not None


def nodes_with_orders(session: AnySession, nodes: Sequence[str]) -> set[str]:
    """Which of the nodes have a queued order: one query for all that wait."""
    statement = (
        select(ValidationRow.node)
        .distinct()
        .where(ValidationRow.state == ValidationState.QUEUED, ValidationRow.node.in_(nodes))
    )
    return set(session.scalars(statement))


def take_orders(session: WriteSession, node: str, *, now: float) -> list[ValidationRow]:
    """Hand the node its orders, oldest first; they are its own from now on."""
    statement = select(ValidationRow).where(_waiting(node, now)).order_by(ValidationRow.created_at).limit(10)
    rows = list(session.scalars(statement))
    for row in rows:
        row.state, row.taken_at = ValidationState.TAKEN.value, now
        row.reason = "the node has the order"
        _tell(session, row)
    return rows


def accept(
    session: WriteSession, row: ValidationRow, body: ResultsIn, *, now: float, settings: Settings
) -> ValidationRow:
    """Judge and store results; a validation that is done already keeps its first.

    Raises:
        WrongSuiteError, UnprocessableError: the results are not of this order, or end before they begin.
    """
    if body.suite != row.suite:
        raise WrongSuiteError(f"validation {row.id} is of suite {row.suite!r}, the results are of {body.suite!r}")
    if body.finished_at < body.started_at:
        raise UnprocessableError("finished_at is before started_at")
    if not _claim(session, row):
        return row
    node = require_node(session, row.node)
    results = msgspec.convert([b.model_dump(mode="json") for b in body.benchmarks], tuple[BenchmarkResult, ...])
    judged = pure.judge(
        results,
        criteria.of_cohort(session, node.cohort),
        cohort=node.cohort,
        expected=expected_benchmarks(row.suite),
    )
    row.verdict, row.reason = judged.verdict.value, judged.reason
    if body.error is not None:
        row.verdict = pure.worst((judged.verdict, Verdict.UNKNOWN)).value
        row.reason = f"{body.error} ({judged.reason})"
    row.started_at, row.finished_at = body.started_at, body.finished_at
    session.add_all(_results(row, node.cohort, results, judged))
    _end(session, row, now=now, settings=settings)
    return row


def _claim(session: WriteSession, row: ValidationRow) -> bool:
    """Compare-and-set: only the first result counts. A late one still beats an expiry: it is a measurement."""
    statement = (
        update(ValidationRow)
        .where(ValidationRow.id == row.id, ValidationRow.state != ValidationState.DONE)
        .values(state=ValidationState.DONE.value)
        .returning(ValidationRow.id)
        .execution_options(synchronize_session=False)
    )
    claimed = session.scalar(statement) is not None
    session.refresh(row)
    return claimed


def _results(
    row: ValidationRow, cohort: str, results: Sequence[BenchmarkResult], judged: pure.Judgement
) -> list[ResultRow]:
    measured = {(r.benchmark, r.device, m.name): (m, r.digest) for r in results for m in r.metrics}
    rows: list[ResultRow] = []
    for position, verdict in enumerate(judged.verdicts):
        metric, digest = measured.get((verdict.benchmark, verdict.device, verdict.metric), (None, None))
        limits = verdict.criterion
        rows.append(
            ResultRow(
                id=new_id(),
                validation_id=row.id,
                position=position,
                cohort=cohort,
                benchmark=verdict.benchmark,
                metric=verdict.metric,
                device=verdict.device,
                unit=verdict.unit,
                better=metric.better.value if metric is not None else "higher",
                values=list(metric.values) if metric is not None else [],
                value=verdict.value,
                digest=digest,
                verdict=verdict.verdict.value,
                criterion=None
                if limits is None
                else {"low": limits.low, "high": limits.high, "source": limits.source, "n": limits.n},
                reason=verdict.reason,
            )
        )
    return rows


def _end(session: WriteSession, row: ValidationRow, *, now: float, settings: Settings) -> None:
    """What follows from an end, however it came."""
    _latch(session, row, now)
    _tell(session, row)
    session.flush()
    returning.ended(session, row, now=now, settings=settings)
    health.reconsider(session, [row.node], now=now, silent_after=settings.fleet.silent_after)


def _latch(session: WriteSession, row: ValidationRow, now: float) -> None:
    session.flush()
    standing = session.get(NodeVerdictRow, row.node, with_for_update=True)
    before = None if standing is None else Latch(Verdict(standing.verdict), standing.power)
    after = latched(before, Verdict(row.verdict), row.suite)
    if standing is None:
        standing = NodeVerdictRow(node=row.node)
        session.add(standing)
    if before is None or after != before or row.verdict == after.verdict:
        standing.suite, standing.validation_id, standing.at = row.suite, row.id, now
    standing.verdict, standing.power = after.verdict.value, after.power


def standing(session: AnySession, nodes: Sequence[str]) -> dict[str, NodeVerdictRow]:
    """Node → its standing verdict; nodes never validated are absent."""
    return {row.node: row for row in session.scalars(select(NodeVerdictRow).where(NodeVerdictRow.node.in_(nodes)))}


def expire(session: WriteSession, *, now: float, settings: Settings) -> list[str]:
    """End what is past its deadline: UNKNOWN, never PASS. Returns the validations' ids."""
    statement = select(ValidationRow).where(ValidationRow.state.in_(PENDING), ValidationRow.deadline_at <= now)
    expired: list[str] = []
    for row in session.scalars(statement.order_by(ValidationRow.deadline_at).limit(500)):
        fetched = row.state != ValidationState.QUEUED
        if not _expire_one(session, row):
            continue
        row.verdict, row.finished_at = Verdict.UNKNOWN.value, now
        row.reason = (
            "the node took the order but sent no result before the deadline"
            if fetched
            else "the node did not fetch the order before the deadline"
        )
        _end(session, row, now=now, settings=settings)
        expired.append(row.id)
    return expired


def _expire_one(session: WriteSession, row: ValidationRow) -> bool:
    statement = (
        update(ValidationRow)
        .where(ValidationRow.id == row.id, ValidationRow.state == row.state)
        .values(state=ValidationState.EXPIRED.value)
        .returning(ValidationRow.id)
        .execution_options(synchronize_session=False)
    )
    done = session.scalar(statement) is not None
    session.refresh(row)
    return done
