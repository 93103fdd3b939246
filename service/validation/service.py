"""A validation from order to verdict.

queued -> taken -> done, or expired when no result came in time. Invariant: a validation that does not end in measured
values judged by criteria is UNKNOWN, and each end updates the node's current verdict in the same transaction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

import msgspec
from sqlalchemy import select

from mainstay.detectors.validation import criteria as pure
from mainstay.detectors.validation.verdict import RunVerdict
from mainstay.probes.benchmarks.result import BenchmarkResult, BenchmarkState
from mainstay.probes.core_types import Verdict
from mainstay.probes.ids import uuid7
from mainstay.service.common.db import AnySession, WriteSession, is_one_of
from mainstay.service.common.problem import NotFoundError, UnprocessableError
from mainstay.service.common.rows import compare_and_set, require_row
from mainstay.service.criteria import store as criteria_store
from mainstay.service.fleet import return_to_service
from mainstay.service.fleet.service import require_node
from mainstay.service.incidents import node_suspicion
from mainstay.service.settings import Settings
from mainstay.service.stream.changes import Topic, record_change
from mainstay.service.validation import validation_findings
from mainstay.service.validation.cohorts import cohort_of
from mainstay.service.validation.latch import Latch, latched
from mainstay.service.validation.models import NodeVerdictRow, ResultRow, SweepRow, ValidationRow, ValidationState
from mainstay.service.validation.schemas import ResultsIn
from mainstay.service.validation.suites import expected_benchmarks, require_part, require_suite, seconds_for

PENDING: Final = (ValidationState.QUEUED.value, ValidationState.TAKEN.value, ValidationState.RUNNING.value)
IS_PENDING: Final = is_one_of(ValidationRow.state, PENDING)
RETRY_SECONDS: Final = 30.0
"""Before the first further attempt; twice as long before each one after it."""


class UnknownValidationError(NotFoundError):
    slug, title = "unknown-validation", "Unknown validation"


class WrongSuiteError(UnprocessableError):
    slug, title = "wrong-suite", "Results of another suite"


def require(session: AnySession, validation_id: str) -> ValidationRow:
    """The validation.

    Raises:
        UnknownValidationError: there is none with this id.
    """
    missing = UnknownValidationError(f"no validation has the id {validation_id!r}")
    return require_row(session, ValidationRow, validation_id, missing)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationOptions:
    """What is wanted of a validation beside node and suite."""

    benchmarks: Sequence[str] | None = None
    """A part of the suite; None: all of it."""
    retries: int = 0
    timeout_seconds: float | None = None
    remeasure: int = 0
    """How often the node measures again what failed, before it is taken for failed."""
    held: bool = False
    allow_occupied: bool = False
    """Run even if a job runs on the node."""
    sweep_id: str | None = None
    run_id: str | None = None


def order(
    session: WriteSession,
    settings: Settings,
    *,
    node: str,
    suite: str,
    now: float,
    options: ValidationOptions | None = None,
) -> ValidationRow:
    """Order a validation: the node fetches it by long poll.

    Raises:
        UnknownNodeError, UnknownSuiteError, UnknownBenchmarkError: there is no such thing.
    """
    options = options or ValidationOptions()
    require_node(session, node)
    require_part(require_suite(suite), options.benchmarks)
    wanted = asdict(options)
    if options.benchmarks is not None:
        wanted["benchmarks"] = sorted(set(options.benchmarks))
    row = ValidationRow(
        id=uuid7(),
        node=node,
        suite=suite,
        **wanted,
        state=ValidationState.QUEUED.value,
        verdict=Verdict.UNKNOWN.value,
        reason="waiting for others of its run" if options.held else "waiting for the node to fetch the task",
        attempt=1,
        created_at=now,
    )
    set_deadline(session, row, settings, now=now)
    session.add(row)
    publish(session, row)
    return row


def set_deadline(session: AnySession, row: ValidationRow, settings: Settings, *, now: float) -> None:
    """It counts from now: called when the order may be fetched for the first time, or again.

    One that is held waits for a job until its sweep is due again, and for ``occupied_wait_hours`` at most.
    """
    if row.held:
        sweep = None if row.sweep_id is None else session.get(SweepRow, row.sweep_id)
        due = math.inf if sweep is None or sweep.next_run_at is None else sweep.next_run_at
        row.deadline_at = min(due, row.created_at + settings.validation.occupied_wait_hours * 3600.0)
        return
    once = seconds_for(require_suite(row.suite), row.benchmarks, settings.validation)
    by_suite = once * (1 + row.remeasure)  # all of it may have to be measured again
    row.deadline_at = now + (by_suite if row.timeout_seconds is None else row.timeout_seconds)


def publish(session: WriteSession, row: ValidationRow) -> None:
    """Let everybody who watches know where the validation stands."""
    told = {"id": row.id, "node": row.node, "state": row.state, "verdict": row.verdict, "sweep": row.sweep_id}
    record_change(session, Topic.VALIDATION, told)


def store_results(
    session: WriteSession, row: ValidationRow, body: ResultsIn, *, now: float, settings: Settings
) -> ValidationRow:
    """Judge and store results; a validation that is done already keeps its first.

    Where nothing at all was measured and attempts are left it is queued again.

    Raises:
        WrongSuiteError, UnprocessableError: the results are not of this order, or end before they begin.
    """
    if body.suite != row.suite:
        raise WrongSuiteError(f"validation {row.id} is of suite {row.suite!r}, the results are of {body.suite!r}")
    if body.finished_at < body.started_at:
        raise UnprocessableError("finished_at is before started_at")
    if not any(benchmark.state is BenchmarkState.OK for benchmark in body.benchmarks) and _again(
        session, row, body.error or "nothing was measured", now=now, settings=settings
    ):
        return row
    if not _claim(session, row):
        return row
    node = require_node(session, row.node)
    results = msgspec.convert([b.model_dump(mode="json") for b in body.benchmarks], tuple[BenchmarkResult, ...])
    cohort = cohort_of(session, node)
    judged = pure.judge(
        results,
        criteria_store.of_cohort(session, cohort),
        cohort=cohort,
        expected=expected_benchmarks(row.suite, row.benchmarks),
    )
    repeated = ", ".join(dict.fromkeys(one.benchmark for one in results if one.remeasured))
    reason = f"{judged.reason}; measured again: {repeated}" if repeated else judged.reason
    row.verdict, row.reason = judged.verdict.value, reason
    if body.error is not None:
        row.verdict = pure.worst((judged.verdict, Verdict.UNKNOWN)).value
        row.reason = f"{body.error} ({reason})"
    row.started_at, row.finished_at = body.started_at, body.finished_at
    session.add_all(_results(row, cohort, results, judged))
    _end(session, row, now=now, settings=settings, judged=judged)
    return row


def _again(session: WriteSession, row: ValidationRow, why: str, *, now: float, settings: Settings) -> bool:
    """Queue a validation once more, if a retry is left and it was not cancelled."""
    unchanged = (
        IS_PENDING,
        ValidationRow.attempt == row.attempt,
        ValidationRow.attempt <= ValidationRow.retries,
        ValidationRow.cancelled_at.is_(None),
    )
    queued = ValidationState.QUEUED.value
    if not compare_and_set(session, row, *unchanged, state=queued, attempt=ValidationRow.attempt + 1):
        return False
    pause = RETRY_SECONDS * 2 ** (row.attempt - 2)
    row.not_before_at, row.taken_at, row.progress = now + pause, None, None
    row.reason = f"attempt {row.attempt} of {row.retries + 1} in {pause:.0f} s, as nothing was measured: {why}"
    set_deadline(session, row, settings, now=now + pause)
    publish(session, row)
    return True


def _claim(session: WriteSession, row: ValidationRow) -> bool:
    """Compare-and-set: only the first result counts. A late one still beats an expiry: it is a measurement."""
    return compare_and_set(session, row, ValidationRow.state != ValidationState.DONE, state=ValidationState.DONE.value)


def _results(
    row: ValidationRow, cohort: str, results: Sequence[BenchmarkResult], judged: RunVerdict
) -> list[ResultRow]:
    measured = {(r.benchmark, r.device, m.name): (m, r.digest) for r in results for m in r.metrics}
    again = {(r.benchmark, r.device): r.remeasured for r in results}
    rows: list[ResultRow] = []
    for position, verdict in enumerate(judged.verdicts):
        metric, digest = measured.get((verdict.benchmark, verdict.device, verdict.metric), (None, None))
        limits = verdict.criterion
        rows.append(
            ResultRow(
                id=uuid7(),
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
                remeasured=again.get((verdict.benchmark, verdict.device), 0),
            )
        )
    return rows


def _end(
    session: WriteSession,
    row: ValidationRow,
    *,
    now: float,
    settings: Settings,
    judged: RunVerdict | None = None,
) -> None:
    """What follows from an end, however it came. One that was held to the end says nothing of its node."""
    if judged is not None or not row.held:
        _latch(session, row, now)
    publish(session, row)
    session.flush()
    validation_findings.ended(session, row, judged, now=now, settings=settings)
    return_to_service.ended(session, row, now=now, settings=settings)
    node_suspicion.reconsider(
        session, [row.node], now=now, heartbeat_timeout_seconds=settings.fleet.heartbeat_timeout_seconds
    )


def _latch(session: WriteSession, row: ValidationRow, now: float) -> None:
    session.flush()
    current_verdict = session.get(NodeVerdictRow, row.node, with_for_update=True)
    before = None if current_verdict is None else Latch(Verdict(current_verdict.verdict), current_verdict.power)
    after = latched(before, Verdict(row.verdict), row.suite, whole=row.benchmarks is None)
    if current_verdict is None:
        current_verdict = NodeVerdictRow(node=row.node)
        session.add(current_verdict)
    if before is None or after != before or row.verdict == after.verdict:
        current_verdict.suite, current_verdict.validation_id, current_verdict.at = row.suite, row.id, now
    current_verdict.verdict, current_verdict.power = after.verdict.value, after.power
    record_change(session, Topic.NODE, {"id": row.node, "reason": "validated"})


def expire(session: WriteSession, *, now: float, settings: Settings) -> list[str]:
    """End what is past its deadline: UNKNOWN, never PASS. Returns the validations' ids."""
    statement = select(ValidationRow).where(IS_PENDING, ~ValidationRow.held, ValidationRow.deadline_at <= now)
    expired: list[str] = []
    for row in session.scalars(statement.order_by(ValidationRow.deadline_at).limit(500)):
        fetched = row.state != ValidationState.QUEUED
        why = (
            "the node took the order but sent no result before the deadline"
            if fetched
            else "the node did not fetch the task before the deadline"
        )
        if not _again(session, row, why, now=now, settings=settings) and end_unmeasured(
            session, row, ValidationState.EXPIRED, why, now=now, settings=settings
        ):
            expired.append(row.id)
    return expired


def end_unmeasured(
    session: WriteSession, row: ValidationRow, state: ValidationState, why: str, *, now: float, settings: Settings
) -> bool:
    """End a pending validation that measured nothing: UNKNOWN. False if it has ended meanwhile."""
    if not compare_and_set(session, row, ValidationRow.state == row.state, state=state.value):
        return False
    row.verdict, row.reason, row.finished_at = Verdict.UNKNOWN.value, why, now
    _end(session, row, now=now, settings=settings)
    return True
