"""Which nodes fail more often than chance allows: an empirical-Bayes rate for every node, against the fleet's.

Failures of a node are Poisson with a rate of its own; rates differ between nodes as a Gamma distribution, whose two
parameters are fitted to the whole fleet by maximum marginal likelihood. A node's posterior is again a Gamma, so a short
history is drawn to the fleet's and no threshold on counts is needed. A lemon is one whose rate is surely a multiple of
the fleet's: repairs have not repaired it, so it is watched or replaced, not repaired once more.

Pure numbers: no clock, no storage.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mainstay.detectors.base import Floats
from mainstay.detectors.finding import Entity, Evidence, Finding, FindingKind
from mainstay.probes.core_types import RecommendedAction, Severity

NAME = "lemon_nodes"
_DAY = 86_400.0
_SHAPES = np.exp(np.linspace(math.log(0.05), math.log(1.0), 30))
"""Shapes of the Gamma tried: from a few nodes with all failures to an exponential. A fleet that looks more alike is not
believed to be: its one lemon would be drawn to the others until nothing could be said of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    times: float = 3.0
    """k: how many times the fleet's rate makes a lemon. Meta's lemons (some 40 of 2,000 nodes) failed several times as
    often as the rest, and were named with 85 % accuracy by fixed thresholds."""
    sure: float = 0.95
    """Posterior probability that makes a node a lemon..."""
    unsure: float = 0.7
    """... and below which it is taken back: more failures of the others, or time without."""
    least_failures: int = 3
    """Two may be one fault that was repaired badly."""
    least_nodes: int = 8
    """A fleet too small has no rate to compare with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """A node's past: failures (hardware only, one a story) within the time it was watched."""

    failures: int
    seconds: float
    worst: str = ""
    """The device with most of them, where one has most."""
    worst_failures: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LemonPosterior:
    """What is believed of a node."""

    node: str
    failures: int
    days: float
    rate: float
    """Posterior mean, failures a day."""
    fleet_rate: float
    probability: float
    """That its rate exceeds ``Config.times`` of the fleet's."""
    worst: str = ""
    worst_failures: int = 0


def score_nodes(records: Mapping[str, NodeRecord], config: Config | None = None) -> tuple[LemonPosterior, ...]:
    """The posterior of every node, the likeliest lemon first; empty for a fleet too small or without a failure."""
    config = config or Config()
    names = sorted(name for name, record in records.items() if record.seconds > 0)
    counts = np.array([records[name].failures for name in names], np.float64)
    days = np.array([records[name].seconds / _DAY for name in names], np.float64)
    if len(names) < config.least_nodes or counts.sum() == 0:
        return ()
    shape, fleet = fit(counts, days)
    rates = (shape + counts) / (shape / fleet + days)
    above = [
        1 - gamma_cdf(shape + c, (shape / fleet + d) * config.times * fleet) for c, d in zip(counts, days, strict=True)
    ]
    found = [
        LemonPosterior(
            node=name, failures=int(counts[i]), days=float(days[i]), rate=float(rates[i]), fleet_rate=fleet,
            probability=float(above[i]), worst=records[name].worst, worst_failures=records[name].worst_failures,
        )
        for i, name in enumerate(names)
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda p: (-p.probability, -p.failures, p.node)))


def fit(counts: Floats, days: Floats) -> tuple[float, float]:
    """Shape and mean (failures a day) of the Gamma that makes the counts likeliest: [node] each.

    The mean is the pooled rate without the worst node in twenty, so that lemons do not raise what they are compared
    with; the shape is sought on a grid, where the negative-binomial likelihood is flat enough for it.
    """
    order = np.argsort(counts / days, kind="stable")
    rest = order[: max(1, math.ceil(0.95 * len(order)))]
    mean = max(float(counts[rest].sum() / days[rest].sum()), 0.5 / float(days.sum()))
    best = max(_SHAPES, key=lambda shape: _likelihood(float(shape), mean, counts, days))
    return float(best), mean


def _likelihood(shape: float, mean: float, counts: Floats, days: Floats) -> float:
    """Log of the negative-binomial probability of the counts, up to a constant."""
    scale = shape / mean
    gammas = sum(math.lgamma(shape + c) for c in counts) - len(counts) * math.lgamma(shape)
    return float(gammas + np.sum(shape * np.log(scale / (scale + days)) + counts * np.log(days / (scale + days))))


def gamma_cdf(shape: float, x: float) -> float:
    """P(Gamma(shape, 1) <= x), the regularised lower incomplete gamma function.

    Series below the mean, continued fraction above (Abramowitz & Stegun 6.5.29 and 6.5.31).
    """
    if x <= 0:
        return 0.0
    front = math.exp(-x + shape * math.log(x) - math.lgamma(shape))
    if x < shape + 1:
        term = total = 1.0 / shape
        for n in range(1, 1000):
            term *= x / (shape + n)
            total += term
            if term < total * 1e-14:
                break
        return min(1.0, total * front)
    b = x + 1 - shape
    c, d = 1e300, 1.0 / b
    fraction = d
    for n in range(1, 1000):
        a = -n * (n - shape)
        b += 2
        d, c = 1.0 / (a * d + b), b + a / c
        fraction *= d * c
        if abs(d * c - 1) < 1e-14:
            break
    return max(0.0, 1.0 - front * fraction)


def findings(
    posteriors: tuple[LemonPosterior, ...], said: frozenset[str], now: float, config: Config | None = None
) -> list[Finding]:
    """What is new: nodes that became lemons, and those of ``said`` that are none any more.

    Args:
        posteriors: of ``judge``.
        said: nodes about which a finding holds.
        now: Unix seconds.
        config: the same as for ``judge``.
    """
    config = config or Config()
    known = {p.node: p for p in posteriors}
    new = [
        _finding(p, now, config)
        for p in posteriors
        if p.node not in said and p.probability >= config.sure and p.failures >= config.least_failures
    ]
    over = [node for node in sorted(said) if node not in known or known[node].probability < config.unsure]
    return new + [_over(node, now) for node in over]


def _finding(posterior: LemonPosterior, now: float, config: Config) -> Finding:
    device = f" ({posterior.worst_failures} of them on {posterior.worst})" if posterior.worst else ""
    evidence = Evidence(
        summary=f"Node {posterior.node} failed {posterior.failures} times in {posterior.days:.1f} days{device}, "
        f"{posterior.rate / posterior.fleet_rate:.1f} times as often as the fleet: it is a lemon with "
        f"{100 * posterior.probability:.1f} % certainty.",
        numbers={
            "failures": float(posterior.failures),
            "days": posterior.days,
            "rate_per_day": posterior.rate,
            "fleet_rate_per_day": posterior.fleet_rate,
            "probability": posterior.probability,
            "times": config.times,
        },
    )
    return _said(posterior.node, now, evidence, confidence=posterior.probability)


def _over(node: str, now: float) -> Finding:
    return _said(node, now, Evidence(summary=f"Node {node} fails no more often than others."), active=False)


def _said(node: str, now: float, evidence: Evidence, *, active: bool = True, confidence: float = 1.0) -> Finding:
    return Finding(
        kind=FindingKind.LEMON_NODE,
        entity=Entity(node=node),
        time=now,
        severity=Severity.WARNING,
        detector=NAME,
        confidence=confidence,
        evidence=evidence,
        active=active,
        recommended_action=RecommendedAction.MONITOR,
    )
