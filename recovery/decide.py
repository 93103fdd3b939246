"""What to do about one event, over every way of recovering: feasible first, then the least expected cost, explained.

Cost is in lost full-rate seconds of the job, times its GPUs in GPU-seconds: downtime, repeated work, the degraded time
over the quantiles of repair, the re-join, the risk of the last copy. The alarm may be false: each option is weighed as
p x (its cost) + (1 - p) x (what it costs for nothing), and nothing is done while p <= C_act / (C_act + C_wait).
Besides single ways there are sequences: go on degraded at once, swap to a standby as soon as one is warm, validate the
node that went, take it back. An option that leaves a single copy of some state for longer than allowed is none.

A running job says what it is able to carry out (``Means``): all is weighed, and only of that something is chosen.

Pure: no clock, no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from recovery.outlook import GONE, Fault, Outlook
from recovery.plan import WayName
from recovery.pricing.event import Action, Price, Repair, act_above, price_over
from recovery.pricing.iteration import slowed_rate
from recovery.strategies import WAYS
from recovery.strategies.way import Way, ask


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an option."""

    what: str
    at_s: float
    """Since the decision; inf (null in JSON): not known when."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One way, or a sequence of two, priced. An infeasible one says why and has no price."""

    ways: tuple[WayName, ...]
    feasible: bool
    executable: bool
    """Whether a running job carries out every step of it: one that said what it is able to, else by its own planner."""
    reason: str
    steps: tuple[Step, ...] = ()
    expected_s: float | None = None
    """The objective: expected lost full-rate seconds, false alarms counted. The least wins."""
    gpu_seconds: float | None = None
    worst_s: float | None = None
    """If the alarm is real and the repair takes the longest of its quantiles."""
    rate: float | None = None
    """Of the job until the worker is back, against the healthy one."""
    parts: dict[str, float] = field(default_factory=dict)
    """Seconds by part, if the alarm is real: downtime, repeated, degraded, rejoin, risk, standing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """All options, best first. ``act`` says whether the alarm is sure enough to do anything."""

    act: bool
    act_above: float
    """Confidence above which acting costs less than waiting."""
    chosen: tuple[WayName, ...] | None
    options: tuple[Option, ...]
    explanation: str

    def option(self) -> Option:
        """The chosen one.

        Raises:
            ValueError: nothing was feasible.
        """
        for option in self.options:
            if option.ways == self.chosen:
                return option
        raise ValueError(f"no option is feasible: {self.explanation}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What one running job is able to carry out, and how its predictions have fared."""

    carried: frozenset[WayName]
    """Ways that its coordinator can carry out: only of these, and of sequences of them, one is chosen."""
    barred: Mapping[WayName, str] = field(default_factory=dict)
    """Ways that a coordinator could, but not in this job, each with the sentence why."""
    factors: Mapping[WayName, float] = field(default_factory=dict)
    """Way -> measured over predicted downtime but for the time to notice, where learned: ``recovery.regret``."""


def decide(
    outlook: Outlook, ways: Sequence[Way] = WAYS, *, executable_only: bool = False, means: Means | None = None
) -> Decision:
    """Weigh every way and every sequence.

    Args:
        outlook: the job and the event.
        ways: to choose from.
        executable_only: leave out what a running job does not choose by itself.
        means: of the running job that asks; None: nobody carries anything out, and the best of all is chosen.

    Returns:
        Options sorted best first, infeasible ones last; the same question gives the same decision.
    """
    asked = ways if not executable_only else [way for way in ways if way.executed_as is not None]
    options = tuple(sorted(_options(outlook, asked, means), key=_order))
    open_to = (option for option in options if option.feasible and (option.executable or means is None))
    best = next(open_to, None)
    threshold = 0.0 if best is None else _threshold(outlook, best)
    sure = outlook.odds.confidence >= 1.0 or outlook.odds.confidence > threshold
    return Decision(
        act=best is not None and sure,
        act_above=threshold,
        chosen=None if best is None else best.ways,
        options=options,
        explanation=_explain(outlook, options, best, threshold),
    )


Classes = dict[tuple[Fault, int], Decision]
"""Kind of failure and stage -> decision: every worker of a stage is alike, so that pp entries a kind are all."""


def prepare(
    outlook: Outlook,
    faults: Iterable[Fault] = (Fault.ERROR, Fault.PROCESS, Fault.NODE),
    *,
    means: Means | None = None,
) -> Classes:
    """Decisions for every single failure, to be made when the topology changes; what the outlook says is lost is not.

    A failure of worker (d, s) is then looked up as (kind, s).
    """
    return {
        (fault, stage): decide(single(outlook, fault, stage), means=means)
        for fault in faults
        for stage in range(outlook.shape.pp)
    }


def single(outlook: Outlook, fault: Fault, stage: int) -> Outlook:
    """The same job, of which one worker of ``stage`` fails so."""
    return replace(outlook, fault=fault, lost=tuple(int(s == stage) for s in range(outlook.shape.pp)), broken=1)


def _options(outlook: Outlook, ways: Sequence[Way], means: Means | None) -> Iterable[Option]:
    swap = next((way for way in ways if way.way is WayName.STANDBY_SWAP), None)
    swap_at_s, joined_s = (math.inf, 0.0) if swap is None else _next_swap(outlook)
    for way in ways:
        barred = None if means is None else means.barred.get(way.way)
        answer = ask(way, outlook) if barred is None else barred
        executable = way.executed_as is not None if means is None else way.way in means.carried
        if isinstance(answer, str):
            yield Option(ways=(way.way,), feasible=False, executable=executable, reason=answer)
            continue
        action = answer if means is None else _as_learned(outlook, answer, means.factors.get(way.way, 1.0))
        yield _priced(outlook, (way.way,), action, executable=executable)
        if action.until_repair and swap_at_s < math.inf:
            later = replace(action, back_after_s=swap_at_s, exposed_s=swap_at_s, until_repair=False, rejoin_s=joined_s)
            both = means is not None and executable and WayName.STANDBY_SWAP in means.carried
            yield _priced(outlook, (way.way, WayName.STANDBY_SWAP), later, executable=both)


def _as_learned(outlook: Outlook, action: Action, factor: float) -> Action:
    """What is known already, how long the failure took to be seen, is not predicted."""
    seen = min(outlook.detect_s, action.downtime_s) if outlook.fault in GONE else 0.0
    return replace(action, downtime_s=seen + (action.downtime_s - seen) * factor)


def _next_swap(outlook: Outlook) -> tuple[float, float]:
    """When standbys for all that are missing are warm, and what the planned swap costs then."""
    costs, pool = outlook.costs, outlook.pool
    cost_s = costs.regroup_s + outlook.warm_up_s + costs.spawn_warm_s + outlook.move_s
    if pool.standbys >= outlook.gone:
        return math.inf, cost_s  # at once: that is the single way
    if pool.standbys + pool.spares >= outlook.gone:
        return costs.spawn_cold_s, cost_s
    return pool.standby_after_s, cost_s


def _priced(outlook: Outlook, ways: tuple[WayName, ...], action: Action, *, executable: bool) -> Option:
    found = _price(outlook, action, outlook.odds.repairs)
    if why := _exposed(outlook, action):
        return Option(ways=ways, feasible=False, executable=executable, reason=why)
    p = outlook.odds.confidence
    expected = p * found.total_s + (1.0 - p) * _for_nothing(outlook, action)
    longest = max(outlook.odds.repairs, key=lambda each: each.seconds)
    return Option(
        ways=ways,
        feasible=True,
        executable=executable,
        reason=_reason(action),
        steps=_steps(ways, action),
        expected_s=expected,
        gpu_seconds=expected * outlook.workers * outlook.gpus,
        worst_s=_price(outlook, action, (replace(longest, share=1.0),)).total_s,
        rate=action.rate,
        parts={name: seconds for name, seconds in _parts(found) if seconds > 0.0},
    )


def _price(outlook: Outlook, action: Action, repairs: Sequence[Repair]) -> Price:
    restart_s = outlook.restart_s + outlook.costs.spawn_cold_s + outlook.read_s + (outlook.held.disk_s or 0.0)
    rate = outlook.odds.worker_rate
    return price_over(action, repairs, job_rate=outlook.job_rate, worker_rate=rate, restart_s=restart_s)


def _parts(found: Price) -> tuple[tuple[str, float], ...]:
    return (
        ("downtime", found.downtime_s),
        ("repeated", found.repeated_s),
        ("degraded", found.degraded_s),
        ("rejoin", found.rejoin_s),
        ("risk", found.risk_s),
        ("standing", found.standing_s),
    )


def _exposed(outlook: Outlook, action: Action) -> str | None:
    """Why an action leaves state with a single copy for too long; the longest repair counts."""
    if not action.copies_at_risk:
        return None
    if outlook.held.disk_s is None:
        return "A single copy of some state would be left, with no checkpoint on disk behind it."
    longest = max(each.seconds for each in outlook.odds.repairs) if action.until_repair else action.exposed_s
    if longest <= outlook.odds.single_copy_s:
        return None
    return (
        f"A single copy of some state would be left for up to {longest:.0f} s,"
        f" longer than the {outlook.odds.single_copy_s:.0f} s allowed."
    )


def _for_nothing(outlook: Outlook, action: Action) -> float:
    """What acting costs if nothing was wrong: the worker is back once that is known."""
    degraded = (1.0 - action.rate) * outlook.odds.confirm_s
    return action.downtime_s + action.repeated_s + degraded + action.rejoin_probability * action.rejoin_s


def _threshold(outlook: Outlook, best: Option) -> float:
    """C_act / (C_act + C_wait) of the best option."""
    parts = best.parts
    acting = parts.get("downtime", 0.0) + parts.get("repeated", 0.0) + parts.get("rejoin", 0.0)
    acting += (1.0 - (best.rate or 0.0)) * outlook.odds.confirm_s
    return act_above(acting, _waiting(outlook))


def _waiting(outlook: Outlook) -> float:
    """What waiting for certainty costs if the alarm is real."""
    wait = outlook.odds.confirm_s
    if outlook.fault in GONE:
        return wait
    if outlook.fault is Fault.SLOW:
        speeds = [outlook.speed if lost else 1.0 for lost in outlook.lost]
        return wait * (1.0 - slowed_rate(outlook.shape, [outlook.stage] * outlook.shape.pp, speeds))
    late = wait >= outlook.odds.notice_s
    return outlook.detect_s + outlook.costs.fence_s + outlook.step_s / 2.0 if late else 0.0


def _steps(ways: tuple[WayName, ...], action: Action) -> tuple[Step, ...]:
    first = Step(ways[0].value, 0.0)
    if action.rejoin_probability == 0.0:
        return (first,)
    if len(ways) > 1:
        swapped = Step(ways[1].value, action.back_after_s)
        return first, swapped, Step("validate the node that went", math.inf), Step("take it back as a spare", math.inf)
    at = math.inf if action.until_repair else action.back_after_s
    return first, Step("validate the worker that is back", at), Step("re-join at the end of a step", at)


def _reason(action: Action) -> str:
    if action.rate >= 1.0:
        return f"Training goes on at its full rate after {action.downtime_s:.3g} s."
    until = "a repair" if action.until_repair else f"{action.back_after_s:.3g} s have passed"
    return f"Training goes on at {action.rate:.1%} of its rate after {action.downtime_s:.3g} s, until {until}."


def _order(option: Option) -> tuple[bool, float, int, tuple[WayName, ...]]:
    return not option.feasible, option.expected_s or 0.0, len(option.ways), option.ways


def _explain(outlook: Outlook, options: tuple[Option, ...], best: Option | None, threshold: float) -> str:
    if best is None:
        said = " ".join(f"{' + '.join(option.ways)}: {option.reason}" for option in options)
        return f"Nothing brings the job back by itself, a human is needed. {said}"
    p = outlook.odds.confidence
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


def _name(option: Option) -> str:
    return ", then ".join(option.ways)


def _cost(option: Option) -> str:
    return f"{option.expected_s:.3g} s of the job ({option.gpu_seconds:.3g} GPU-seconds)"
