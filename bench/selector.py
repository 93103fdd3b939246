"""Does choosing checks by risk keep what the full set finds, and what does it save? Simulated fleets, and real traces.

Fleets are those of ``lib_fleet_history``: how their defects arrive is not the form that the model assumes. Each runs
half of its time under the full set before every job, from which the Selector learns first, and half under a policy.
Traces of spot instances (``MAINSTAY_TEST_DATA`` names the folder that holds traces) tell when a node went away and
nothing about the node, so the only covariates there are what the fleet did around it.
``python -m bench.selector [--json FILE]``
"""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

import numpy as np

from bench.lib_fleet_history import (
    FORMS,
    JOB_HOURS,
    START,
    Catalogue,
    Fleet,
    Form,
    Node,
    Policy,
    Tally,
    broad,
    everything,
    nothing,
    suite,
)
from bench.report import Row, publish, target_file
from detectors.selector import learning, plan, select
from detectors.selector.coverage import Coverage, DefectRecord, shares_of
from detectors.selector.history import HOUR, Encoder, as_known
from detectors.selector.learning import HeldOut, Learned, landmarks, learn
from detectors.selector.risk import Problem

HALF = 2160.0
WORLDS: tuple[tuple[int, Form], ...] = ((11, "frailty"), (12, "weibull"), (13, "steps"))
P0, WORTH = 0.1, (72_000.0, 144_000.0)
"""Highest risk of a job of eight nodes and a day, and the node-seconds that an averted incident is worth: eight nodes
lose an hour with the restart, and the one that failed half a day; or twice as much."""
Shop = Callable[[int], Catalogue]
HORIZONS = (24.0, 72.0, 168.0)
PLAIN = ("kaplan-meier", "exponential")
"""The models that know nothing of the node."""


@dataclass
class Selecting:
    """The Selector as a policy: learns every week from what the fleet's operator knows."""

    target: float | None = None
    keep: float | None = None
    worth: float | None = None
    spare_nodes: bool = True
    seconds: list[float] = field(default_factory=list)
    _at: float = -1e9
    _learned: Learned | None = None
    _coverage: Coverage | None = None

    def __call__(self, fleet: Fleet, nodes: Sequence[Node], now: float) -> tuple[frozenset[str], frozenset[str]]:
        shop = fleet.shop
        if self._learned is None or self._coverage is None or now - self._at >= 168:
            self._learned, self._at = learn(fleet.histories()), now
            self._coverage = Coverage.learn(fleet.records, shop.names, classes=shop.classes, catches=shop.catches)
        begun = time.perf_counter()
        p = self._learned.risk([node.history(now) for node in nodes], START + now * HOUR, JOB_HOURS)
        shares = np.stack([shares_of(self._coverage, node.own) for node in nodes])
        made = plan.make(
            Problem.of(self._coverage, shop.seconds, p, shares),
            target=self.target, keep=self.keep, worth=self.worth, spare_nodes=self.spare_nodes, thorough=False,
        )  # fmt: skip
        self.seconds.append(time.perf_counter() - begun)
        chosen = frozenset(name for name, on in zip(shop.names, made.choice.chosen, strict=True) if on)
        return chosen, frozenset(node.name for node, on in zip(nodes, made.checked, strict=True) if on)


@dataclass
class Compared:
    """One policy against the full set, summed over worlds."""

    policy: Tally = field(default_factory=Tally)
    full: Tally = field(default_factory=Tally)
    none: Tally = field(default_factory=Tally)
    seconds: list[float] = field(default_factory=list)

    @property
    def share(self) -> float:
        return self.policy.seconds / self.policy.full_seconds

    @property
    def found(self) -> float:
        return self.policy.found / max(1, self.policy.full_found)

    @property
    def mtbi(self) -> float:
        return self.policy.mtbi / self.full.mtbi


@cache
def second_half(seed: int, form: Form, shop: Shop, rule: Policy) -> Tally:
    """What a fixed rule does in the half in which policies are judged."""
    fleet = Fleet(seed, form, shop=shop(seed))
    fleet.run(everything, HALF)
    return fleet.run(rule, 2 * HALF)


def add(total: Tally, more: Tally) -> None:
    for name in vars(total):
        setattr(total, name, getattr(total, name) + getattr(more, name))


def compare(make: Callable[[], Selecting], worlds: Sequence[tuple[int, Form]], shop: Shop) -> Compared:
    total = Compared()
    for seed, form in worlds:
        policy = make()
        fleet = Fleet(seed, form, shop=shop(seed))
        fleet.run(everything, HALF)
        add(total.policy, fleet.run(policy, 2 * HALF))
        add(total.full, second_half(seed, form, shop, everything))
        add(total.none, second_half(seed, form, shop, nothing))
        total.seconds += policy.seconds
    return total


def policies() -> list[Row]:
    made = "micro-benchmarks are 20 % of its time; costs and sights are assumed"
    tight = "in this set most classes have one benchmark that sees them well"
    return [
        *kept("sixteen assumed benchmarks", 0.99, WORLDS, broad, made),
        *kept("sixteen assumed benchmarks", 0.995, WORLDS, broad, made),
        *kept("our deep suite", 0.99, WORLDS[:2], suite, tight),
        *(row for worth in WORTH for row in at_p0(worth)),
    ]


def kept(what: str, keep: float, worlds: Sequence[tuple[int, Form]], shop: Shop, note: str) -> list[Row]:
    """A subset on all nodes that is to keep a share of what the full set finds."""
    found = compare(lambda: Selecting(keep=keep, spare_nodes=False), worlds, shop)
    share = partial(Row, kind="simulated", unit="of full set", n=len(worlds), note=note)
    mtbi, defects = f"MTBI {found.mtbi:.3f} of the full set's", f"{found.policy.full_found} defects"
    good, cheap = found.found >= 0.99, found.share <= 0.4
    what = f"{what}, {keep:.1%} asked for"
    return [
        share(claim=f"{what}: detections", figure=found.found, target=">= 0.99", holds=good, baseline=defects),
        share(claim=f"{what}: time", figure=found.share, target="<= 0.40", holds=cheap, baseline=mtbi),
    ]


def at_p0(worth: float) -> list[Row]:
    """A policy with a highest risk of a job and a price."""
    p0 = compare(lambda: Selecting(target=P0, worth=worth), WORLDS, broad)
    none = f"no checks: MTBI {p0.none.mtbi:.0f} h, full set {p0.full.mtbi:.0f} h"
    share = partial(Row, kind="simulated", unit="of full set", n=len(WORLDS))
    doubt = 2 / np.sqrt(max(1, p0.full.incidents))
    counted = f"{p0.policy.incidents} incidents, full set {p0.full.incidents}: uncertain by {doubt:.3f}; "
    asked = f"p0 = {P0:g} of a job of 8 nodes and 24 h; {np.median(p0.seconds) * 1e3:.0f} ms a decision"
    saved, name = 1 - p0.share, f"p0 policy, an incident is worth {worth / 3600:g} node-hours"
    found = counted + f"defects found {p0.found:.3f}"
    good = p0.mtbi >= 0.95
    return [
        share(claim=f"{name}: time saved", figure=saved, target=">= 0.85", holds=saved >= 0.85, note=asked),
        share(claim=f"{name}: MTBI", figure=p0.mtbi, target=">= 0.95", holds=good, baseline=none, note=found),
    ]


def random_problem(rng: np.random.Generator) -> tuple[Problem, float]:
    """Benchmarks whose coverages are correlated in one of three ways, and a target that can be reached."""
    n, k, way = int(rng.integers(6, 15)), int(rng.integers(2, 12)), int(rng.integers(3))
    names = [f"b{i}" for i in range(n)]
    sees = rng.random((k, n)) < rng.uniform(0.2, 0.7)
    sight = rng.beta(1, 1, n) if rng.random() < 0.5 else np.linspace(0.2, 0.95, n)
    records = []
    for _ in range(int(rng.integers(25, 500))):
        kind, shared = int(rng.integers(k)), rng.random()
        luck = {0: np.full(n, shared), 1: rng.random(n), 2: 0.7 * shared + 0.3 * rng.random(n)}[way]
        found = frozenset(name for j, name in enumerate(names) if sees[kind, j] and luck[j] < sight[j])
        records.append(DefectRecord(defect=str(kind), found=found))
    p = rng.beta(1, 20, int(rng.integers(1, 64)))
    problem = Problem.of(Coverage.learn(records, names), rng.lognormal(3, 1, n), p)
    before, after = problem.residual(problem.none()), problem.residual(problem.all())
    return problem, after + (before - after) * rng.uniform(0.01, 0.7)


def against_exact(instances: int = 400) -> list[Row]:
    rng = np.random.default_rng(5)
    ratios = []
    for _ in range(instances):
        problem, target = random_problem(rng)
        found, best = select.greedy(problem, target=target), select.exact(problem, target=target)
        assert found.reached
        assert best.reached
        ratios.append(found.seconds / best.seconds)
    worst, near = max(ratios), float(np.mean(np.array(ratios) <= 1.05))
    return [
        Row(claim="greedy choice within 5 % of the exact optimum", figure=near, unit="of instances", target="1",
            holds=near == 1.0, kind="simulated", baseline=f"exact enumeration; worst {worst:.4f} times it", n=instances)
    ]  # fmt: skip


def judged(seed: int, form: Form) -> dict[str, HeldOut]:
    """Every model, learned from the first half of a history and scored on the second."""
    fleet = Fleet(seed, form)
    fleet.run(everything, 2 * HALF)
    split, histories = START + HALF * HOUR, fleet.histories()
    before = [as_known(h, split) for h in histories]
    encoder = Encoder.learn(before)
    episodes = encoder.episodes(before)
    marks = landmarks(histories, encoder, split + np.arange(0, HALF, 36.0) * HOUR)
    return {
        name: learning.held_out_scores(learning.fit(make(), episodes), marks, HORIZONS)
        for name, make in learning.MODELS.items()
    }


def survival() -> list[Row]:
    rows = []
    for form in (*FORMS, "memoryless"):
        found = [judged(seed, form) for seed in (21, 22)]
        c = float(np.mean([f["cox"].concordance for f in found]))
        b = {name: float(np.mean([f[name].brier for f in found])) for name in learning.MODELS}
        learnable = form != "memoryless"
        told = f"Brier: Kaplan-Meier {b['kaplan-meier']:.4f}, exponential {b['exponential']:.4f}"
        better = b["cox"] < min(b["kaplan-meier"], b["exponential"])
        note = "" if learnable else "nothing can be learned here but which nodes have a defect already"
        rows += [
            Row(claim=f"concordance, {form}", figure=c, unit="", target=">= 0.70" if learnable else "",
                holds=c >= 0.7 if learnable else None, kind="simulated", n=2, note=note),
            Row(claim=f"Brier score of Cox, {form}", figure=b["cox"], unit="", target="below both" if learnable else "",
                holds=better if learnable else None, kind="simulated", baseline=told, n=2),
        ]  # fmt: skip
    return rows


# real traces of spot instances


@dataclass(frozen=True)
class Life:
    """A node of a trace, hours."""

    added: float
    removed: float | None


def data_folder() -> Path:
    given = os.environ.get("MAINSTAY_TEST_DATA")
    return Path(given) if given else Path(__file__).resolve().parents[2] / "shared" / "data"


def lives(file: Path) -> tuple[list[Life], float]:
    """Lives of all nodes of a trace, and when it ends."""
    there: dict[str, float] = {}
    found: list[Life] = []
    at = 0.0
    with file.open() as rows:
        for millis, what, node in csv.reader(rows):
            at = float(millis) / 3.6e6
            if what == "add":
                there.setdefault(node, at)
            elif node in there:
                found.append(Life(there.pop(node), at))
    return found + [Life(added, None) for added in there.values()], at


def around(nodes: Sequence[Life], at: float) -> list[float]:
    """What the fleet did just before: removals, additions, and how many there are."""
    gone = [life.removed for life in nodes if life.removed is not None and life.removed < at]
    new = [life.added for life in nodes if life.added < at]
    lately = [sum(at - t <= hours for t in times) for times in (gone, new) for hours in (1 / 6, 1.0)]
    return [*np.log1p(lately).tolist(), float(np.log1p(len(new) - len(gone)))]


def trace_scores(file: Path) -> dict[str, HeldOut]:
    """Model → its scores on the last 40 % of a trace, learned from the first 60 %.

    ``chosen`` is the model that was best on the last third of what was learned from, as ``learning.learn`` chooses.
    """
    nodes, end = lives(file)
    split = 0.6 * end
    trial = trace_judged(nodes, 0.4 * end, split)
    told = trace_judged(nodes, split, end)
    return told | {"chosen": told[min(trial, key=lambda name: trial[name].brier)]}


def trace_judged(nodes: Sequence[Life], split: float, end: float) -> dict[str, HeldOut]:
    """Model → its scores between two hours, learned from all before the first."""
    step, horizons = 1 / 6, (0.25, 0.5, 1.0)
    x, spans = [], []
    for life in nodes:
        stop = min(split, end if life.removed is None else life.removed)
        at = life.added
        while at < stop - 1e-9:
            until = min(stop, at + step)
            x.append(around(nodes, at + 1e-6))
            spans.append((at - life.added, until - life.added, float(life.removed == until)))
            at = until
    table = np.array(spans)
    left = {life: end if life.removed is None else min(life.removed, end) for life in nodes}
    asked = [(n, t) for t in np.arange(split, end - step, step) for n in nodes if n.added < t < left[n]]
    marks = learning.Landmarks(
        x=np.array([around(nodes, t) for _, t in asked]),
        survived=np.array([t - life.added for life, t in asked]),
        residual=np.array([left[life] - t for life, t in asked]),
        observed=np.array([life.removed is not None and life.removed <= end for life, _ in asked]),
    )
    return {
        name: learning.held_out_scores(make().fit(np.array(x), table[:, 1], table[:, 2], table[:, 0]), marks, horizons)
        for name, make in learning.MODELS.items()
    }


def traces() -> list[Row]:
    rows: list[Row] = []
    replayed = partial(Row, kind="replayed", unit="")
    about = "the trace tells of a node only how long it has lived: all nodes of one age look alike at one moment"
    for name in ("p3-trace.csv", "g4dn-trace.csv"):
        file = data_folder() / "traces" / "bamboo" / name
        if not file.is_file():
            why = f"no file {'/'.join(file.parts[-3:])}: set MAINSTAY_TEST_DATA"
            rows.append(replayed(claim=f"spot trace {name}", figure="not run", target="", holds=None, note=why))
            continue
        told = trace_scores(file)
        others = ", ".join(f"{m} C {told[m].concordance:.3f} Brier {told[m].brier:.4f}" for m in PLAIN)
        order, error, least = told["cox"].concordance, told["cox"].brier, min(told[m].brier for m in PLAIN)
        c, b, chosen = f"concordance, {name}", f"Brier score of Cox, {name}", f"Brier score of the chosen model, {name}"
        best = told["chosen"].brier
        rows += [
            replayed(claim=c, figure=order, target=">= 0.70", holds=order >= 0.7, baseline=others, note=about),
            replayed(claim=b, figure=error, target="below both", holds=error < least, baseline=others),
            replayed(claim=chosen, figure=best, target="not above both", holds=best <= least, baseline=others),
        ]
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    file = target_file("selector", argv)
    publish("selector", [*policies(), *against_exact(), *survival(), *traces()], file)


if __name__ == "__main__":
    main()
