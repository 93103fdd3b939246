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
from functools import partial
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
    Tally,
    broad,
    everything,
    nothing,
    suite,
)
from bench.report import Row, publish, target_file
from detectors.selector import learning, plan, scores, select
from detectors.selector.coverage import Coverage, DefectRecord, shares_of
from detectors.selector.hazard import Floats
from detectors.selector.history import HOUR, Encoder, as_known
from detectors.selector.learning import HeldOut, Learned, landmarks, learn
from detectors.selector.risk import Problem

HALF = 2160.0
WORLDS: tuple[tuple[int, Form], ...] = ((11, "frailty"), (12, "weibull"), (13, "steps"))
KEEP = 0.995
"""Share of the full set's effect that is asked for, to have 99 % on days that were not seen."""
P0, WORTH = 0.1, 72_000.0
"""Highest risk of a job of eight nodes and a day, and the node-seconds that an averted incident is worth: eight nodes
lose an hour with the restart, and the one that failed half a day."""
HORIZONS = (24.0, 72.0, 168.0)


@dataclass
class Selecting:
    """The Selector as a policy: learns every two weeks from what the fleet's operator knows."""

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
        if self._learned is None or self._coverage is None or now - self._at >= 336:
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


def add(total: Tally, more: Tally) -> None:
    for name in vars(total):
        setattr(total, name, getattr(total, name) + getattr(more, name))


def compare(
    make: Callable[[], Selecting], worlds: Sequence[tuple[int, Form]], shop: Callable[[int], Catalogue]
) -> Compared:
    total = Compared()
    for seed, form in worlds:
        policy = make()
        for tally, rule in ((total.policy, policy), (total.full, everything), (total.none, nothing)):
            fleet = Fleet(seed, form, shop=shop(seed))
            fleet.run(everything, HALF)
            add(tally, fleet.run(rule, 2 * HALF))
        total.seconds += policy.seconds
    return total


def policies() -> list[Row]:
    p0 = compare(lambda: Selecting(target=P0, worth=WORTH), WORLDS, broad)
    none = f"no checks: MTBI {p0.none.mtbi:.0f} h, full set {p0.full.mtbi:.0f} h"
    share = partial(Row, kind="simulated", unit="of full set", n=len(WORLDS))
    doubt = 2 / np.sqrt(max(1, p0.full.incidents))
    counted = f"{p0.policy.incidents} incidents, full set {p0.full.incidents}: uncertain by {doubt:.3f}; "
    asked = f"p0 = {P0:g} of a job of 8 nodes and 24 h; an averted incident is worth {WORTH:g} node-seconds"
    saved, decision = 1 - p0.share, float(np.median(p0.seconds)) * 1e3
    return [
        *kept("sixteen assumed benchmarks", WORLDS, broad, "micro-benchmarks are 20 % of its time; costs are assumed"),
        *kept("our deep suite", WORLDS[:2], suite, "one benchmark a class sees it well: most are needed"),
        share(claim="time saved at a p0 policy", figure=saved, target=">= 0.85", holds=saved >= 0.85, note=asked),
        share(
            claim="MTBI at that policy", figure=p0.mtbi, target=">= 0.95", holds=p0.mtbi >= 0.95, baseline=none,
            note=counted + f"defects found {p0.found:.3f}",
        ),
        Row(
            claim="one decision (8 nodes, 16 benchmarks), median", figure=decision, unit="ms", target="", holds=None,
            kind="live", n=len(p0.seconds),
        ),
    ]  # fmt: skip


def kept(what: str, worlds: Sequence[tuple[int, Form]], shop: Callable[[int], Catalogue], note: str) -> list[Row]:
    """The same subset on all nodes, for as long as nothing is learned anew."""
    found = compare(lambda: Selecting(keep=KEEP, spare_nodes=False), worlds, shop)
    share = partial(Row, kind="simulated", unit="of full set", n=len(worlds), note=note)
    mtbi, defects = f"MTBI {found.mtbi:.3f} of the full set's", f"{found.policy.full_found} defects"
    good, cheap = found.found >= 0.99, found.share <= 0.4
    return [
        share(claim=f"{what}: detections", figure=found.found, target=">= 0.99", holds=good, baseline=defects),
        share(claim=f"{what}: time", figure=found.share, target="<= 0.40", holds=cheap, baseline=mtbi),
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


def trace_scores(file: Path) -> dict[str, tuple[float, float]]:
    """Model → (concordance, Brier score) on the last 40 % of a trace, learned from the first 60 %."""
    nodes, end = lives(file)
    split, step, horizons = 0.6 * end, 1 / 6, (0.25, 0.5, 1.0)
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
    moments = np.arange(split, end - step, step)
    asked = [
        (life, t) for life in nodes for t in moments if life.added < t and (life.removed is None or life.removed > t)
    ]
    marks = np.array([around(nodes, t) for _, t in asked])
    survived = np.array([t - life.added for life, t in asked])
    residual = np.array([(end if life.removed is None else life.removed) - t for life, t in asked])
    observed = np.array([life.removed is not None for life, _ in asked])
    told: dict[str, tuple[float, float]] = {}
    for name, make in learning.MODELS.items():
        model = make().fit(np.array(x), table[:, 1], table[:, 2], table[:, 0])
        p: Floats = np.stack([model.conditional(marks, survived, hours) for hours in horizons], axis=1)
        told[name] = (
            scores.concordance(p[:, 1], residual, observed),
            scores.integrated_brier(p, residual, observed, horizons),
        )
    return told


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
        others = ", ".join(f"{m} C {c:.3f} Brier {b:.4f}" for m, (c, b) in told.items() if m != "cox")
        order, error = told["cox"]
        better = error < min(told[m][1] for m in told if m != "cox")
        c, b = f"concordance, {name}", f"Brier score of Cox, {name}"
        rows += [
            replayed(claim=c, figure=order, target=">= 0.70", holds=order >= 0.7, baseline=others, note=about),
            replayed(claim=b, figure=error, target="below both", holds=better, baseline=others),
        ]
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    file = target_file("selector", argv)
    publish("selector", [*policies(), *against_exact(), *survival(), *traces()], file)


if __name__ == "__main__":
    main()
