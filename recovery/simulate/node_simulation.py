"""One run of a job under one policy, failure by failure: nodes go to repair, spares take their places, or no node does.

Every second of the run is counted once: as useful, or as lost to one cause. Useful are seconds at the full rate of the
healthy job which no failure took back. A failure during a restart begins it again; one that hits an empty place does
nothing; a node out of repair fills a missing place, else it becomes a spare.

What is not followed: losses of several nodes by one cause, failures of spares, and a return to disk when the last
replica of a stage is lost (the job then stands until a node is back, as if its state had outlived it).
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from mainstay.recovery.cost_model.ettr import SaveSchedule
from mainstay.recovery.cost_model.iteration import dropped_rate, spread_rate
from mainstay.recovery.simulate.scenario import HOUR, Scenario, SimulatedPolicy, WithoutSpare


@dataclass(slots=True)
class LostTime:
    """Where the seconds of a run went that were not useful."""

    saving_s: float = 0.0
    downtime_s: float = 0.0
    """Restarts and re-joins."""
    repeated_s: float = 0.0
    """Work since the last save, done again."""
    waiting_s: float = 0.0
    """No spare: the job stands still until a node is repaired."""
    degraded_s: float = 0.0
    """The part of the rate that is missing while the job continues without a node."""


@dataclass(slots=True)
class NodeSimulationResult:
    """What came of one run."""

    useful_s: float = 0.0
    lost: LostTime = field(default_factory=LostTime)
    interruptions: int = 0
    """Failures that stopped training or a restart; those that came while the job stood still are not among them."""
    waits: int = 0
    """How many of them found no spare."""
    at_s: list[float] = field(default_factory=lambda: [0.0])
    """When something was settled, ascending, from 0 to the end."""
    kept_s: list[float] = field(default_factory=lambda: [0.0])
    """Useful seconds until then."""


@dataclass(slots=True)
class _Run:
    scenario: Scenario
    policy: SimulatedPolicy
    cadence: SaveSchedule
    spares: int
    """If there are any, no place is empty."""
    outcome: NodeSimulationResult = field(default_factory=NodeSimulationResult)
    repairs: deque[float] = field(default_factory=deque)
    """When nodes come back, ascending: all repairs take the same time."""
    missing: OrderedDict[int, None] = field(default_factory=OrderedDict)
    """Places without a node, the longest empty first."""
    broken: Counter[int] = field(default_factory=Counter)
    """Pipeline -> its places without a node, above 0; counted for the policies that leave pipelines out."""
    now: float = 0.0
    rate: float = 1.0
    """Of training, against the healthy job; 0: the job stands still."""
    down_s: float = 0.0
    """What is left of a restart."""
    trained_s: float = 0.0
    """Since training last began, saves included."""

    def until(self, at: float) -> None:
        """Let time pass."""
        span, lost = at - self.now, self.outcome.lost
        self.now = at
        if self.rate == 0.0:
            lost.waiting_s += span
            return
        down = min(span, self.down_s)
        lost.downtime_s += down
        self.down_s -= down
        self.trained_s += span - down

    def settle(self, *, taken_back: bool) -> None:
        """Count what was trained since it last began; a failure takes back what was not saved."""
        interval, save = self.cadence.interval_s, self.cadence.save_s
        outcome, lost = self.outcome, self.outcome.lost
        whole = math.floor(self.trained_s / (interval + save))
        rest = self.trained_s - whole * (interval + save)
        begun = min(rest, interval)
        lost.saving_s += whole * save + rest - begun
        lost.degraded_s += (whole * interval + begun) * (1.0 - self.rate)
        lost.repeated_s += begun * self.rate if taken_back else 0.0
        outcome.useful_s += (whole * interval + (0.0 if taken_back else begun)) * self.rate
        outcome.at_s.append(self.now)
        outcome.kept_s.append(outcome.useful_s)
        self.trained_s = 0.0

    def fail(self, at: float, place: int) -> None:
        """The node of a place fails."""
        self.back_until(at)
        if place in self.missing:
            return
        self.until(at)
        self.settle(taken_back=True)
        self.outcome.interruptions += self.rate > 0.0
        self.repairs.append(at + self.scenario.repair_hours * HOUR)
        if self.spares:
            self.spares -= 1
        else:
            self.missing[place] = None
            self._count(place, 1)
            self.outcome.waits += 1
        self.rate = self._rate()
        self.down_s = self.cadence.restart_s

    def back_until(self, at: float) -> None:
        """Nodes come out of repair."""
        while self.repairs and self.repairs[0] <= at:
            back = self.repairs.popleft()
            if self.missing:
                self._rejoin(back)
            else:
                self.spares += 1

    def _rejoin(self, at: float) -> None:
        self.until(at)
        stood = self.rate == 0.0
        self.settle(taken_back=False)  # at a step's end: nothing is repeated
        self._count(self.missing.popitem(last=False)[0], -1)
        self.rate = self._rate()
        self.down_s = self.cadence.restart_s if stood else max(self.down_s, self.policy.rejoin_s)

    def _count(self, place: int, change: int) -> None:
        if self.policy.without_spare is WithoutSpare.DROP:
            for pipeline in pipelines_on(self.scenario, place):
                self.broken[pipeline] += change
                if not self.broken[pipeline]:
                    del self.broken[pipeline]

    def _rate(self) -> float:
        """Without the missing nodes and the broken pipelines, against the healthy job; 0 if it stands still."""
        scenario, without_spare = self.scenario, self.policy.without_spare
        if not self.missing:
            return 1.0
        if without_spare is WithoutSpare.WAIT:
            return 0.0
        if without_spare is WithoutSpare.DROP:
            return dropped_rate(scenario.shape, len(self.broken))
        return spread_rate(scenario.shape, math.ceil(len(self.missing) * scenario.gpus_per_node / scenario.tp))


def follow_places(
    scenario: Scenario, policy: SimulatedPolicy, failures: Iterable[tuple[float, int]], horizon_s: float
) -> NodeSimulationResult:
    """Follow one run.

    Args:
        scenario: the job, its spares and repairs.
        policy: how it saves and continues.
        failures: (seconds, place 0..nodes - 1), ascending, all before the end.
        horizon_s: when the run ends; what was begun then counts.
    """
    run = _Run(scenario, policy, scenario.cadence(policy), scenario.spares)
    for at, place in failures:
        run.fail(at, place)
    run.back_until(horizon_s)
    run.until(horizon_s)
    run.settle(taken_back=False)
    return run.outcome


def pipelines_on(scenario: Scenario, place: int) -> range:
    """Pipelines that have a rank in this place: ranks lie on nodes in order, a pipeline's side by side."""
    gpus, ranks = scenario.gpus_per_node, scenario.pp * scenario.tp
    return range(place * gpus // ranks, ((place + 1) * gpus - 1) // ranks + 1)
