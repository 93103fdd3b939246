"""Since when a node may have computed wrongly: since its bits were last seen right, not since the fault was noticed.

A bit that was wrong in a check was wrong in training before it, for as long as nothing shows the contrary. What shows
it is an earlier run of the same checks on the same node, of which the bits were right.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache

from sqlalchemy import case, func, select

from mainstay.probes.benchmarks.defects import Defect
from mainstay.probes.core_types import Verdict
from mainstay.service.common.db import AnySession
from mainstay.service.fleet.models import NodeRow
from mainstay.service.validation.models import ResultRow, ValidationRow
from mainstay.service.validation.suites import suites


@dataclass(frozen=True, slots=True)
class LastKnownGood:
    """The last time before which a node is not accused."""

    at: float
    """Unix seconds: when the run that showed right bits began, since one may flip for the first time during it."""
    shown: bool
    """False: no run proves it, and ``at`` is the time of the first report of the node."""


@cache
def _comparing() -> frozenset[str]:
    """Benchmarks that find wrong bits."""
    return frozenset(b.name for suite in suites().values() for b in suite.benchmarks if Defect.NUMERICS in b.defects)


def last_sound(
    session: AnySession, node: str, *, before: float, benchmarks: Collection[str] = ()
) -> LastKnownGood | None:
    """The newest proof of right bits that ended before ``before``; None for a node that never reported.

    Args:
        session: to read with.
        node: by name.
        before: Unix seconds.
        benchmarks: those that show wrong bits now: each must have been right; any that compares bits if empty.
    """
    wanted = _comparing() & set(benchmarks) or _comparing()
    wrong = func.sum(case((ResultRow.verdict == Verdict.PASS.value, 0), else_=1))
    compared = func.count(func.distinct(ResultRow.benchmark))
    statement = (
        select(ValidationRow.started_at, ValidationRow.taken_at, ValidationRow.created_at)
        .join(ResultRow, ResultRow.validation_id == ValidationRow.id)
        .where(ValidationRow.node == node, ValidationRow.finished_at < before)
        # Of these benchmarks only fingerprints and counts of differing bits have no unit.
        .where(ResultRow.unit == "", ResultRow.benchmark.in_(wanted))
        .group_by(ValidationRow.id, ValidationRow.started_at, ValidationRow.taken_at, ValidationRow.created_at)
        .having(wrong == 0, compared >= (len(wanted) if benchmarks else 1))
        .order_by(func.max(ValidationRow.finished_at).desc())
        .limit(1)
    )
    run = session.execute(statement).one_or_none()
    if run is not None:
        return LastKnownGood(next(float(at) for at in run if at is not None), shown=True)
    row = session.get(NodeRow, node)
    return None if row is None else LastKnownGood(min(row.first_seen_at, before), shown=False)
