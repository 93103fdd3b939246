"""A set for each node of a job, from a fleet's past: what ``tailor`` needs, read off what is known."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

from mainstay.detectors.selector import per_node_search
from mainstay.detectors.selector.fleet_history import (
    CleanCheck,
    Experience,
    FleetHistory,
    SelectionPolicy,
    ValidationOpportunity,
)
from mainstay.detectors.selector.hazard import Floats
from mainstay.detectors.selector.history import HOUR, NodeHistory
from mainstay.detectors.selector.posterior import Posterior

_LEAST_GAP: Final = HOUR
"""Looks nearer to each other are one occasion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PerNodePlan:
    """Sets for the nodes of an occasion."""

    problem: per_node_search.NodeBenchmarkPairs
    """Of these nodes only."""
    sets: per_node_search.PerNodeSets
    ages: Floats | None
    """[node, benchmark] hours since each last ran there; None: there is no record of what ran."""


def median_check_interval(past: FleetHistory) -> float | None:
    """Hours between two looks at a node, the median; None where no node was checked twice."""
    gaps: list[float] = []
    looked = _looks(past.looks)
    for history in past.nodes:
        times = sorted({at for at, _ in looked[history.node]} or history.checks)
        gaps += [later - earlier for earlier, later in pairwise(times) if later - earlier >= _LEAST_GAP]
    return float(np.median(gaps)) / HOUR if gaps else None


def posterior(past: FleetHistory, classes: Sequence[str]) -> Posterior:
    """Classes of defects, learned from a past."""
    known = ((d.node, d.defect, d.at) for d in past.defects)
    return Posterior.learn(known, {h.node: h for h in past.nodes}, classes)


def make(
    past: FleetHistory, known: Experience, occasion: ValidationOpportunity, wanted: SelectionPolicy
) -> PerNodePlan:
    """A set for each node of an occasion.

    A share to keep is one of what the whole fleet's full sets would find now: nodes of little risk give their time to
    others, in any job. A target for the risk is this job's alone.

    Raises:
        ValueError: see ``tailor.make``.
    """
    assert known.learned is not None
    assert known.posterior is not None
    by_name = {h.node: h for h in past.nodes}
    nodes = [by_name[name] for name in occasion.nodes]
    if wanted.keep is not None:
        others = by_name.keys() - set(occasion.nodes)
        nodes += [h for h in past.nodes if h.node in others and h.origin(occasion.at) is not None]
    problem, ages = _problem(past, known, nodes, occasion)
    made = per_node_search.make(
        problem,
        target=wanted.target_risk,
        keep=wanted.keep,
        spare_nodes=wanted.spare_nodes,
        worth=None if wanted.worth is None else wanted.worth * HOUR,
    )
    mine = np.arange(len(nodes)) < len(occasion.nodes)
    own = problem.some(mine)
    chosen = made.chosen[mine]
    partial = len(nodes) > len(occasion.nodes)
    share = own.hazard(chosen) if partial else made.hazard
    goal = share if partial and made.reached else made.goal
    return PerNodePlan(
        problem=own,
        sets=per_node_search.PerNodeSets(chosen=chosen, hazard=share, goal=goal, price=made.price),
        ages=None if ages is None else ages[mine],
    )


def _problem(
    past: FleetHistory, known: Experience, nodes: Sequence[NodeHistory], occasion: ValidationOpportunity
) -> tuple[per_node_search.NodeBenchmarkPairs, Floats | None]:
    assert known.learned is not None
    assert known.posterior is not None
    at, usual = occasion.at, known.usual_gap
    ages = None if usual is None else _ages(past, nodes, at)
    # what was looked at when is in the ages; the risk is asked for as if all had been a usual time ago
    told = nodes if usual is None else [as_usual(history, at - usual * HOUR) for history in nodes]
    p = known.learned.risk(told, at, occasion.job_hours)
    own: dict[str, Counter[str]] = defaultdict(Counter)
    for defect in past.defects:
        own[defect.node][defect.defect] += 1
    shares = np.stack([known.posterior.shares(h, own[h.node], at) for h in nodes])
    seconds = np.array([b.seconds for b in past.benchmarks], np.float64)
    return per_node_search.pairs(known.coverage, seconds, p, shares, ages, usual=usual or 1.0), ages


def as_usual(history: NodeHistory, looked: float) -> NodeHistory:
    """The node as if everything had been looked at last at a moment (Unix seconds), if it served then."""
    return replace(history, checks=(*(t for t in history.checks if t < looked), looked))


def _looks(looks: Iterable[CleanCheck]) -> dict[str, list[tuple[float, frozenset[str]]]]:
    """Node → what ran on it when, in order of time."""
    found: dict[str, list[tuple[float, frozenset[str]]]] = defaultdict(list)
    for look in sorted(looks, key=lambda look: look.at):
        found[look.node].append((look.at, frozenset(look.ran)))
    return found


def _ages(past: FleetHistory, nodes: Sequence[NodeHistory], at: float) -> Floats:
    """[node, benchmark] hours since each last ran and found nothing, or since the node came back."""
    names = [b.name for b in past.benchmarks]
    looked = _looks(past.looks)
    rows = []
    for history in nodes:
        origin = history.origin(at)
        start = history.since if origin is None else origin
        last = dict.fromkeys(names, start)
        for time, ran in looked[history.node]:
            if start < time < at:
                last |= dict.fromkeys(ran & last.keys(), time)
        if not looked[history.node] and (place := bisect_left(history.checks, at)):
            last = {name: max(start, history.checks[place - 1]) for name in names}
        rows.append([max(0.0, at - last[name]) / HOUR for name in names])
    return np.array(rows, np.float64)
