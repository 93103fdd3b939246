"""Criteria learned from distributions: real GPUs with injected slowdowns (replayed), fleets with known defects.

Replayed: TACC Longhorn's V100s, half of the nodes to learn from, the other half judged, drawn twenty times. Three ways:

- *population*: all runs of a GPU, all slowed, against the cohort. What a device that has no past can be judged by.
- *own past*: a device's later half of runs, slowed, against its earlier half; the limit is learned from other devices.
- *chosen*: whichever of the two says, from the learning half alone, that it detects the smaller slowdown
  (``detectable``). This is what the goal is held to.

Simulated too: machines that drift between sessions, judged in sessions to come by limits with sessions and without.

``python -m bench.validator [--json FILE] [--quick]`` (quick: fewer simulated cohorts); the data are looked for in
``MAINSTAY_TEST_DATA`` or beside the project.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from bench import lib_drifting_fleet as drifting
from bench import lib_validator_fleet as synthetic
from bench.lib_gpu_variability import BENCHMARKS, FOLDER, Gpu, is_healthy, load, slow_nodes, splits
from bench.lib_similarity import distances
from bench.lib_whole_nodes import whole_node_rows
from bench.report import Row, publish, target_file
from mainstay.detectors.base import Floats
from mainstay.detectors.statistics.conformal import Mask
from mainstay.detectors.statistics.similarity import medoid, shortfalls
from mainstay.detectors.validation.criteria import judge, worst
from mainstay.detectors.validation.criterion_learning import MetricSample, learn_criteria, samples_of
from mainstay.detectors.validation.criterion_limits import LimitEstimator, NotAGateError, RobustLimits, robust_scale
from mainstay.detectors.validation.node_clusters import group
from mainstay.detectors.validation.repeatability import repeatability
from mainstay.detectors.validation.validator import OwnPast, Validator
from mainstay.probes.benchmarks.result import Better
from mainstay.probes.core_types import Verdict

BUDGET = 0.005
SLOWDOWNS = (0.0, 0.02, 0.03, 0.05, 0.07, 0.10)
TARGETS = {0.03: 0.80, 0.05: 0.95, 0.07: 0.99}
TIMES = 20
FLEETS = 20
FLEET_BUDGET = 0.01
"""Healthy nodes failed in a sweep over the whole fleet, in expectation."""
DRIFTS = (0.0, 0.01, 0.03)
"""Scatter of sessions: none, more than twice that of runs, and that of a rate through the kernel's network stack."""
COHORTS, COHORTS_QUICK = 20, 4
"""Simulated cohorts of each kind: 500 clean runs, in which a budget of 0.5 % is two or three."""
LOWER = Better.LOWER


@dataclass
class Tally:
    """Shares flagged at each slowdown, one entry a split."""

    shares: dict[float, list[float]] = field(default_factory=lambda: {s: [] for s in SLOWDOWNS})

    def add_outcome(self, slowdown: float, flagged: Mask | Sequence[bool]) -> None:
        self.shares[slowdown].append(float(np.mean(flagged)))

    def at(self, slowdown: float) -> float:
        return float(np.mean(self.shares[slowdown])) if self.shares[slowdown] else float("nan")

    @property
    def description(self) -> str:
        recalls = ", ".join(f"{s:.0%}: {self.at(s):.3f}" for s in SLOWDOWNS[1:])
        return f"recall {recalls}; healthy flagged {self.at(0.0):.3%}"

    @property
    def holds(self) -> bool:
        return self.at(0.0) <= BUDGET and all(self.at(s) >= least for s, least in TARGETS.items())


@dataclass
class Replay:
    """One benchmark, all splits."""

    name: str
    gpus: list[Gpu]
    healthy: list[bool]
    ways: dict[str, Tally] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    """Reasons, one a split in which the population criterion was refused."""
    chosen: list[str] = field(default_factory=list)
    """The way chosen, one a split."""
    nodes: int = 0
    nodes_found: int = 0
    outliers: list[float] = field(default_factory=list)
    everybody: list[float] = field(default_factory=list)
    """Share of all GPUs flagged, natural outliers counted as healthy."""

    def way(self, name: str) -> Tally:
        return self.ways.setdefault(name, Tally())


def replay(name: str) -> Replay:
    gpus = load(name)
    found = Replay(name=name, gpus=gpus, healthy=is_healthy(gpus))
    for learned, judged in splits(gpus, TIMES):
        population = _population(found, learned, judged)
        past = _own_past(found, learned, judged)
        _choose(found, population, past)
        _fixed(found, learned, judged)
    return found


def _healthy(found: Replay, judged: Sequence[int]) -> list[Gpu]:
    return [found.gpus[i] for i in judged if found.healthy[i]]


def _population(found: Replay, learned: Sequence[int], judged: Sequence[int]) -> Validator | None:
    gpus = found.gpus
    try:
        validator = Validator(BUDGET).fit([gpus[i].times for i in learned], LOWER)
    except NotAGateError as error:
        found.refused.append(str(error))
        return None
    for slowdown in SLOWDOWNS:
        flagged = _fails(validator, [gpu.times * (1 + slowdown) for gpu in _healthy(found, judged)])
        found.way("population").add_outcome(slowdown, flagged)
    natural = [gpus[i] for i in judged if not found.healthy[i]]
    if natural:
        found.outliers += _fails(validator, [gpu.times for gpu in natural])
    found.everybody.append(float(np.mean(_fails(validator, [gpus[i].times for i in judged]))))
    flags = _fails(validator, [gpu.times for gpu in gpus])
    groups = group(
        {gpu.name for gpu, flag in zip(gpus, flags, strict=True) if flag},
        {gpu.name: gpu.node for gpu in gpus},
    )
    whole = {one.node for one in groups if len(one.devices) == one.of > 1}
    found.nodes += len(slow_nodes(gpus))
    found.nodes_found += len(slow_nodes(gpus) & whole)
    return validator


def _fails(validator: Validator, runs: Sequence[Floats]) -> list[bool]:
    return _failed(validator.predict(runs))


def _failed(verdicts: Sequence[Verdict]) -> list[bool]:
    return [verdict is Verdict.FAIL for verdict in verdicts]


def _own_past(found: Replay, learned: Sequence[int], judged: Sequence[int]) -> OwnPast:
    before, after = zip(*(found.gpus[i].halves for i in learned), strict=True)
    nodes = [found.gpus[i].node for i in learned]
    past = OwnPast(BUDGET).fit(before, after, LOWER, nodes)
    healthy = _healthy(found, judged)
    for slowdown in SLOWDOWNS:
        late = [gpu.halves[1] * (1 + slowdown) for gpu in healthy]
        early = [gpu.halves[0] for gpu in healthy]
        found.way("own past").add_outcome(slowdown, _failed(past.predict(early, late)))
    return past


def _choose(found: Replay, population: Validator | None, past: OwnPast) -> None:
    """Count the last split for the way that promises more; a metric that is no gate gets neither."""
    if population is None:
        return
    assert population.limits_.distribution is not None
    own = past.thresholds_.detectable < population.limits_.distribution.detectable
    found.chosen.append("own past" if own else "population")
    for slowdown in SLOWDOWNS:
        found.way("chosen").shares[slowdown].append(found.way(found.chosen[-1]).shares[slowdown][-1])


def _fixed(found: Replay, learned: Sequence[int], judged: Sequence[int]) -> None:
    """What others do with the same runs: the paper's alpha for every metric, and a median with 3 MAD."""
    runs = [found.gpus[i].times for i in learned]
    reference = runs[medoid(runs)]
    medians = np.array([np.median(run) for run in runs])
    edge = np.median(medians) + 3 * robust_scale(medians)
    for slowdown in SLOWDOWNS:
        slow = [gpu.times * (1 + slowdown) for gpu in _healthy(found, judged)]
        found.way("alpha 0.95").add_outcome(slowdown, distances(slow, reference, LOWER) >= 0.05)
        found.way("median + 3 MAD").add_outcome(slowdown, np.array([np.median(run) for run in slow]) > edge)
        found.way("fixed 10 %").add_outcome(slowdown, np.array([np.mean(run) for run in slow]) > 1.1 * medians.mean())


def replay_rows(found: Replay) -> list[Row]:
    """The rows of one benchmark; a benchmark that does not repeat must be refused, and nothing else is asked of it."""
    singles = [np.array([value]) for gpu in found.gpus for value in gpu.times]
    repeats = repeatability(singles, [gpu.name for gpu in found.gpus for _ in gpu.times])
    name, count = found.name.upper(), len(found.gpus)
    gate = Row(claim=f"{name}: similarity of single runs of one GPU", figure=repeats.similarity, unit="",
               target=">= 0.98 makes a gate", holds=None, kind="replayed", n=repeats.pairs,
               note="a gate" if repeats.is_gate else "not a gate")  # fmt: skip
    if found.refused:
        share = len(found.refused) / TIMES
        own = found.way("own past")
        return [gate, Row(claim=f"{name}: refused as a gate", figure=share, unit="of the splits",
                target="1.0, it is no gate", holds=share == 1.0 and repeats.is_gate is False,
                kind="replayed", n=TIMES,
                note=f"{found.refused[0]}. Own past, had it been one: {own.description}")]  # fmt: skip
    return [gate, *_claims(found, name, count), *_context(found, name, count)]


def _claims(found: Replay, name: str, count: int) -> list[Row]:
    chosen = found.way("chosen")
    by = ", ".join(f"{way} in {found.chosen.count(way)} of {TIMES} splits" for way in sorted(set(found.chosen)))
    peers = ("alpha 0.95", "median + 3 MAD", "fixed 10 %")
    rows = [
        Row(claim=f"{name}: healthy GPUs flagged", figure=chosen.at(0.0), unit="", target="<= 0.005",
            holds=chosen.at(0.0) <= BUDGET, kind="replayed", n=TIMES * count // 2, note=f"judged by {by}",
            baseline="; ".join(f"{way} {found.way(way).at(0.0):.4f}" for way in peers)),
    ]  # fmt: skip
    for slowdown, least in TARGETS.items():
        recall = chosen.at(slowdown)
        rows.append(
            Row(claim=f"{name}: recall at {slowdown:.0%}", figure=recall, unit="",
                target=f">= {least:.2f}", holds=recall >= least, kind="replayed", n=TIMES * count // 2,
                baseline="; ".join(f"{way} {found.way(way).at(slowdown):.2f}" for way in peers))
        )  # fmt: skip
    return rows


def _context(found: Replay, name: str, count: int) -> list[Row]:
    """What each way reaches on its own, and what becomes of the GPUs that are slow by nature."""
    rows = []
    for way in ("population", "own past"):
        tally = found.way(way)
        rows.append(
            Row(claim=f"{name}: recall at 5 %, {way} alone", figure=tally.at(0.05), unit="",
                target="the claim's, alone", holds=tally.holds, kind="replayed", n=TIMES * count // 2,
                note=tally.description)
        )  # fmt: skip
    natural = sum(not healthy for healthy in found.healthy)
    flagged = f"; of these {np.mean(found.outliers):.2f} flagged" if found.outliers else ""
    rows.append(
        Row(claim=f"{name}: flagged by the population, natural outliers counted as healthy",
            figure=float(np.mean(found.everybody)), unit="", target="", holds=None, kind="replayed",
            n=TIMES * count // 2, note=f"{natural} GPUs are not counted as healthy{flagged}")
    )  # fmt: skip
    if found.nodes:
        share = found.nodes_found / found.nodes
        rows.append(
            Row(claim=f"{name}: naturally slow whole nodes found, as one finding each", figure=share, unit="",
                target="all", holds=share == 1.0, kind="replayed", n=found.nodes,
                note=", ".join(sorted(slow_nodes(found.gpus))))
        )  # fmt: skip
    return rows


def clocks() -> Row:
    """SGEMM against the cohort, by time and by time x clock: the clock explains silicon, and hides its own faults."""
    gpus = load("sgemm")
    healthy = is_healthy(gpus)
    stalled, capped = Tally(), Tally()
    for learned, judged in splits(gpus, TIMES):
        times = Validator(BUDGET / 2).fit([gpus[i].times for i in learned], LOWER)
        cycles = Validator(BUDGET / 2).fit([gpus[i].times * gpus[i].clocks for i in learned], LOWER)
        for slowdown in SLOWDOWNS:
            mine = [gpus[i] for i in judged if healthy[i]]
            by_time = np.array(_fails(times, [gpu.times * (1 + slowdown) for gpu in mine]))
            for tally, clock in ((stalled, 1.0), (capped, 1 / (1 + slowdown))):
                runs = [gpu.times * (1 + slowdown) * gpu.clocks * clock for gpu in mine]
                tally.add_outcome(slowdown, by_time | np.array(_fails(cycles, runs)))
    return Row(claim="SGEMM: recall at 5 %, population with time x clock, a fault that lowers the clock",
               figure=capped.at(0.05), unit="", target="the claim's, alone", holds=capped.holds, kind="replayed",
               n=TIMES * len(gpus) // 2, baseline=f"the same fault at an unchanged clock {stalled.at(0.05):.2f}",
               note=f"clock lowered by the fault: {capped.description}. Clock unchanged: "
                    f"{stalled.description}")  # fmt: skip


@dataclass
class Outcome:
    """Of one way over all fleets."""

    found: int = 0
    defects: int = 0
    false: int = 0
    healthy: int = 0
    faint: int = 0
    missed: set[str] = field(default_factory=set)

    def add_fleet(self, fleet: synthetic.Fleet, flagged: Iterable[str]) -> None:
        self.faint += fleet.faint in flagged
        flagged = set(flagged) - {fleet.faint}
        self.defects += len(fleet.truth)
        self.found += len(flagged & fleet.truth.keys())
        self.false += len(flagged - fleet.truth.keys())
        self.healthy += len(fleet.results) - len(fleet.truth) - 1
        self.missed |= {fleet.truth[node].words for node in fleet.truth.keys() - flagged}

    @property
    def description(self) -> str:
        return f"{self.found}/{self.defects} found, {self.false}/{self.healthy} false"


def fleets() -> list[Row]:
    ways = {"Validator": Outcome(), "RobustLimits": Outcome(), "published rules": Outcome()}
    for seed in range(FLEETS):
        fleet = synthetic.fleet(seed)
        samples = [
            sample
            for node, results in fleet.results.items()
            for sample in samples_of(results, cohort=synthetic.COHORT, machine=node)
        ]
        for name, estimator in (("Validator", Validator), ("RobustLimits", RobustLimits)):
            ways[name].add_fleet(fleet, _judged(fleet, samples, estimator))
        ways["published rules"].add_fleet(fleet, synthetic.published_rules(fleet.results))
    ours, rules = ways["Validator"], ways["published rules"]
    against = "; ".join(f"{name} {outcome.description}" for name, outcome in ways.items() if outcome is not ours)
    missed = ", ".join(sorted(ours.missed)) or "nothing"
    return [
        Row(claim="synthetic fleets: defective nodes found", figure=ours.found / ours.defects, unit="", target="1.0",
            holds=ours.found == ours.defects, kind="simulated", baseline=against, n=ours.defects,
            note=f"64 nodes x 8 GPUs x 6 metrics; missed {missed}; the published rules miss {len(rules.missed)} of "
            f"{len(synthetic.DEFECTS)} kinds: {', '.join(sorted(rules.missed))}"),
        Row(claim="synthetic fleets: healthy nodes not passed", figure=ours.false, unit="nodes", target="0",
            holds=ours.false == 0, kind="simulated", baseline=against, n=ours.healthy,
            note=f"learned from the fleet with its defects in it; budget {FLEET_BUDGET} healthy nodes a sweep of 64"),
        Row(claim="synthetic fleets: a third of the steps 25 % slow", figure=ours.faint / FLEETS, unit="found",
            target="", holds=None, kind="simulated", n=FLEETS,
            note="hardly more than the disturbances of healthy nodes: 2 % of repetitions 5 to 30 % slow"),
    ]  # fmt: skip


def _judged(fleet: synthetic.Fleet, samples: list[MetricSample], estimator: type[LimitEstimator]) -> set[str]:
    """Nodes that do not pass."""
    criteria = learn_criteria(samples, false_alarms=FLEET_BUDGET / synthetic.NODES, estimator=estimator).criteria
    verdicts = {
        node: worst(v.verdict for v in judge(results, criteria, cohort=synthetic.COHORT).verdicts)
        for node, results in fleet.results.items()
    }
    return {node for node, verdict in verdicts.items() if verdict in (Verdict.FAIL, Verdict.UNKNOWN)}


def sessions(cohorts: int) -> list[Row]:
    """Limits of the same runs with sessions and without, in sessions that come."""
    one = drifting.Layout(machines=1, sessions=1, runs=40)
    layouts = (
        drifting.Layout(machines=1, sessions=5, runs=8),
        drifting.Layout(machines=1, sessions=20, runs=2),
        drifting.Layout(machines=8, sessions=5, runs=2),
    )
    rows = []
    for drift in DRIFTS:
        hour = drifting.simulate(one, drift, cohorts)["sessions"].rate
        for layout in layouts:
            counts = drifting.simulate(layout, drift, cohorts)
            with_, without = counts["sessions"], counts["none"]
            found = "; ".join(f"{s:.0%}: {with_.recall(s):.2f} ({without.recall(s):.2f})" for s in drifting.SLOWDOWNS)
            rows.append(
                Row(claim=f"sessions that differ by {drift:.0%}, learned from {layout.description}: clean runs failed",
                    figure=with_.rate, unit="", target=f"<= {BUDGET}", holds=with_.rate <= BUDGET, kind="simulated",
                    baseline=f"without sessions {without.rate:.4f}; learned in one session {hour:.4f}", n=with_.clean,
                    note=f"{drifting.METRICS} metrics; recall with sessions (without) at {found}")
            )  # fmt: skip
    return rows


def speed() -> Row:
    """10,000 runs against one reference."""
    random = np.random.default_rng(0)
    runs = list(np.exp(0.01 * random.standard_normal((10_000, 20))))
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        shortfalls(runs, runs[0], LOWER)
        seconds.append(time.perf_counter() - start)
    return Row(claim="10,000 runs of 20 values against one reference", figure=float(np.median(seconds)), unit="s",
               target="", holds=None, kind="live", n=5)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    arguments = list(sys.argv[1:] if argv is None else argv)
    quick = "--quick" in arguments
    file = target_file("validator", [one for one in arguments if one != "--quick"])
    rows = [*fleets(), *sessions(COHORTS_QUICK if quick else COHORTS), speed()]
    if FOLDER.is_dir():
        replayed = [row for name in BENCHMARKS for row in replay_rows(replay(name))]
        rows = [*replayed, *whole_node_rows(BENCHMARKS, TIMES), clocks(), *rows]
    else:
        print(f"{FOLDER} is absent: set MAINSTAY_TEST_DATA; the replayed rows are left out")
    publish("validator", rows, file)


if __name__ == "__main__":
    main()
