"""The past again under another policy: what it would have found, missed and spent.

The backtest decides every past occasion at which nodes were validated again, from what was known at that moment only.
What a benchmark says of a defect is what it said then. The replay does not invent what followed from a miss: each
defect that the past found and the policy would not is counted as missed, once, on the occasion where it was found.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from mainstay.detectors.selector import audit_nodes, per_node_plan
from mainstay.detectors.selector import node_plan as planning
from mainstay.detectors.selector.audit import PlanRecord, fallback, record
from mainstay.detectors.selector.coverage import Coverage, DefectRecord, shares_of
from mainstay.detectors.selector.fleet_history import (
    Experience,
    FleetHistory,
    PastDefect,
    SelectionPolicy,
    ValidationOpportunity,
)
from mainstay.detectors.selector.hazard import NotEnoughError
from mainstay.detectors.selector.history import HOUR
from mainstay.detectors.selector.learning import Learned, learn
from mainstay.detectors.selector.risk import SelectionProblem

LEAST_DEFECTS = 20
"""Fewer past defects than this say too little of what benchmarks find."""
_RELEARN = 14 * 24 * HOUR


class SelectionDecision(msgspec.Struct, frozen=True, kw_only=True):
    """A plan with its record."""

    record: PlanRecord
    nodes: tuple[str, ...]
    """On which something runs."""
    sets: dict[str, tuple[str, ...]] = {}
    """Node → what runs on it, what pays most first."""


class BacktestResult(msgspec.Struct, kw_only=True):
    """What a policy would have done."""

    occasions: int = 0
    skipped: int = 0
    """Occasions on which nothing had to run."""
    fallbacks: int = 0
    """Occasions with too little history: the whole suite."""
    found: int = 0
    missed: int = 0
    unknowable: int = 0
    """Of the missed, those on which nothing of what the policy chose was ever run: it might have found them."""
    node_seconds: float = 0.0
    full_node_seconds: float = 0.0


def learn_from(past: FleetHistory) -> Experience:
    """Coverage and risk model of a past."""
    names = [b.name for b in past.benchmarks]
    catches = {b.name: b.catches for b in past.benchmarks if b.catches is not None}
    records = [
        DefectRecord(defect=d.defect, found=frozenset(d.found), ran=None if d.ran is None else frozenset(d.ran))
        for d in past.defects
    ]
    classes = sorted({c for found in catches.values() for c in found}) or ["any"]
    coverage = Coverage.learn(records, names, classes=classes, catches=catches)
    if coverage.defects < LEAST_DEFECTS:
        why = f"{coverage.defects} defects on record, {LEAST_DEFECTS} are needed to know what benchmarks find"
        return Experience(coverage=coverage, learned=None, why_not=why)
    try:
        learned = learn(past.nodes)
    except NotEnoughError as error:
        return Experience(coverage=coverage, learned=None, why_not=str(error))
    return Experience(
        coverage=coverage,
        learned=learned,
        posterior=per_node_plan.posterior(past, coverage.classes),
        usual_gap=per_node_plan.median_check_interval(past),
    )


def decide(
    past: FleetHistory, known: Experience, occasion: ValidationOpportunity, wanted: SelectionPolicy
) -> SelectionDecision:
    """What to run on the nodes of a coming job.

    Raises:
        ValueError: no node is named, one is not in the past, or the policy is not one.
    """
    nodes = occasion.nodes
    by_name = {h.node: h for h in past.nodes}
    missing = [name for name in nodes if name not in by_name]
    if not nodes or len(set(nodes)) != len(nodes):
        raise ValueError("name the nodes, each once")
    if (wanted.target_risk is None) == (wanted.keep is None):
        raise ValueError("give either a target for the risk or the share of the full set's effect to keep")
    names, costs = [b.name for b in past.benchmarks], [b.seconds for b in past.benchmarks]
    why_not = f"nothing is known of node {missing[0]}" if missing else known.why_not
    if known.learned is None or missing:
        said = fallback(names, costs, nodes, why=why_not)
        return SelectionDecision(record=said, nodes=tuple(nodes), sets=dict.fromkeys(nodes, tuple(names)))
    if wanted.per_node:
        return _tailored(past, known, occasion, wanted)
    return _uniform(past, known, known.learned, occasion, wanted)


def _tailored(
    past: FleetHistory, known: Experience, occasion: ValidationOpportunity, wanted: SelectionPolicy
) -> SelectionDecision:
    made = per_node_plan.make(past, known, occasion, wanted)
    names = [b.name for b in past.benchmarks]
    sets = {
        name: ordered
        for place, name in enumerate(occasion.nodes)
        if (ordered := tuple(names[b] for b in audit_nodes.in_order(made.problem, made.sets, place)))
    }
    assert known.learned is not None
    said = audit_nodes.record(made, known.coverage, occasion.nodes, model=_model(known.learned))
    return SelectionDecision(record=said, nodes=tuple(sets), sets=sets)


def _uniform(
    past: FleetHistory, known: Experience, learned: Learned, occasion: ValidationOpportunity, wanted: SelectionPolicy
) -> SelectionDecision:
    nodes = occasion.nodes
    by_name = {h.node: h for h in past.nodes}
    problem = SelectionProblem(
        coverage=known.coverage,
        seconds=np.array([b.seconds for b in past.benchmarks], np.float64),
        p=learned.risk([by_name[name] for name in nodes], occasion.at, occasion.job_hours),
        shares=np.stack([shares_of(known.coverage, _own(past, name)) for name in nodes]),
    )
    made = planning.make(
        problem,
        target=wanted.target_risk,
        keep=wanted.keep,
        spare_nodes=wanted.spare_nodes,
        worth=None if wanted.worth is None else wanted.worth * HOUR,
    )
    said = record(problem, made, nodes, model=_model(learned))
    on = tuple(name for name, on in zip(nodes, made.checked, strict=True) if on)
    return SelectionDecision(record=said, nodes=on, sets=dict.fromkeys(on, said.benchmarks))


def replay(
    past: FleetHistory,
    wanted: SelectionPolicy,
    *,
    each: Callable[[ValidationOpportunity, SelectionDecision], None] | None = None,
) -> BacktestResult:
    """Decide every occasion again.

    Args:
        past: with its occasions, in any order.
        wanted: the policy.
        each: hears every decision.
    """
    outcome = BacktestResult()
    known: Experience | None = None
    learned_at = -np.inf
    full = sum(b.seconds for b in past.benchmarks)
    for occasion in sorted(past.occasions, key=lambda o: o.at):
        so_far = past.until(occasion.at)
        if known is None or known.learned is None or occasion.at - learned_at >= _RELEARN:
            known, learned_at = learn_from(so_far), occasion.at
        decision = decide(so_far, known, occasion, wanted)
        outcome.occasions += 1
        outcome.skipped += not decision.nodes
        outcome.fallbacks += not decision.record.learned
        outcome.node_seconds += decision.record.node_seconds
        outcome.full_node_seconds += full * len(occasion.nodes)
        for defect in past.defects:
            if defect.found and defect.node in occasion.nodes and 0 <= defect.at - occasion.at < 1.0:
                _score(outcome, defect, decision)
        if each is not None:
            each(occasion, decision)
    return outcome


def _score(outcome: BacktestResult, defect: PastDefect, decision: SelectionDecision) -> None:
    chosen = set(decision.sets.get(defect.node, ()))
    if chosen & set(defect.found):
        outcome.found += 1
        return
    outcome.missed += 1
    outcome.unknowable += bool(chosen) and defect.ran is not None and not chosen & set(defect.ran)


def _own(past: FleetHistory, node: str) -> dict[str, int]:
    own: dict[str, int] = {}
    for defect in past.defects:
        if defect.node == node:
            own[defect.defect] = own.get(defect.defect, 0) + 1
    return own


def _model(learned: Learned) -> str:
    said = f"{learned.name} of {learned.incidents} incidents"
    score = learned.held_out.get(learned.name)
    if score is None:
        return said
    return f"{said} (held out: concordance {score.concordance:.2f}, Brier score {score.brier:.3f})"
