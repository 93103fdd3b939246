"""Which recovery strategy costs least: a pure function from a situation to a plan, explained.

Every strategy is asked; the cheapest feasible one is chosen (on a tie the one that repeats fewer steps, then the first
by name), and all of them are kept in the plan, so that an operator can see what was not done and why.
"""

from __future__ import annotations

import uuid
from dataclasses import fields

import msgspec
import xxhash

from mainstay.recovery.planner_input import FailureCase, PlannerInput
from mainstay.recovery.recovery_plan import (
    NOTHING_POSSIBLE,
    Alternative,
    RecoveryPlan,
    RestoreSource,
    RestoreStrategyName,
)
from mainstay.recovery.strategies import STRATEGIES


def plan_recovery(situation: PlannerInput) -> RecoveryPlan:
    """Price every strategy and choose.

    Returns:
        A plan whose alternatives are sorted best first, infeasible ones last by name; ``chosen`` is None if nothing is
        feasible. The same situation gives the same plan, its id included.
    """
    return plan_case(FailureCase(situation))


def plan_case(case: FailureCase) -> RecoveryPlan:
    """``plan_recovery`` of a situation that is indexed already."""
    alternatives = tuple(sorted((strategy.price(case) for strategy in STRATEGIES), key=_order))
    best = alternatives[0] if alternatives[0].feasible else None
    return RecoveryPlan(
        id=_identify(case),
        job=case.situation.job,
        generation=case.situation.generation + 1,
        failed_ranks=case.failed,
        alternatives=alternatives,
        chosen=best.strategy if best else None,
        explanation=_explain(alternatives, best),
    )


def _order(alternative: Alternative) -> tuple[bool, float, int, RestoreStrategyName]:
    return (
        not alternative.feasible,
        alternative.cost_seconds or 0.0,
        alternative.steps_lost or 0,
        alternative.strategy,
    )


_OF_THE_LOSS = frozenset({"failed_ranks", "lost_nodes", "live"})
"""Fields that can say the same in different words; the case says it in one way."""


def _identify(case: FailureCase) -> str:
    """A UUID (version 8: made of a digest) that is the same for the same situation, so that a retry adds no plan."""
    situation = case.situation
    values = [getattr(situation, f.name) for f in fields(situation) if f.name not in _OF_THE_LOSS]
    values += [case.failed, sorted(case.lost), [case.live.get(rank) for rank in case.survivors]]
    ordered = [sorted(value.items()) if isinstance(value, dict) else value for value in values]
    # It tells situations apart, and no caller gains by a forged one.
    raw = bytearray(xxhash.xxh3_128_digest(msgspec.msgpack.encode(ordered)))
    raw[6], raw[8] = 0x80 | raw[6] & 0x0F, 0x80 | raw[8] & 0x3F  # RFC 9562: version and variant
    return str(uuid.UUID(bytes=bytes(raw)))


def _explain(alternatives: tuple[Alternative, ...], best: Alternative | None) -> str:
    if best is None:
        reasons = " ".join(f"{a.strategy}: {a.reason}" for a in alternatives)
        return f"{NOTHING_POSSIBLE} {reasons}"
    kept = [restore.source for restore in best.restores].count(RestoreSource.LIVE)
    keep = f"{kept} of {len(best.restores)} ranks keep what they hold"
    text = f"{best.strategy}: {best.reason} It takes {_price(best)}; {keep}."
    others = [a for a in alternatives if a is not best]
    if others and others[0].feasible:
        return f"{text} Next best: {others[0].strategy}, {_price(others[0])}."
    return f"{text} No other strategy is possible here."


def _price(alternative: Alternative) -> str:
    steps = f"{alternative.steps_lost} steps" if alternative.steps_lost != 1 else "1 step"
    return f"about {alternative.seconds:.2f} s and {steps} to repeat"
