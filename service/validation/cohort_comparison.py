"""A cohort before and after: did an update slow all of it, or do single devices stand out?

The service's side of ``mainstay.detectors.validation.cohort_drift``: which stored runs are the earlier and which the
later ones. Between two software versions these are the runs under each; within one cohort a moment parts them. The
comparison of one node covers its devices only. Invariant: a result that could hide a slowdown of 5 % is UNKNOWN.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from sqlalchemy import Select, distinct, func, select

from mainstay.detectors.validation.cohort_drift import CohortShift, judge_change
from mainstay.detectors.validation.criterion_learning import FALSE_ALARMS
from mainstay.detectors.validation.criterion_limits import Run
from mainstay.probes.benchmarks.result import Better
from mainstay.probes.core_types import Verdict
from mainstay.service.common.db import AnySession
from mainstay.service.common.problem import NotFoundError, UnprocessableError
from mainstay.service.common.rows import equal_to
from mainstay.service.common.schemas import Output
from mainstay.service.criteria.store import shown
from mainstay.service.validation.cohorts import hardware, within
from mainstay.service.validation.models import ResultRow, ValidationRow, ValidationState
from mainstay.service.validation.node_comparison import worst_first

MOST_RESULTS: Final = 50_000
"""Newest results of each side: 500 nodes with a hundred metrics, and some seconds of one core."""
SHOWN_DEVICES: Final = 20
"""Devices of a metric that are named with their numbers, the worst first."""
Blame = Literal["update", "devices", "both"]


class NotMeasuredTwiceError(NotFoundError):
    slug, title = "nothing-to-compare", "Nothing to compare"


class SameSideError(UnprocessableError):
    slug, title = "same-selection", "Before and after are the same runs"


class DeviceShift(Output):
    node: str
    device: str
    before: float | None
    """Median of its earlier runs; null: none, as where other machines were measured before."""
    after: float | None
    worse: float | None
    """By what share it became worse; negative: better."""
    assessment: Literal["slower", "explained", "unremarkable"]
    """Slower without a known cause; slower by no more than the update explains; neither."""


class UpdateShift(Output):
    """One metric of a cohort before and after a change."""

    benchmark: str
    metric: str
    unit: str
    better: Better
    verdict: Verdict
    reason: str
    blame: Blame | None
    worse: float | None
    """The median change, as a share; negative: better."""
    worse_low: float | None
    worse_high: float | None
    """Its confidence interval; null: unbounded, too few devices for one."""
    paired: bool | None
    """The same devices were measured before and after."""
    compared: int
    """Devices that the median change is of."""
    before: list[float]
    """The median of each device before, rising, to be drawn."""
    after: list[float]
    devices: list[DeviceShift]
    """Those that were measured after, the worst first."""


class UpdateRead(Output):
    before: str
    """The cohort of the earlier runs."""
    after: str
    node: str | None
    at: float | None
    """What finished before this moment is the earlier side."""
    verdict: Verdict
    nodes_before: int
    nodes_after: int
    metrics: list[UpdateShift]
    """The worst first."""


class CohortSoftware(Output):
    """A cohort as its nodes reported it: hardware, and driver and firmware where they are known."""

    cohort: str
    hardware: str
    nodes: int
    first_at: float
    last_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSelection:
    """Which runs are compared."""

    before: str
    after: str
    node: str | None = None
    at: float | None = None
    since: float | None = None
    until: float | None = None


@dataclass(slots=True)
class _Metric:
    unit: str
    better: Better
    devices: dict[tuple[str, str], list[float]]


_Side = Mapping[tuple[str, str], _Metric]


def read(session: AnySession, sides: RunSelection) -> UpdateRead:
    """What happened between two sides.

    Raises:
        SameSideError: one cohort, and no moment that parts its runs.
        NotMeasuredTwiceError: a side has no runs.
    """
    if sides.at is None and (_overlap(sides.before, sides.after) or _overlap(sides.after, sides.before)):
        raise SameSideError(f"{sides.before!r} and {sides.after!r} are compared by a moment: give 'at'")
    early = _measured(session, sides.before, sides, until=sides.at)
    late = _measured(session, sides.after, sides, since=sides.at)
    for name, cohort, side in (("before", sides.before, early), ("after", sides.after, late)):
        if not side:
            whose = f"node {sides.node} of cohort {cohort!r}" if sides.node else f"cohort {cohort!r}"
            raise NotMeasuredTwiceError(f"{whose} was not measured {name}")
    keys = sorted(early.keys() | late.keys())
    metrics = [_shift(key, early.get(key), late.get(key), FALSE_ALARMS / len(keys)) for key in keys]
    metrics.sort(key=lambda one: (worst_first(one.verdict), -(one.worse or 0.0), one.benchmark, one.metric))
    return UpdateRead(
        before=sides.before,
        after=sides.after,
        node=sides.node,
        at=sides.at,
        verdict=metrics[0].verdict,
        nodes_before=len(_nodes(early)),
        nodes_after=len(_nodes(late)),
        metrics=metrics,
    )


def cohorts(session: AnySession) -> list[CohortSoftware]:
    """Cohorts that were measured, those measured last first."""
    last = func.max(ValidationRow.created_at)
    statement = (
        select(ResultRow.cohort, func.count(distinct(ValidationRow.node)), func.min(ValidationRow.created_at), last)
        .join(ValidationRow, ValidationRow.id == ResultRow.validation_id)
        .where(ResultRow.cohort != "", ResultRow.value.is_not(None))
        .group_by(ResultRow.cohort)
        .order_by(last.desc())
        .limit(500)
    )
    return [
        CohortSoftware(cohort=name, hardware=hardware(name), nodes=nodes, first_at=first, last_at=latest)
        for name, nodes, first, latest in session.execute(statement)
    ]


def _overlap(wide: str, narrow: str) -> bool:
    return narrow == wide or hardware(narrow) == wide


def _measured(
    session: AnySession, cohort: str, sides: RunSelection, *, since: float | None = None, until: float | None = None
) -> dict[tuple[str, str], _Metric]:
    """(benchmark, metric) -> every value of each device, the newest results of the cohort."""
    found: dict[tuple[str, str], _Metric] = {}
    for node, row in session.execute(_results(cohort, sides, since, until)):
        if not row.values or any(value is None for value in row.values):
            continue
        key = (row.benchmark, row.metric)
        metric = found.setdefault(key, _Metric(row.unit, Better(row.better), defaultdict(list)))
        metric.devices[(node, row.device)] += row.values
    return found


def _results(cohort: str, sides: RunSelection, since: float | None, until: float | None) -> Select[str, ResultRow]:
    return (
        select(ValidationRow.node, ResultRow)
        .join(ValidationRow, ValidationRow.id == ResultRow.validation_id)
        .where(
            within(ResultRow.cohort, cohort),
            ResultRow.value.is_not(None),
            ResultRow.better != Better.EQUAL,  # a fingerprint does not drift
            ValidationRow.state == ValidationState.DONE,
            *equal_to({ValidationRow.node: sides.node}),
            *(ValidationRow.finished_at >= bound for bound in (sides.since, since) if bound is not None),
            *(ValidationRow.finished_at < bound for bound in (sides.until, until) if bound is not None),
        )
        .order_by(ValidationRow.created_at.desc(), ResultRow.position)
        .limit(MOST_RESULTS)
    )


def _nodes(side: _Side) -> set[str]:
    return {node for metric in side.values() for node, _ in metric.devices}


def _shift(key: tuple[str, str], before: _Metric | None, after: _Metric | None, budget: float) -> UpdateShift:
    known = after or before
    assert known is not None
    shift, verdict, reason = judge_change(_runs(before), _runs(after), known.better, false_alarms=budget)
    early, late = _medians(before), _medians(after)
    devices = [_device(name, early, late, known.better, shift) for name in late]
    devices.sort(key=lambda one: (one.assessment != "slower", -(one.worse or 0.0), one.node, one.device))
    return UpdateShift(
        benchmark=key[0],
        metric=key[1],
        unit=known.unit,
        better=known.better,
        verdict=verdict,
        reason=reason,
        blame=_blame(shift),
        worse=_known_change(early, late, known.better) if shift is None else shift.shift,
        worse_low=None if shift is None else _finite(shift.low),
        worse_high=None if shift is None else _finite(shift.high),
        paired=None if shift is None else shift.paired,
        compared=len(early.keys() & late.keys()) if shift is None else shift.devices,
        before=shown(early.values()),
        after=shown(late.values()),
        devices=devices[:SHOWN_DEVICES],
    )


def _blame(shift: CohortShift | None) -> Blame | None:
    if shift is None or not (shift.worse or shift.slower):
        return None
    if shift.worse:
        return "both" if shift.slower else "update"
    return "devices"


def _runs(metric: _Metric | None) -> dict[str, Run]:
    devices = {} if metric is None else metric.devices
    return {f"{node}/{device}": np.asarray(values, np.float64) for (node, device), values in devices.items()}


def _medians(metric: _Metric | None) -> dict[tuple[str, str], float]:
    devices = {} if metric is None else metric.devices
    return {name: float(np.median(values)) for name, values in devices.items()}


def _device(
    name: tuple[str, str],
    early: Mapping[tuple[str, str], float],
    late: Mapping[tuple[str, str], float],
    better: Better,
    shift: CohortShift | None,
) -> DeviceShift:
    node, device = name
    whole = f"{node}/{device}"
    slower, explained = (shift.slower, shift.explained) if shift is not None else ((), ())
    return DeviceShift(
        node=node,
        device=device,
        before=early.get(name),
        after=late[name],
        worse=_worse(early.get(name), late[name], better),
        assessment="slower" if whole in slower else "explained" if whole in explained else "unremarkable",
    )


def _worse(before: float | None, after: float, better: Better) -> float | None:
    if before is None or before <= 0 or after <= 0:
        return None
    return (before / after if better is Better.HIGHER else after / before) - 1.0


def _known_change(
    early: Mapping[tuple[str, str], float], late: Mapping[tuple[str, str], float], better: Better
) -> float | None:
    """The median change of devices measured twice, though too few to say anything of it."""
    changes = [_worse(early[name], late[name], better) for name in early.keys() & late.keys()]
    known = [change for change in changes if change is not None]
    return float(np.median(known)) if known else None


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
