"""Decisions kept with what then really happened: how far off they were, what better was available, and what to learn.

Each recovery gives measured seconds by phase beside those that its way was predicted to take. Constants that a recovery
measures (fence, start, regrouping, copying, the first step) are corrected where they are measured, in
``measured_costs``. What they leave unexplained is the model's: one factor a way, learned from the prediction as the
constants would make it *after* this recovery, so that no second is corrected twice. Both are moving averages, here of
the logarithm, so that half as long and twice as long weigh alike. What exceeds the promise all the same adds up to an
alarm: then the model, not a constant, is wrong.

Pure: no clock, no I/O. States are values; ``learn`` gives the next one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from mainstay.recovery.cost_inputs import CostInputs
from mainstay.recovery.recovery_plan import RecoveryStrategyName
from mainstay.recovery.strategy_choice import StrategyDecision

WEIGHT = 0.25
"""Of the newest event in the moving average: half of all weight lies on the last two or three, as machines change."""
PROMISED = math.log(1.25)
"""A prediction may be off by a quarter and counts as right: the bound that executed strategies are held to."""
ALARM = 3.0 * (math.log(2.0) - PROMISED)
"""Sum of what exceeds the promise: three events that take twice, or half, as long as predicted reach it."""
LEAST_S = 1e-3
"""Shorter times are noise of the clock and the scheduler, and teach nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPrediction:
    """What one way is predicted to cost. Seconds."""

    strategy: RecoveryStrategyName
    phases: dict[str, float]
    """From the failure to the first step that commits: detect, fence, regroup (processes, state), warm_up, step."""
    later_s: float = 0.0
    """Expected after that: degraded steps, the re-join, the risk, the cost of readiness."""
    step_s: float
    """One healthy step."""
    others: dict[str, float] = field(default_factory=dict)
    """Expected cost of the alternatives that the job could have carried out."""

    @property
    def seconds(self) -> float:
        return sum(self.phases.values())

    @property
    def acting_s(self) -> float:
        """Of that, the recovery work: neither the detection nor the step itself."""
        return self.phases["fence"] + self.phases["regroup"] + self.phases["warm_up"]


def forecast(decision: StrategyDecision, cost_inputs: CostInputs, way: RecoveryStrategyName) -> CostPrediction | None:
    """What the decision says of ``way``, whether it was chosen or not; None where it was not feasible.

    The first step counts whole, at the rate that the way leaves.
    """
    option = next((each for each in decision.options if each.strategies == (way,) and each.feasible), None)
    if option is None or not option.rate:
        return None
    parts = option.parts
    down = parts.get("downtime", 0.0)
    detect = min(cost_inputs.detect_s, down)
    # Learned factors stretch the phases alike.
    plain = cost_inputs.down_s() - cost_inputs.detect_s
    stretch = min(1.0, (down - detect) / plain) if plain > 0.0 else 0.0
    fence, warm_up = cost_inputs.costs.fence_s * stretch, cost_inputs.warm_up_s * stretch
    return CostPrediction(
        strategy=way,
        phases={
            "detect": detect,
            "fence": fence,
            "regroup": max(0.0, down - detect - fence - warm_up),
            "warm_up": warm_up,
            "step": cost_inputs.step_s / option.rate,
        },
        later_s=sum(parts.get(name, 0.0) for name in ("degraded", "rejoin", "risk", "readiness")),
        step_s=cost_inputs.step_s,
        others={
            "+".join(each.strategies): each.expected_s
            for each in decision.options
            if each.feasible and each.executable and each.strategies[0] is not way and each.expected_s is not None
        },
    )


@dataclass(frozen=True, slots=True)
class RecoveryOutcome:
    """One recovery that was carried out.

    Raises:
        ValueError: the time is not above 0.
    """

    recovery: str
    """Its id."""
    predicted: CostPrediction
    measured_s: float
    """From the failure to the first step that committed."""
    steps_lost: int
    """Committed steps that were made again."""

    def __post_init__(self) -> None:
        if not self.measured_s > 0.0:
            raise ValueError(f"recovery {self.recovery} took {self.measured_s} s: a time is above 0")

    @property
    def strategy(self) -> RecoveryStrategyName:
        return self.predicted.strategy

    @property
    def error(self) -> float:
        """Measured over predicted, less 1."""
        return self.measured_s / self.predicted.seconds - 1.0

    @property
    def is_accurate(self) -> bool:
        """Whether it took no more and no less than a quarter beside the prediction."""
        return abs(math.log(self.measured_s / self.predicted.seconds)) <= PROMISED

    @property
    def cost_s(self) -> float:
        """What it really cost, in lost full-rate seconds; what comes later counts as predicted.

        The first step is work done, what it is slower stands in the degraded time, and half a step on average was cut
        off by the failure.
        """
        stood = self.measured_s - self.predicted.phases["step"]
        return stood + (self.steps_lost + 0.5) * self.predicted.step_s + self.predicted.later_s

    @property
    def excess_cost_s(self) -> float:
        """Seconds that the best alternative, as it was predicted, would have saved; 0 if none would."""
        return max(0.0, self.cost_s - min(self.predicted.others.values(), default=math.inf))


@dataclass(frozen=True, slots=True)
class PredictionAccuracy:
    """How accurate the predictions for one strategy are."""

    events: int
    ratio: float
    """Moving average of log(measured / what the constants say): what the model leaves out."""
    above: float = 0.0
    below: float = 0.0
    """Sums of what exceeded the promise, either way, of predictions as they were made."""

    @property
    def factor(self) -> float:
        return math.exp(self.ratio)

    @property
    def drifts(self) -> bool:
        return max(self.above, self.below) >= ALARM * (1.0 - 1e-9)


@dataclass(frozen=True, slots=True)
class Calibration:
    """What all recoveries so far say about the model, way by way."""

    strategies: dict[RecoveryStrategyName, PredictionAccuracy] = field(default_factory=dict)

    def learn(self, seen: RecoveryOutcome, explained: CostPrediction) -> Calibration:
        """With one recovery more.

        Args:
            seen: the recovery.
            explained: the same forecast with the constants as they are known after it, and no factor.
        """
        acted = seen.measured_s - explained.phases["detect"] - explained.phases["step"]
        if min(acted, explained.acting_s) < LEAST_S:
            return self
        before = self.strategies.get(seen.strategy)
        log, off = math.log(acted / explained.acting_s), math.log1p(seen.error)
        if before is None:  # it was predicted with constants of other machines: how far off it was says nothing
            after = PredictionAccuracy(1, log)
        else:
            after = PredictionAccuracy(
                before.events + 1,
                before.ratio + WEIGHT * (log - before.ratio),
                max(0.0, before.above + off - PROMISED),
                max(0.0, before.below - off - PROMISED),
            )
        return Calibration(self.strategies | {seen.strategy: after})

    @property
    def factors(self) -> dict[RecoveryStrategyName, float]:
        """Way -> what its predicted downtime, without the time to notice, is multiplied by."""
        return {way: accuracy.factor for way, accuracy in self.strategies.items()}

    def alarms(self) -> tuple[str, ...]:
        """A sentence for each way whose predictions stay wrong although they are corrected."""
        return tuple(
            f"{way}: {accuracy.events} recoveries took"
            f" {'longer' if accuracy.above > accuracy.below else 'less time'} than predicted, again and again;"
            f" now {accuracy.factor:.2g} times what the constants say"
            for way, accuracy in sorted(self.strategies.items())
            if accuracy.drifts
        )
