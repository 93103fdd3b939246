"""Sweeps: a suite over many nodes, again and again.

``next_run_at`` is a precomputed deadline. A run is claimed by compare-and-set on it, so two beats start one run; a run
is a row before it is a task, so a lost task is sent again; and a sweep never overtakes itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import func, select, update
from sqlalchemy.exc import IntegrityError

from mainstay.probes.core_types import Verdict
from mainstay.probes.ids import uuid7
from mainstay.service.common.db import AnySession, WriteSession
from mainstay.service.common.problem import ConflictError, NotFoundError, UnprocessableError
from mainstay.service.common.rows import compare_and_set, require_row
from mainstay.service.fleet.models import NodeRow
from mainstay.service.fleet.node_selection import select_nodes
from mainstay.service.fleet.service import require_nodes
from mainstay.service.settings import Settings
from mainstay.service.stream.changes import Topic, record_change
from mainstay.service.validation import limits, service
from mainstay.service.validation.models import SweepRow, SweepRunRow, ValidationRow, ValidationState
from mainstay.service.validation.schedule import next_run
from mainstay.service.validation.schemas import SweepChange, SweepCounts, SweepCreate, SweepRead, SweepRun
from mainstay.service.validation.suites import require_part, require_suite

_SETS: Final = ("racks", "cohorts", "states")
_WHAT: Final = ("suite", "benchmarks", "nodes")
_WHEN: Final = ("schedule", "run_at", "timezone", "enabled")


class UnknownSweepError(NotFoundError):
    slug, title = "unknown-sweep", "Unknown sweep"


class NameTakenError(ConflictError):
    slug, title = "name-conflict", "Name taken"


class SweepChangedError(ConflictError):
    slug, title = "sweep-changed", "Sweep was changed"


class SweepRunningError(ConflictError):
    slug, title = "sweep-running", "Sweep is running"


def require(session: AnySession, sweep_id: str) -> SweepRow:
    """The sweep.

    Raises:
        UnknownSweepError: there is none with this id.
    """
    return require_row(session, SweepRow, sweep_id, UnknownSweepError(f"no sweep has the id {sweep_id!r}"))


def create(session: WriteSession, body: SweepCreate, *, now: float) -> SweepRow:
    """Store a sweep; its first run starts at the next scheduled time.

    Raises:
        UnknownSuiteError, UnknownBenchmarkError, UnknownNodeError: there is no such thing.
        UnprocessableError: it has a schedule and ``run_at``, or ``run_at`` is in the past.
        NameTakenError: another sweep has this name.
    """
    row = new_row(session, body, now=now)
    session.add(row)
    try:
        session.flush()
    except IntegrityError as error:
        raise NameTakenError(f"another sweep is called {body.name!r}") from error
    return row


def new_row(session: AnySession, body: SweepCreate, *, now: float) -> SweepRow:
    """The row of a sweep that is not stored yet; raises as ``create`` does."""
    told = body.model_dump()
    _check(session, told)
    due = next_runs(told, now, most=1) if body.enabled else []
    return SweepRow(id=uuid7(), **_columns(told), created_at=now, next_run_at=next(iter(due), None))


def _check(session: AnySession, told: Mapping[str, Any]) -> None:
    require_part(require_suite(told["suite"]), told["benchmarks"])
    require_nodes(session, told["nodes"] or ())
    if told["schedule"] is not None and told["run_at"] is not None:
        raise UnprocessableError("body.run_at: a sweep runs by schedule or once. Send null for one of the two")


def _columns(told: Mapping[str, Any]) -> dict[str, Any]:
    """The sent fields as the row has them: lists in order, without duplicates."""
    lists: dict[str, Any] = {name: sorted(set(told[name])) for name in ("nodes", *_SETS) if told.get(name) is not None}
    if "cohorts" in lists:
        lists["cohort"] = lists["cohorts"][0] if len(lists["cohorts"]) == 1 else None
    return {**told, **lists}


def next_runs(fields: Mapping[str, Any], now: float, most: int) -> list[float]:
    """The next times at which a sweep with these fields runs, Unix seconds.

    Raises:
        UnprocessableError: ``run_at`` is in the past.
    """
    schedule, once = fields["schedule"], fields["run_at"]
    if once is not None:
        if once <= now:
            raise UnprocessableError("body.run_at: this time is in the past. Send a later one")
        return [once]
    found: list[float] = []
    while schedule is not None and len(found) < most:
        found.append(next_run(schedule, found[-1] if found else now, fields["timezone"]))
    return found


def change(session: WriteSession, sweep_id: str, body: SweepChange, *, now: float) -> SweepRow:
    """Change the sent fields, if the sweep is still the version that was read; an active run stays as it is.

    Raises:
        UnknownSweepError, UnknownSuiteError, UnknownBenchmarkError, UnknownNodeError: there is no such thing.
        SweepChangedError: another request changed it since.
        NameTakenError: another sweep has this name.
    """
    row, told = require(session, sweep_id), _columns(body.sent_fields)
    fields = {column: told.get(column, getattr(row, column)) for column in (*_WHAT, *_WHEN)}
    if told.keys() & fields.keys():
        _check(session, fields)
    if told.keys() & set(_WHEN):
        due = next_runs(fields, now, most=1) if fields["enabled"] else []
        told["next_run_at"] = next(iter(due), None)
    told["version"] = body.version + 1
    try:
        changed = compare_and_set(session, row, SweepRow.version == body.version, reread=False, **told)
    except IntegrityError as error:
        raise NameTakenError(f"another sweep is called {body.name!r}") from error
    if not changed:
        raise SweepChangedError(f"sweep {row.name!r} is version {row.version}, not {body.version}: read it again")
    return row


def start(session: WriteSession, sweep: SweepRow, *, now: float) -> SweepRunRow:
    """Begin a run by hand.

    Raises:
        SweepRunningError: the last run has not ended.
    """
    if _unfinished(session, sweep.id):
        raise SweepRunningError(f"the last run of sweep {sweep.name!r} has not ended yet")
    sweep.last_run_at = now
    return _begin(session, sweep.id, now)


def _begin(session: WriteSession, sweep_id: str, now: float) -> SweepRunRow:
    run = SweepRunRow(id=uuid7(), sweep_id=sweep_id, started_at=now)
    session.add(run)
    session.flush()
    return run


def _unfinished(session: AnySession, sweep_id: str) -> bool:
    statement = select(SweepRunRow.id).where(SweepRunRow.sweep_id == sweep_id, SweepRunRow.finished_at.is_(None))
    return session.scalar(statement.limit(1)) is not None


def claim_due(session: WriteSession, *, now: float) -> list[str]:
    """Start a run of each sweep that is due and not still running; ids of the runs."""
    statement = select(SweepRow).where(SweepRow.next_run_at <= now, SweepRow.enabled).order_by(SweepRow.next_run_at)
    due = list(session.scalars(statement.limit(100)))
    claimed = [sweep.id for sweep in due if _claim(session, sweep, now) and not _unfinished(session, sweep.id)]
    return [_begin(session, sweep_id, now).id for sweep_id in claimed]


def _claim(session: WriteSession, sweep: SweepRow, now: float) -> bool:
    """Advance the deadline, if no other process did since it was read."""
    due = SweepRow.next_run_at == sweep.next_run_at
    following = None if sweep.schedule is None else next_run(sweep.schedule, now, sweep.timezone)
    return compare_and_set(session, sweep, due, next_run_at=following, last_run_at=now)


def waiting_runs(session: AnySession) -> list[str]:
    """Runs without their validations: just begun, or their task was lost. Sending one twice does no harm."""
    statement = select(SweepRunRow.id).where(SweepRunRow.fanned_out_at.is_(None)).order_by(SweepRunRow.started_at)
    return list(session.scalars(statement.limit(100)))


def fan_out(
    session: WriteSession, run_id: str, jobs: Mapping[str, Sequence[str]], *, now: float, settings: Settings
) -> int:
    """Order a validation on each node of a run; how many. A second call finds the run claimed and does nothing.

    All are held; those go at once that the limits and ``jobs`` (``Occupancy.by_node``) allow.
    """
    run = session.get(SweepRunRow, run_id)
    if run is None or not compare_and_set(session, run, SweepRunRow.fanned_out_at.is_(None), fanned_out_at=now):
        return 0
    sweep = require(session, run.sweep_id)
    if sweep.cohort is not None and not sweep.cohorts:  # a service of the version before created it
        sweep.cohorts = [sweep.cohort]
    nodes = select_nodes(session.scalars(select(NodeRow).order_by(NodeRow.name)), sweep, names=sweep.nodes)
    options = service.ValidationOptions(
        benchmarks=sweep.benchmarks,
        retries=sweep.retries,
        timeout_seconds=sweep.timeout_seconds,
        remeasure=sweep.remeasure,
        held=True,
        sweep_id=sweep.id,
        run_id=run_id,
    )
    for node in nodes:
        service.order(session, settings, node=node.name, suite=sweep.suite, now=now, options=options)
    session.flush()
    limits.release(session, run_id, jobs, now=now, settings=settings)
    return len(nodes)


def finish_runs(session: WriteSession, *, now: float) -> list[str]:
    """Close runs without a pending validation; their ids."""
    pending = select(ValidationRow.run_id).where(service.IS_PENDING, ValidationRow.run_id.is_not(None))
    statement = (
        update(SweepRunRow)
        .where(
            SweepRunRow.finished_at.is_(None), SweepRunRow.fanned_out_at.is_not(None), SweepRunRow.id.not_in(pending)
        )
        .values(finished_at=now)
        .returning(SweepRunRow.id, SweepRunRow.sweep_id)
        .execution_options(synchronize_session=False)
    )
    finished = session.execute(statement).all()
    for run_id, sweep_id in finished:
        record_change(session, Topic.VALIDATION, {"id": run_id, "sweep": sweep_id, "state": "finished"})
    return [run_id for run_id, _ in finished]


def serialize_sweeps(session: AnySession, rows: Sequence[SweepRow], *, keep_runs: int) -> list[SweepRead]:
    """Sweeps with their last runs."""
    runs = _runs(session, [row.id for row in rows], keep_runs)
    counts = _counts(session, [run.id for of_sweep in runs.values() for run in of_sweep])
    return [_read(row, runs[row.id], counts) for row in rows]


def _runs(session: AnySession, sweeps: Collection[str], keep: int) -> dict[str, list[SweepRunRow]]:
    place = func.row_number().over(
        partition_by=SweepRunRow.sweep_id, order_by=(SweepRunRow.started_at.desc(), SweepRunRow.id.desc())
    )
    ranked = select(SweepRunRow.id, place.label("place")).where(SweepRunRow.sweep_id.in_(sweeps)).subquery()
    statement = (
        select(SweepRunRow)
        .join(ranked, ranked.c.id == SweepRunRow.id)
        .where(ranked.c.place <= keep)
        .order_by(SweepRunRow.started_at.desc(), SweepRunRow.id.desc())
    )
    found: dict[str, list[SweepRunRow]] = defaultdict(list)
    for run in session.scalars(statement):
        found[run.sweep_id].append(run)
    return found


def _counts(session: AnySession, runs: Collection[str]) -> dict[str, dict[str, int]]:
    statement = (
        select(ValidationRow.run_id, ValidationRow.state, ValidationRow.held, ValidationRow.verdict, func.count())
        .where(ValidationRow.run_id.in_(runs))
        .group_by(ValidationRow.run_id, ValidationRow.state, ValidationRow.held, ValidationRow.verdict)
    )
    found: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for run_id, state, held, verdict, count in session.execute(statement):
        kind = "skipped" if held and state == ValidationState.EXPIRED else verdict
        found[run_id or ""]["pending" if state in service.PENDING else kind] += count
    return found


def _read(row: SweepRow, runs: Sequence[SweepRunRow], counts: dict[str, dict[str, int]]) -> SweepRead:
    return SweepRead(
        **{name: getattr(row, name) for name in SweepRead.model_fields if name != "runs"},
        runs=[
            SweepRun(id=run.id, started_at=run.started_at, finished_at=run.finished_at, counts=_count(counts[run.id]))
            for run in runs
        ],
    )


def _count(counts: dict[str, int]) -> SweepCounts:
    return SweepCounts(
        passed=counts.get(Verdict.PASS, 0),
        warn=counts.get(Verdict.WARN, 0),
        fail=counts.get(Verdict.FAIL, 0),
        unknown=counts.get(Verdict.UNKNOWN, 0),
        skipped=counts.get("skipped", 0),
        pending=counts.get("pending", 0),
    )
