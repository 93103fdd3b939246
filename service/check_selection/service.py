"""The Selector over the store: what to run before a job, decided from what happened here, and kept with its reasons.

Where too little has happened the whole suite runs: unknown is never healthy, and never a reason to skip.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from sqlalchemy import inspect, select

from mainstay.detectors.selector.backtest import SelectionDecision, decide, learn_from
from mainstay.detectors.selector.fleet_history import (
    BenchmarkCost,
    Experience,
    FleetHistory,
    SelectionPolicy,
    ValidationOpportunity,
)
from mainstay.probes.benchmarks.suites import SuiteInfo
from mainstay.probes.ids import uuid7
from mainstay.service.check_selection import node_history
from mainstay.service.check_selection.models import SelectionRow
from mainstay.service.check_selection.schemas import ValidationPlanCreate, ValidationPlanRead
from mainstay.service.common.db import AnySession, WriteSession
from mainstay.service.common.problem import NotFoundError
from mainstay.service.common.rows import require_row
from mainstay.service.fleet.service import require_node
from mainstay.service.settings import Settings
from mainstay.service.validation import service
from mainstay.service.validation.models import ValidationRow, ValidationState
from mainstay.service.validation.suites import require_suite

RELEARN_SECONDS: Final = 3600.0
"""How old what was learned may be. Rates take days to show; what happened to the asked nodes is read each time."""
_COSTS_FROM: Final = 500
"""Newest validations that say what a suite really takes."""


class UnknownValidationPlanError(NotFoundError):
    slug, title = "unknown-validation-plan", "Unknown validation plan"


@dataclass
class Selector:
    """What was learned of the fleet, a suite at a time; one thread learns, the others wait for it."""

    shared_fault_nodes: int
    """Incidents of at least so many nodes say nothing about one node."""
    _known: dict[str, tuple[float, Experience]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def decide(self, session: AnySession, body: ValidationPlanCreate, now: float) -> SelectionDecision:
        """Decide; writes nothing.

        Raises:
            UnknownNodeError, UnknownSuiteError: there is no such thing.
        """
        suite = require_suite(body.suite)
        for name in body.nodes:
            require_node(session, name)
        known = self._experience(session, suite, now)
        here = self._past(session, suite, now, body.nodes)
        occasion = ValidationOpportunity(at=now, nodes=tuple(body.nodes), job_hours=body.job_hours)
        wanted = SelectionPolicy(target_risk=body.target_risk, worth=body.worth_node_hours, per_node=not body.uniform)
        return decide(here, known, occasion, wanted)

    def _experience(self, session: AnySession, suite: SuiteInfo, now: float) -> Experience:
        with self._lock:
            at, known = self._known.get(suite.name, (float("-inf"), None))
            if known is None or not 0 <= now - at < RELEARN_SECONDS or known.learned is None:
                known = learn_from(self._past(session, suite, now))
                self._known[suite.name] = (now, known)
            return known

    def _past(
        self, session: AnySession, suite: SuiteInfo, now: float, nodes: Sequence[str] | None = None
    ) -> FleetHistory:
        claims = {b.name: tuple(defect.value for defect in b.defects) for b in suite.benchmarks}
        found = node_history.read(session, now, nodes, shared_fault_nodes=self.shared_fault_nodes)
        factor = _factor(session, suite)
        costs = tuple(
            BenchmarkCost(name=b.name, seconds=max(b.expected_seconds, 0.1) * factor, catches=claims[b.name])
            for b in suite.benchmarks
            if not b.optional  # which nodes have them is not known here
        )
        return FleetHistory(
            benchmarks=costs,
            nodes=tuple(node_history.history(past, now) for past in found if past.row.first_seen_at < now),
            defects=tuple(defect for past in found for defect in node_history.defects(past, claims, now)),
            looks=tuple(look for past in found for look in node_history.looks(past)),
        )


def _factor(session: AnySession, suite: SuiteInfo) -> float:
    """What the suite takes here against what is stated of it: the median over whole validations; 1 without any."""
    rows = session.execute(
        select(ValidationRow.started_at, ValidationRow.finished_at)
        .where(
            ValidationRow.state == ValidationState.DONE,
            ValidationRow.suite == suite.name,
            ValidationRow.started_at.is_not(None),
            ValidationRow.benchmarks.is_(None),
        )
        .order_by(ValidationRow.created_at.desc())
        .limit(_COSTS_FROM)
    )
    taken = sorted(finished - started for started, finished in rows if started and finished and finished > started)
    stated = sum(b.expected_seconds for b in suite.benchmarks if not b.optional)
    return taken[len(taken) // 2] / stated if taken and stated > 0 else 1.0


def keep(session: WriteSession, body: ValidationPlanCreate, decision: SelectionDecision, now: float) -> SelectionRow:
    """Store a decision with all its reasons."""
    row = SelectionRow(
        id=uuid7(),
        created_at=now,
        trigger=body.trigger.value,
        suite=body.suite,
        nodes=list(body.nodes),
        run_on=list(decision.nodes),
        job_hours=body.job_hours,
        target_risk=body.target_risk,
        worth_node_hours=body.worth_node_hours,
        remeasure=body.remeasure,
        record=msgspec.to_builtins(decision.record) | {"sets": {n: list(b) for n, b in decision.sets.items()}},
    )
    session.add(row)
    return row


def order(session: WriteSession, row: SelectionRow, *, settings: Settings, now: float) -> None:
    """Order each node's set as a validation of its own."""
    made: dict[str, str] = {}
    for node, benchmarks in row.record["sets"].items():
        options = service.ValidationOptions(benchmarks=benchmarks, remeasure=row.remeasure)
        made[node] = service.order(session, settings, node=node, suite=row.suite, now=now, options=options).id
    row.record = {**row.record, "validations": made}


def require(session: AnySession, plan_id: str) -> SelectionRow:
    """The plan.

    Raises:
        UnknownPlanError: there is none with this id.
    """
    missing = UnknownValidationPlanError(f"no validation plan has the id {plan_id!r}")
    return require_row(session, SelectionRow, plan_id, missing)


def read(row: SelectionRow) -> ValidationPlanRead:
    """The plan as answered."""
    record: dict[str, Any] = {"validations": {}} | dict(row.record)
    record["node_risks"] = record.pop("nodes")
    stored = {column.key: getattr(row, column.key) for column in inspect(SelectionRow).columns}
    return ValidationPlanRead.model_validate(record | stored)
