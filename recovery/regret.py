"""Plans kept with what then really happened: how far off they were, what better was at hand, and what to learn of it.

Each recovery gives measured seconds by phase beside those that its plan predicted. Their ratio corrects the constants
of the next plan (an exponential moving average of its logarithm, so that half as long and twice as long weigh alike),
and a sum of ratios beyond what is promised raises an alarm: then the model, not a constant, is wrong.

Pure: no clock, no I/O. States are values; ``learn`` gives the next one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from recovery.plan import Alternative, Plan, StrategyName
from recovery.situation import Costs

WEIGHT = 0.25
"""Of the newest event in the moving average: half of all weight lies on the last two or three, as machines change."""
PROMISED = math.log(1.25)
"""A prediction may be off by a quarter and counts as right: the bound that executed strategies are held to."""
ALARM = 3.0 * (math.log(2.0) - PROMISED)
"""Sum of what exceeds the promise: three events that take twice, or half, as long as predicted reach it."""
LEAST_S = 1e-3
"""Shorter phases are noise of the clock and the scheduler, and are not compared."""
PARTS: dict[str, tuple[str, ...]] = {
    "fence": ("fence_s",),
    "spawn": ("spawn_warm_s", "spawn_cold_s"),
    "fetch": ("net_Bps",),
    "decode": ("xor_Bps",),
    "read": ("disk_Bps",),
    "load": ("copy_Bps",),
    "regroup": ("regroup_s",),
}
"""Phase of a plan -> the constants that it is predicted from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One executed plan."""

    plan: str
    """Its id."""
    strategy: StrategyName
    predicted: dict[str, float]
    measured: dict[str, float]
    """Seconds by phase; a phase that was not measured is not there."""
    steps_lost: int
    step_seconds: float
    others: dict[str, float] = field(default_factory=dict)
    """Predicted cost in seconds of the alternatives that were feasible and not chosen."""

    @property
    def cost_s(self) -> float:
        """What it really cost: phases that were not measured count as predicted."""
        return sum((self.predicted | self.measured).values()) + self.steps_lost * self.step_seconds

    @property
    def error(self) -> float:
        """Measured over predicted of the phases that were measured, less 1; 0 where nothing was."""
        both = self.predicted.keys() & self.measured.keys()
        before = sum(self.predicted[part] for part in both)
        return sum(self.measured[part] for part in both) / before - 1.0 if before > 0.0 else 0.0

    @property
    def regret_s(self) -> float:
        """Seconds that the best alternative, as it was predicted, would have saved; 0 if none would."""
        return max(0.0, self.cost_s - min(self.others.values(), default=math.inf))


def record(plan: Plan, measured: dict[str, float], *, steps_lost: int, step_seconds: float) -> Record:
    """Put a plan beside what happened.

    Raises:
        ValueError: the plan chose nothing, or a measured time is below 0; the message names it.
    """
    chosen = plan.alternative()
    wrong = next((part for part, seconds in measured.items() if not seconds >= 0.0), None)
    if wrong is not None:
        raise ValueError(f"phase {wrong} of plan {plan.id} took {measured[wrong]} s: a time is at least 0")
    return Record(
        plan=plan.id,
        strategy=chosen.strategy,
        predicted=dict(chosen.parts),
        measured=dict(measured),
        steps_lost=steps_lost,
        step_seconds=step_seconds,
        others={a.strategy.value: _cost(a) for a in plan.alternatives if a.feasible and a is not chosen},
    )


def _cost(alternative: Alternative) -> float:
    assert alternative.cost_seconds is not None  # feasible ones have a price
    return alternative.cost_seconds


@dataclass(frozen=True, slots=True)
class Phase:
    """What is known about the predictions of one phase."""

    events: int = 0
    ratio: float = 0.0
    """Moving average of log(measured / predicted) with the constants of the beginning."""
    above: float = 0.0
    below: float = 0.0
    """Sums of what exceeded the promise, either way, with the constants as they had been corrected by then."""

    @property
    def factor(self) -> float:
        return math.exp(self.ratio)

    @property
    def drifts(self) -> bool:
        return max(self.above, self.below) >= ALARM * (1.0 - 1e-9)


@dataclass(frozen=True, slots=True)
class Calibration:
    """What all events so far say about the constants that they were predicted from."""

    phases: dict[str, Phase] = field(default_factory=dict)

    def learn(self, seen: Record, *, corrected: bool = False) -> Calibration:
        """With one event more.

        Args:
            seen: the event.
            corrected: its plan was made with ``correct``-ed constants, not with those of the beginning.
        """
        phases = dict(self.phases)
        for part, predicted in seen.predicted.items():
            took = seen.measured.get(part, 0.0)
            if part in PARTS and predicted >= LEAST_S and took >= LEAST_S:
                before = phases.get(part, Phase())
                log = math.log(took / predicted)
                phases[part] = _next(before, log + (before.ratio if corrected else 0.0))
        return Calibration(phases)

    def correct(self, costs: Costs) -> Costs:
        """The constants of the beginning, times what was learned: times grow with it, rates fall."""
        changed = {
            name: getattr(costs, name) * (phase.factor if name.endswith("_s") else 1.0 / phase.factor)
            for part, phase in self.phases.items()
            for name in PARTS[part]
        }
        return replace(costs, **changed)

    def alarms(self) -> tuple[str, ...]:
        """A sentence for each phase whose predictions stay wrong although they are corrected."""
        return tuple(
            f"{part}: {phase.events} recoveries took"
            f" {'longer' if phase.above > phase.below else 'less time'} than predicted, again and again;"
            f" now {phase.factor:.2g} times the constant"
            for part, phase in sorted(self.phases.items())
            if phase.drifts
        )


def _next(before: Phase, log: float) -> Phase:
    """The first event is believed; later ones are averaged in. Only what a correction did not explain adds up."""
    if before.events == 0:
        return Phase(1, log)
    surprise = log - before.ratio
    return Phase(
        before.events + 1,
        before.ratio + WEIGHT * surprise,
        max(0.0, before.above + surprise - PROMISED),
        max(0.0, before.below - surprise - PROMISED),
    )


@dataclass(frozen=True, slots=True)
class Ledger:
    """All recoveries of a job in a few numbers."""

    recoveries: int
    within_promise: int
    """Whose measured phases took no more and no less than a quarter beside the prediction."""
    regret_s: float
    worst: str | None
    """Plan of the largest regret, if there is any."""


def ledger(records: Iterable[Record]) -> Ledger:
    """Sum up."""
    listed = list(records)
    worst = max(listed, key=lambda each: each.regret_s, default=None)
    return Ledger(
        len(listed),
        sum(abs(math.log1p(each.error)) <= PROMISED for each in listed if each.error > -1.0),
        sum(each.regret_s for each in listed),
        worst.plan if worst is not None and worst.regret_s > 0.0 else None,
    )
