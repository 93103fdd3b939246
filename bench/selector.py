"""Does choosing checks by risk keep what the full set finds, and what does it save? Simulated fleets, and real traces.

Fleets are those of ``lib_fleet_history``: how their defects arrive is not the form that the model assumes. Each runs
half of its time under the full set before every job, from which the Selector learns first, and half under a policy.
A share that is asked for is one of what is there to be found on the day; what one day misses may be found on the next.
Traces of spot instances (``MAINSTAY_TEST_DATA`` names the folder that holds traces) tell when a node went away and
nothing about the node, so the only covariates there are what the fleet did around it.
``python -m bench.selector [--json FILE]``
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from bench.lib_exact import exact, greedy, problem_of
from bench.lib_fleet_history import FORMS, START, Fleet, Form, broad, everything, suite
from bench.lib_selecting import HALF, Chooser, Compared, Selecting, Shop, Tailoring, Trial, add_tally
from bench.report import Row, publish, target_file
from mainstay.detectors.selector import learning, per_node_search
from mainstay.detectors.selector.coverage import Coverage, DefectRecord
from mainstay.detectors.selector.history import HOUR, CovariateEncoder, as_known
from mainstay.detectors.selector.learning import HeldOut, landmarks
from mainstay.detectors.selector.risk import SelectionProblem

WORLDS: tuple[tuple[int, Form], ...] = ((31, "frailty"), (32, "weibull"), (33, "steps"))
"""Worlds that policies are judged on; what was tried out on the way was tried on 11 to 13 and 21 to 23."""
P0, WORTH = 0.1, (72_000.0, 144_000.0)
"""Highest risk of a job of eight nodes and a day, and the node-seconds that an averted incident is worth: eight nodes
lose an hour with the restart, and the one that failed half a day; or twice as much."""
HORIZONS = (24.0, 72.0, 168.0)
PLAIN = ("kaplan-meier", "exponential")
"""The models that know nothing of the node."""


@dataclass(frozen=True)
class Asked:
    """A policy that is to be judged."""

    what: str
    shop: Shop
    make: Callable[[], Chooser]
    note: str = ""
    p0: bool = False


def asked() -> list[Asked]:
    made = "micro-benchmarks are 20 % of its time; costs and sights are assumed"
    tight = "in this set most classes have one benchmark that sees them well"
    found = [
        Asked(f"{name}, {keep:.1%} asked for, {way}", shop, partial(kind, keep=keep, **more), note)
        for name, shop, keeps, note in (
            ("sixteen assumed benchmarks", broad, (0.98, 0.99), made),
            ("our deep suite", suite, (0.98, 0.99), tight),
        )
        for keep in keeps
        for way, kind, more in (
            ("a set for each node", Tailoring, {}),
            *((("one set for all", Selecting, {"spare_nodes": False}),) if keep == 0.99 else ()),
        )
    ]
    for worth in WORTH:
        name = f"p0 policy, an incident is worth {worth / 3600:g} node-hours"
        found.append(Asked(name, broad, partial(Tailoring, target=P0, worth=worth), p0=True))
    return found


def policies() -> list[Row]:
    """Every policy in every judged world, each on a core of its own."""
    wanted = asked()
    shops = list(dict.fromkeys(one.shop for one in wanted))
    with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        fixed = {(shop, *world): pool.submit(Trial(*world, shop, None)) for shop in shops for world in WORLDS}
        runs = {
            (one.what, *world): pool.submit(Trial(*world, one.shop, one.make)) for one in wanted for world in WORLDS
        }
        rows: list[Row] = []
        for one in wanted:
            total = Compared()
            for world in WORLDS:
                rules, run = fixed[one.shop, *world].result(), runs[one.what, *world].result()
                add_tally(total.policy, run.policy)
                add_tally(total.full, rules.full)
                add_tally(total.none, rules.none)
                total.seconds += run.seconds
            rows += _at_p0(one, total) if one.p0 else _kept(one, total)
    return rows


def _kept(one: Asked, found: Compared) -> list[Row]:
    """A share of what the full set finds that is to be kept."""
    share = partial(Row, kind="simulated", unit="of full set", n=len(WORLDS), note=one.note)
    mtbi, defects = f"MTBI {found.mtbi:.3f} of the full set's", f"{found.policy.full_found} defects"
    good, cheap = found.found >= 0.99, found.share <= 0.4
    return [
        share(claim=f"{one.what}: detections", figure=found.found, target=">= 0.99", holds=good, baseline=defects),
        share(claim=f"{one.what}: time", figure=found.share, target="<= 0.40", holds=cheap, baseline=mtbi),
    ]


def _at_p0(one: Asked, p0: Compared) -> list[Row]:
    """A policy with a highest risk of a job and a price."""
    none = f"no checks: MTBI {p0.none.mtbi:.0f} h, full set {p0.full.mtbi:.0f} h"
    share = partial(Row, kind="simulated", unit="of full set", n=len(WORLDS))
    doubt = 2 / np.sqrt(max(1, p0.full.incidents))
    counted = f"{p0.policy.incidents} incidents, full set {p0.full.incidents}: uncertain by {doubt:.3f}; "
    told = f"p0 = {P0:g} of a job of 8 nodes and 24 h; {np.median(p0.seconds) * 1e3:.0f} ms a decision"
    saved, found = 1 - p0.share, counted + f"defects found {p0.found:.3f}"
    good = p0.mtbi >= 0.95
    return [
        share(claim=f"{one.what}: time saved", figure=saved, target=">= 0.85", holds=saved >= 0.85, note=told),
        share(claim=f"{one.what}: MTBI", figure=p0.mtbi, target=">= 0.95", holds=good, baseline=none, note=found),
    ]


def random_problem(rng: np.random.Generator) -> tuple[SelectionProblem, float]:
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
    problem = problem_of(Coverage.learn(records, names), rng.lognormal(3, 1, n), p)
    before, after = problem.residual(problem.none()), problem.residual(problem.all())
    return problem, after + (before - after) * rng.uniform(0.01, 0.7)


def random_pairs(rng: np.random.Generator) -> tuple[per_node_search.NodeBenchmarkPairs, float]:
    """Two to four nodes with three to seven benchmarks, sixteen pairs at most, and a target that can be reached."""
    nodes = int(rng.integers(2, 5))
    benchmarks = int(rng.integers(3, 16 // nodes + 1))
    sees = rng.random((int(rng.integers(3, 20)), benchmarks)) < rng.uniform(0.2, 0.7)
    mass = rng.gamma(0.7, 0.05, (nodes, 1)) * rng.dirichlet(np.full(len(sees), 0.5), nodes)
    made = per_node_search.NodeBenchmarkPairs(
        seconds=rng.lognormal(3, 1, benchmarks), sees=sees, mass=mass, rest=rng.uniform(0, 0.01, nodes)
    )
    before, after = made.hazard(made.none()), made.hazard(made.all())
    return made, -math.expm1(-(after + (before - after) * rng.uniform(0.01, 0.7)))


def many_pairs(rng: np.random.Generator) -> per_node_search.NodeBenchmarkPairs:
    """Sixty nodes with ten benchmarks: too many for an exact answer."""
    mass = rng.gamma(0.5, size=(60, 1)) * rng.dirichlet(np.ones(30), 60)
    return per_node_search.NodeBenchmarkPairs(
        seconds=rng.lognormal(3, 1, 10), sees=rng.random((30, 10)) < 0.3, mass=mass, rest=np.zeros(60)
    )


def lagrange_bound(problem: per_node_search.NodeBenchmarkPairs, found: per_node_search.PerNodeSets) -> float:
    """Node-seconds below which no sets reach the goal.

    For any price, cost plus price times hazard is least somewhere, and each node's least is that of its 2^n sets.
    """
    n = len(problem.seconds)
    every = (np.arange(2**n)[:, None] >> np.arange(n) & 1).astype(bool)
    missed = problem.mass @ ~((every.astype(np.int64) @ problem.sees.T) > 0).T
    bounds: list[float] = [
        float(((every @ problem.seconds)[None, :] + price * missed).min(axis=1).sum())
        - price * (found.goal - float(problem.rest.sum()))
        for price in (found.price * np.geomspace(0.8, 1.1, 13)).tolist()
    ]
    return max(bounds)


def against_bound(instances: int = 40) -> list[Row]:
    ratios = []
    for seed in range(instances):
        problem = many_pairs(np.random.default_rng([2, seed]))
        found = per_node_search.make(problem, keep=0.95)
        assert found.reached
        ratios.append(problem.cost(found.chosen) / lagrange_bound(problem, found))
    near = float(np.mean(np.array(ratios) <= 1.05))
    told = f"Lagrange's lower bound; mean {np.mean(ratios):.4f}, worst {max(ratios):.4f} times it"
    claim = "60 nodes x 10 benchmarks: sets within 5 % of a lower bound of the optimum"
    return [
        Row(claim=claim, figure=near, unit="of instances", target="1", holds=near == 1.0, kind="simulated",
            baseline=told, n=instances)
    ]  # fmt: skip


def against_exact(instances: int = 400) -> list[Row]:
    rng = np.random.default_rng(5)
    ratios: dict[str, list[float]] = {"one set for all": [], "(node, benchmark) pairs": []}
    for _ in range(instances):
        problem, target = random_problem(rng)
        found, best = greedy(problem, target=target), exact(problem, target=target)
        assert found.reached
        assert best.reached
        ratios["one set for all"].append(found.seconds / best.seconds)
        pairs, target = random_pairs(rng)
        least = exact(per_node_search.PairList(pairs=pairs), target=target)
        ratios["(node, benchmark) pairs"].append(
            pairs.cost(per_node_search.make(pairs, target=target).chosen) / least.seconds if least.seconds else 1.0
        )
    return [_near(what, told) for what, told in ratios.items()]


def _near(what: str, ratios: Sequence[float]) -> Row:
    near = float(np.mean(np.array(ratios) <= 1.05))
    return Row(
        claim=f"{what}: greedy choice within 5 % of the exact optimum", figure=near, unit="of instances", target="1",
        holds=near == 1.0, kind="simulated", baseline=f"exact enumeration; worst {max(ratios):.4f} times it",
        n=len(ratios),
    )  # fmt: skip


def judged(seed: int, form: Form) -> dict[str, HeldOut]:
    """Every model, learned from the first half of a history and scored on the second."""
    fleet = Fleet(seed, form)
    fleet.run(everything, 2 * HALF)
    split, histories = START + HALF * HOUR, fleet.histories()
    before = [as_known(h, split) for h in histories]
    encoder = CovariateEncoder.learn(before)
    failure_runs = encoder.failure_runs(before)
    marks = landmarks(histories, encoder, split + np.arange(0, HALF, 36.0) * HOUR)
    return {
        name: learning.held_out_scores(learning.fit(make(), failure_runs), marks, HORIZONS)
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
    about = "the trace records of a node only how long it has lived: all nodes of one age look alike at one moment"
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
    publish("selector", [*policies(), *against_exact(), *against_bound(), *survival(), *traces()], file)


if __name__ == "__main__":
    main()
