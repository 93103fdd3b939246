"""What to do about one event, over every recovery strategy: feasible first, then the least expected cost, explained.

Cost is in lost full-rate seconds of the job, times its GPUs in GPU-seconds: downtime, repeated work, the degraded time
over the quantiles of repair, the re-join, the risk of the last copy. The alarm may be false: each option is weighed as
p x (its cost) + (1 - p) x (what it costs for nothing), and nothing is done while p <= C_act / (C_act + C_wait).
A choice may be a sequence: continue degraded at once, swap to a standby as soon as one is warm, validate the
node that went, take it back. An option that leaves a single copy of some state for longer than allowed is none.

A running job says what it can carry out (``ExecutionCapabilities``): all is weighed, and only that is chosen.

Pure: no clock, no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mainstay.recovery.cost_inputs import GONE, CostInputs, FaultKind
from mainstay.recovery.cost_model.failure_cost import CostEstimate, RecoveryAction, Repair, action_threshold, price_over
from mainstay.recovery.cost_model.iteration import slowed_rate
from mainstay.recovery.recovery_plan import NOTHING_POSSIBLE, RecoveryStrategyName
from mainstay.recovery.strategies import WAYS
from mainstay.recovery.strategies.recovery_strategy import RecoveryStrategy, estimate_action


@dataclass(frozen=True, slots=True)
class OptionStep:
    """One step of an option."""

    what: str
    at_s: float
    """Since the decision; inf (null in JSON): not known when."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyOption:
    """One way, or a sequence of two, priced. An infeasible one says why and has no price."""

    strategies: tuple[RecoveryStrategyName, ...]
    feasible: bool
    executable: bool
    """Whether a running job carries out every step of it: one that said what it is able to, else by its own planner."""
    reason: str
    steps: tuple[OptionStep, ...] = ()
    expected_s: float | None = None
    """The objective: expected lost full-rate seconds, false alarms counted. The least wins."""
    gpu_seconds: float | None = None
    worst_s: float | None = None
    """If the alarm is real and the repair takes the longest of its quantiles."""
    rate: float | None = None
    """Of the job until the worker is back, against the healthy one."""
    parts: dict[str, float] = field(default_factory=dict)
    """Seconds by part, if the alarm is real: downtime, repeated, degraded, rejoin, risk, readiness."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyDecision:
    """All options, best first. ``act`` says whether the alarm is sure enough to do anything."""

    act: bool
    act_above: float
    """Confidence above which acting costs less than waiting."""
    chosen: tuple[RecoveryStrategyName, ...] | None
    options: tuple[StrategyOption, ...]
    explanation: str


PreparedDecisions = dict[tuple[FaultKind, int], StrategyDecision]
"""(kind of failure, pipeline stage) -> decision. All workers of a stage are alike, so each kind has pp entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionCapabilities:
    """What one running job is able to carry out, and how accurate its predictions are."""

    carried: frozenset[RecoveryStrategyName]
    """Ways that its coordinator can carry out: only of these, and of sequences of them, one is chosen."""
    barred: Mapping[RecoveryStrategyName, str] = field(default_factory=dict)
    """Ways that a coordinator could, but not in this job, each with the sentence why."""
    factors: Mapping[RecoveryStrategyName, float] = field(default_factory=dict)
    """Strategy -> measured over predicted downtime without detection, if learned: ``mainstay.recovery.calibration``."""


def choose_strategy(
    cost_inputs: CostInputs, ways: Sequence[RecoveryStrategy] = WAYS, *, means: ExecutionCapabilities | None = None
) -> StrategyDecision:
    """Weigh every way and every sequence.

    Args:
        cost_inputs: the job and the event.
        ways: to choose from.
        means: of the running job that asks; None: no job carries anything out, and the best of all is chosen.

    Returns:
        Options sorted best first, infeasible ones last; the same question gives the same decision.
    """
    options = tuple(sorted(_options(cost_inputs, ways, means), key=_order))
    open_to = (option for option in options if option.feasible and (option.executable or means is None))
    best = next(open_to, None)
    threshold = 0.0 if best is None else _threshold(cost_inputs, best)
    sure = cost_inputs.odds.confidence >= 1.0 or cost_inputs.odds.confidence > threshold
    return StrategyDecision(
        act=best is not None and sure,
        act_above=threshold,
        chosen=None if best is None else best.strategies,
        options=options,
        explanation=_explain(cost_inputs, options, best, threshold),
    )


def single(cost_inputs: CostInputs, fault: FaultKind, stage: int) -> CostInputs:
    """The same job, of which one worker of ``stage`` fails so."""
    return replace(cost_inputs, fault=fault, lost=tuple(int(s == stage) for s in range(cost_inputs.shape.pp)), broken=1)


def _options(
    cost_inputs: CostInputs, ways: Sequence[RecoveryStrategy], means: ExecutionCapabilities | None
) -> Iterable[StrategyOption]:
    swap = next((way for way in ways if way.way is RecoveryStrategyName.STANDBY_SWAP), None)
    swap_at_s, joined_s = (math.inf, 0.0) if swap is None else _next_swap(cost_inputs)
    for way in ways:
        barred = None if means is None else means.barred.get(way.way)
        answer = estimate_action(way, cost_inputs) if barred is None else barred
        executable = way.executed_as is not None if means is None else way.way in means.carried
        if isinstance(answer, str):
            yield StrategyOption(strategies=(way.way,), feasible=False, executable=executable, reason=answer)
            continue
        action = answer if means is None else _as_learned(cost_inputs, answer, means.factors.get(way.way, 1.0))
        yield _priced(cost_inputs, (way.way,), action, executable=executable)
        if action.until_repair and swap_at_s < math.inf:
            later = replace(action, back_after_s=swap_at_s, exposed_s=swap_at_s, until_repair=False, rejoin_s=joined_s)
            both = means is not None and executable and RecoveryStrategyName.STANDBY_SWAP in means.carried
            yield _priced(cost_inputs, (way.way, RecoveryStrategyName.STANDBY_SWAP), later, executable=both)


def _as_learned(cost_inputs: CostInputs, action: RecoveryAction, factor: float) -> RecoveryAction:
    """What is known already, how long the failure took to be seen, is not predicted."""
    seen = min(cost_inputs.detect_s, action.downtime_s) if cost_inputs.fault in GONE else 0.0
    return replace(action, downtime_s=seen + (action.downtime_s - seen) * factor)


def _next_swap(cost_inputs: CostInputs) -> tuple[float, float]:
    """When standbys for all that are missing are warm, and what the planned swap costs then."""
    costs, pool = cost_inputs.costs, cost_inputs.pool
    cost_s = costs.regroup_s + cost_inputs.warm_up_s + costs.spawn_warm_s + cost_inputs.move_s
    if pool.standbys >= cost_inputs.gone:
        return math.inf, cost_s  # at once: that is the single way
    if pool.standbys + pool.spares >= cost_inputs.gone:
        return costs.spawn_cold_s, cost_s
    return pool.standby_after_s, cost_s


def _priced(
    cost_inputs: CostInputs, ways: tuple[RecoveryStrategyName, ...], action: RecoveryAction, *, executable: bool
) -> StrategyOption:
    found = _price(cost_inputs, action, cost_inputs.odds.repairs)
    if why := _exposed(cost_inputs, action):
        return StrategyOption(strategies=ways, feasible=False, executable=executable, reason=why)
    p = cost_inputs.odds.confidence
    expected = p * found.total_s + (1.0 - p) * _for_nothing(cost_inputs, action)
    longest = max(cost_inputs.odds.repairs, key=lambda each: each.seconds)
    return StrategyOption(
        strategies=ways,
        feasible=True,
        executable=executable,
        reason=_reason(action),
        steps=_steps(ways, action),
        expected_s=expected,
        gpu_seconds=expected * cost_inputs.workers * cost_inputs.gpus,
        worst_s=_price(cost_inputs, action, (longest._replace(share=1.0),)).total_s,
        rate=action.rate,
        parts=found.parts,
    )


def _price(cost_inputs: CostInputs, action: RecoveryAction, repairs: Sequence[Repair]) -> CostEstimate:
    job_rate, worker_rate = cost_inputs.job_rate, cost_inputs.odds.worker_rate
    return price_over(action, repairs, job_rate=job_rate, worker_rate=worker_rate, restart_s=cost_inputs.from_disk_s)


def _exposed(cost_inputs: CostInputs, action: RecoveryAction) -> str | None:
    """Why an action leaves state with a single copy for too long; the longest repair counts."""
    if not action.copies_at_risk:
        return None
    if cost_inputs.held.disk_s is None:
        return "A single copy of some state would be left, with no checkpoint on disk behind it."
    longest = max(each.seconds for each in cost_inputs.odds.repairs) if action.until_repair else action.exposed_s
    if longest <= cost_inputs.odds.single_copy_s:
        return None
    return (
        f"A single copy of some state would be left for up to {longest:.0f} s,"
        f" longer than the {cost_inputs.odds.single_copy_s:.0f} s allowed."
    )


def _for_nothing(cost_inputs: CostInputs, action: RecoveryAction) -> float:
    """What acting costs if nothing was wrong: the worker is back once that is known."""
    degraded = (1.0 - action.rate) * cost_inputs.odds.confirm_s
    return action.downtime_s + action.repeated_s + degraded + action.rejoin_probability * action.rejoin_s


def _threshold(cost_inputs: CostInputs, best: StrategyOption) -> float:
    """C_act / (C_act + C_wait) of the best option."""
    acting = sum(best.parts.get(part, 0.0) for part in ("downtime", "repeated", "rejoin"))
    acting += (1.0 - (best.rate or 0.0)) * cost_inputs.odds.confirm_s
    return action_threshold(acting, _waiting(cost_inputs))


def _waiting(cost_inputs: CostInputs) -> float:
    """What waiting for certainty costs if the alarm is real."""
    wait = cost_inputs.odds.confirm_s
    if cost_inputs.fault in GONE:
        return wait
    if cost_inputs.fault is FaultKind.SLOW:
        speeds = [cost_inputs.speed if lost else 1.0 for lost in cost_inputs.lost]
        return wait * (1.0 - slowed_rate(cost_inputs.shape, speeds))
    late = wait >= cost_inputs.odds.notice_s
    return cost_inputs.detect_s + cost_inputs.costs.fence_s + cost_inputs.step_s / 2.0 if late else 0.0


def _steps(ways: tuple[RecoveryStrategyName, ...], action: RecoveryAction) -> tuple[OptionStep, ...]:
    back_s = math.inf if action.until_repair else action.back_after_s
    later = [("validate the worker that is back", back_s), ("re-join at the end of a step", back_s)]
    if action.rejoin_probability == 0.0:
        later = []
    elif len(ways) > 1:
        away = [("validate the node that went", math.inf), ("take it back as a spare", math.inf)]
        later = [(ways[1].value, action.back_after_s), *away]
    return tuple(OptionStep(what, at_s) for what, at_s in [(ways[0].value, 0.0), *later])


def _reason(action: RecoveryAction) -> str:
    if action.rate >= 1.0:
        return f"Training continues at its full rate after {action.downtime_s:.3g} s."
    until = "a repair" if action.until_repair else f"{action.back_after_s:.3g} s have passed"
    return f"Training continues at {action.rate:.1%} of its rate after {action.downtime_s:.3g} s, until {until}."


def _order(option: StrategyOption) -> tuple[bool, float, int, tuple[RecoveryStrategyName, ...]]:
    return not option.feasible, option.expected_s or 0.0, len(option.strategies), option.strategies


def _explain(
    cost_inputs: CostInputs, options: tuple[StrategyOption, ...], best: StrategyOption | None, threshold: float
) -> str:
    if best is None:
        said = " ".join(f"{' + '.join(option.strategies)}: {option.reason}" for option in options)
        return f"{NOTHING_POSSIBLE} {said}"
    p = cost_inputs.odds.confidence
    text = f"{_name(best)}: {best.reason} It is expected to cost {_cost(best)}."
    others = [option for option in options if option.feasible and option is not best]
    if others and _order(others[0]) < _order(best):
        text += f" {_name(others[0])} would cost less, {_cost(others[0])}, and is not carried out here."
        others = [option for option in others if option.executable]
    text += f" Next best: {_name(others[0])}, {_cost(others[0])}." if others else " Nothing else is possible here."
    if p < 1.0:
        does = "is acted on" if p > threshold else "is not acted on yet"
        text += f" The alarm, {p:.0%} sure, {does}: acting pays above {threshold:.0%}."
    return text


def _name(option: StrategyOption) -> str:
    return ", then ".join(option.strategies)


def _cost(option: StrategyOption) -> str:
    return f"{option.expected_s:.3g} s of the job ({option.gpu_seconds:.3g} GPU-seconds)"
