"""The past again under another policy: what it would have found, missed and spent.

Every occasion of the past at which nodes were validated is decided anew, from what was known at that moment only. What
a benchmark says of a defect is what it said then. The replay does not invent what followed from a miss: each defect
that the past found and the policy would not is counted as missed, once, on the occasion where it was found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec
import numpy as np

from detectors.selector import audit_nodes, per_node
from detectors.selector import plan as planning
from detectors.selector.audit import Record, fallback, record
from detectors.selector.coverage import Coverage, DefectRecord, shares_of
from detectors.selector.hazard import NotEnoughError
from detectors.selector.history import HOUR, NodeHistory, as_known
from detectors.selector.learning import LEAST_INCIDENTS, Learned, learn
from detectors.selector.posterior import Posterior
from detectors.selector.risk import Problem

LEAST_DEFECTS = 20
"""Fewer past defects than this say too little of what benchmarks find."""
_RELEARN = 14 * 24 * HOUR


class BenchmarkCost(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate."""

    name: str
    seconds: float
    """On one node."""
    catches: tuple[str, ...] | None = None
    """Classes of defect that it is made to find; None: any."""

    def __post_init__(self) -> None:
        if not (self.name and 0 < self.seconds < np.inf):
            raise ValueError(f"benchmark {self.name!r} costs {self.seconds:g} s: it needs a name and a time above 0")


class PastDefect(msgspec.Struct, frozen=True, kw_only=True):
    """A defect of the past."""

    at: float
    """Unix seconds when it was found, or struck."""
    node: str
    defect: str
    found: tuple[str, ...] = ()
    ran: tuple[str, ...] | None = None
    """None: every benchmark."""


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """Benchmarks ran on a node and found nothing."""

    at: float
    """Unix seconds."""
    node: str
    ran: tuple[str, ...]


class Occasion(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes were looked at before a job."""

    at: float
    nodes: tuple[str, ...]
    job_hours: float = 24.0


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a fleet's past."""

    benchmarks: tuple[BenchmarkCost, ...]
    nodes: tuple[NodeHistory, ...]
    defects: tuple[PastDefect, ...] = ()
    occasions: tuple[Occasion, ...] = ()
    looks: tuple[Look, ...] = ()
    """What ran when; of a node without any, each of its checks counts as all benchmarks."""

    def __post_init__(self) -> None:
        for what, names in (("benchmark", [b.name for b in self.benchmarks]), ("node", [h.node for h in self.nodes])):
            twice = [name for name, n in Counter(names).items() if n > 1]
            if twice:
                raise ValueError(f"{what} {twice[0]!r} is there twice")

    def until(self, at: float) -> Past:
        """What was known just before ``at``."""
        known = tuple(as_known(h, at) for h in self.nodes if h.since < at)
        return Past(
            benchmarks=self.benchmarks,
            nodes=known,
            defects=tuple(d for d in self.defects if d.at < at),
            looks=tuple(look for look in self.looks if look.at < at),
        )


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A policy: one of the two."""

    target_risk: float | None = None
    """Highest risk of an incident in the job."""
    keep: float | None = None
    """Share of what the full set finds that must still be found: in the whole fleet, or with one set in this job."""
    spare_nodes: bool = True
    per_node: bool = True
    """A set of its own for each node; False: one for all, for a suite that must be uniform."""
    worth: float | None = None
    """Node-hours that an averted incident is worth; what costs more than it averts is then not run. None: any cost."""


class Experience(msgspec.Struct, frozen=True, kw_only=True):
    """What the past taught, or why it taught nothing."""

    coverage: Coverage
    learned: Learned | None
    why_not: str = ""
    posterior: Posterior | None = None
    """Which class a node's next defect is of."""
    usual_gap: float | None = None
    """Hours between two looks at a node."""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A plan with its record."""

    record: Record
    nodes: tuple[str, ...]
    """On which something runs."""
    sets: dict[str, tuple[str, ...]] = {}
    """Node → what runs on it, what pays most first."""


class Outcome(msgspec.Struct, kw_only=True):
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


def learn_from(past: Past) -> Experience:
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
        learned = learn(past.nodes, least_incidents=LEAST_INCIDENTS)
    except NotEnoughError as error:
        return Experience(coverage=coverage, learned=None, why_not=str(error))
    return Experience(
        coverage=coverage,
        learned=learned,
        posterior=per_node.posterior(past, coverage.classes),
        usual_gap=per_node.usual_gap(past),
    )


def decide(past: Past, known: Experience, occasion: Occasion, wanted: Wanted) -> Decision:
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
        return Decision(record=said, nodes=tuple(nodes), sets=dict.fromkeys(nodes, tuple(names)))
    if wanted.per_node:
        return _tailored(past, known, occasion, wanted)
    return _uniform(past, known, known.learned, occasion, wanted)


def _tailored(past: Past, known: Experience, occasion: Occasion, wanted: Wanted) -> Decision:
    made = per_node.make(past, known, occasion, wanted)
    names = [b.name for b in past.benchmarks]
    sets = {
        name: ordered
        for place, name in enumerate(occasion.nodes)
        if (ordered := tuple(names[b] for b in audit_nodes.in_order(made.problem, made.sets, place)))
    }
    assert known.learned is not None
    said = audit_nodes.record(made, known.coverage, occasion.nodes, model=_model(known.learned))
    return Decision(record=said, nodes=tuple(sets), sets=sets)


def _uniform(past: Past, known: Experience, learned: Learned, occasion: Occasion, wanted: Wanted) -> Decision:
    nodes = occasion.nodes
    by_name = {h.node: h for h in past.nodes}
    problem = Problem(
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
    return Decision(record=said, nodes=on, sets=dict.fromkeys(on, said.benchmarks))


def replay(past: Past, wanted: Wanted, *, each: Callable[[Occasion, Decision], None] | None = None) -> Outcome:
    """Decide every occasion anew.

    Args:
        past: with its occasions, in any order.
        wanted: the policy.
        each: hears every decision.
    """
    outcome = Outcome()
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


def _score(outcome: Outcome, defect: PastDefect, decision: Decision) -> None:
    chosen = set(decision.sets.get(defect.node, ()))
    if chosen & set(defect.found):
        outcome.found += 1
        return
    outcome.missed += 1
    outcome.unknowable += bool(chosen) and defect.ran is not None and not chosen & set(defect.ran)


def _own(past: Past, node: str) -> dict[str, int]:
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
