"""Comparison of a validation with an earlier one of the same node, relative to the drift of its cohort."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Final

import numpy as np
from sqlalchemy import select

from mainstay.detectors.validation.criterion_limits import Run
from mainstay.detectors.validation.node_comparison import (
    DevicePair,
    Measured,
    MetricChange,
    MetricKey,
    compare,
    verdict,
)
from mainstay.probes.benchmarks.result import Better
from mainstay.probes.core_types import Verdict
from mainstay.service.common.db import AnySession
from mainstay.service.common.problem import NotFoundError, UnprocessableError
from mainstay.service.common.schemas import Output, fields_of
from mainstay.service.criteria.store import shown
from mainstay.service.validation import service
from mainstay.service.validation.models import ResultRow, ValidationRow, ValidationState

MOST_NODES: Final = 200
"""Nodes that a cohort's wandering is learned from: more would teach little and cost as much again."""


class NothingBeforeError(NotFoundError):
    slug, title = "no-earlier-validation", "Nothing to compare with"


class NotOfThisNodeError(UnprocessableError):
    slug, title = "node-mismatch", "A validation of another node"


@fields_of(MetricChange, without={"key"})
class ChangeRead(Output):
    benchmark: str
    metric: str
    device: str
    before_values: list[float]
    """Its repetitions, rising, to be drawn."""
    after_values: list[float]


class ComparisonRead(Output):
    node: str
    before: str
    """Id of the earlier validation."""
    after: str
    verdict: Verdict
    """UNKNOWN where too few devices of the cohort were measured twice."""
    changes: list[ChangeRead]
    """The worst first."""


_ORDER: Final = (Verdict.FAIL, Verdict.UNKNOWN, Verdict.WARN, Verdict.PASS)


def worst_first(verdict: Verdict) -> int:
    """A verdict's place in a list of comparisons."""
    return _ORDER.index(verdict)


def read(session: AnySession, validation_id: str, before_id: str | None) -> ComparisonRead:
    """Compare a validation with ``before_id``, or with the node's last one before it that measured something.

    Raises:
        UnknownValidationError: there is no such validation.
        NothingBeforeError: the node was never measured before.
        NotOfThisNodeError: the earlier one is of another node.
    """
    after = service.require(session, validation_id)
    before = _before(session, after) if before_id is None else service.require(session, before_id)
    if before.node != after.node:
        raise NotOfThisNodeError(f"validation {before.id} is of {before.node}, {after.id} of {after.node}")
    now, then = _measured(session, after.id), _measured(session, before.id)
    changes = compare(then, now, _pasts(session, before, after))
    ordered = sorted(changes, key=lambda change: (worst_first(change.verdict), -(change.worse or 0.0), change.key))
    return ComparisonRead(
        node=after.node,
        before=before.id,
        after=after.id,
        verdict=verdict(changes),
        changes=[_read(change, then.get(change.key), now.get(change.key)) for change in ordered],
    )


def _before(session: AnySession, after: ValidationRow) -> ValidationRow:
    statement = (
        select(ValidationRow)
        .where(
            ValidationRow.node == after.node,
            ValidationRow.created_at < after.created_at,
            ValidationRow.state == ValidationState.DONE,
            ValidationRow.id.in_(select(ResultRow.validation_id).where(ResultRow.value.is_not(None))),
        )
        .order_by(ValidationRow.created_at.desc())
        .limit(1)
    )
    found = session.scalars(statement).one_or_none()
    if found is None:
        raise NothingBeforeError(f"node {after.node} was not measured before validation {after.id}")
    return found


def _measured(session: AnySession, validation_id: str) -> dict[MetricKey, Measured]:
    rows = session.scalars(
        select(ResultRow).where(ResultRow.validation_id == validation_id, ResultRow.value.is_not(None))
    )
    return {
        MetricKey(row.benchmark, row.metric, row.device): Measured(
            unit=row.unit, better=Better(row.better), values=_run(row.values)
        )
        for row in rows
        if row.values
    }


def _run(values: Iterable[float]) -> Run:
    return np.asarray(list(values), dtype=np.float64)


def _pasts(
    session: AnySession, before: ValidationRow, after: ValidationRow
) -> dict[tuple[str, str], Sequence[DevicePair]]:
    """Devices of other nodes of the cohort, each with its two newest runs of a metric.

    Where an update lies between the two, that is under the old and the new software: these changed with it.
    """
    cohorts = select(ResultRow.cohort).where(ResultRow.validation_id.in_((before.id, after.id)))
    statement = (
        select(ValidationRow.node, ResultRow.device, ResultRow.benchmark, ResultRow.metric, ResultRow.values)
        .join(ValidationRow, ValidationRow.id == ResultRow.validation_id)
        .where(
            ResultRow.cohort.in_(cohorts),
            ResultRow.value.is_not(None),
            ValidationRow.node != after.node,
            ValidationRow.id.in_(_newest(session, after)),
        )
        .order_by(ValidationRow.created_at.desc())
    )
    runs: dict[tuple[str, str], dict[tuple[str, str], list[Run]]] = defaultdict(lambda: defaultdict(list))
    for node, device, benchmark, metric, values in session.execute(statement):
        if values:
            runs[(benchmark, metric)][(node, device)].append(_run(values))
    return {
        metric: [
            DevicePair(node=node, before=two[1], after=two[0]) for (node, _), two in devices.items() if len(two) > 1
        ]
        for metric, devices in runs.items()
    }


def _newest(session: AnySession, after: ValidationRow) -> list[str]:
    """Ids of the newest validations of the same suite on other nodes, some per node."""
    statement = (
        select(ValidationRow.id, ValidationRow.node)
        .where(
            ValidationRow.node != after.node,
            ValidationRow.suite == after.suite,
            ValidationRow.state == ValidationState.DONE,
        )
        .order_by(ValidationRow.created_at.desc())
        .limit(4 * MOST_NODES)
    )
    kept: dict[str, list[str]] = defaultdict(list)
    for found, node in session.execute(statement):
        if len(kept[node]) < 2 and (kept[node] or len(kept) <= MOST_NODES):
            kept[node].append(found)
    return [found for two in kept.values() for found in two]


def _read(change: MetricChange, before: Measured | None, after: Measured | None) -> ChangeRead:
    values = {
        "before_values": [] if before is None else shown(before.values),
        "after_values": [] if after is None else shown(after.values),
    }
    return ChangeRead.model_validate(asdict(change) | asdict(change.key) | values)
