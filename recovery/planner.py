"""Which way back costs least: a pure function from a situation to a plan, explained.

Every strategy is asked; the cheapest feasible one is chosen (on a tie the one that repeats fewer steps, then the first
by name), and all of them are kept in the plan, so that a human can see what was not done and why.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from recovery.plan import Alternative, Plan, RestoreSource, StrategyName
from recovery.situation import Case, Situation
from recovery.strategies import STRATEGIES
from recovery.strategies.base import Strategy


def plan(situation: Situation, strategies: Sequence[Strategy] = STRATEGIES) -> Plan:
    """Price every strategy and choose.

    Returns:
        A plan whose alternatives are sorted best first, infeasible ones last by name; ``chosen`` is None if nothing is
        feasible. The same situation gives the same plan, its id included.
    """
    case = Case(situation)
    alternatives = tuple(sorted((strategy.price(case) for strategy in strategies), key=_order))
    best = alternatives[0] if alternatives and alternatives[0].feasible else None
    return Plan(
        id=_identify(situation),
        job=situation.job,
        generation=situation.generation + 1,
        failed_ranks=case.failed,
        alternatives=alternatives,
        chosen=best.strategy if best else None,
        explanation=_explain(alternatives, best),
    )


def precompute(situation: Situation, strategies: Sequence[Strategy] = STRATEGIES) -> dict[int | str, Plan]:
    """Plans for the loss of every single rank (key: its number) and of every single node (key: its name).

    What the situation itself says has failed is left aside: it describes the job while it runs.
    """
    plans: dict[int | str, Plan] = {}
    for place in situation.ranks:
        plans[place.rank] = plan(_without(situation, {place.rank}, ()), strategies)
    for node in sorted({place.node for place in situation.ranks}):
        gone = {place.rank for place in situation.ranks if place.node == node}
        plans[node] = plan(_without(situation, gone, (node,)), strategies)
    return plans


def _without(situation: Situation, ranks: set[int], nodes: tuple[str, ...]) -> Situation:
    live = {rank: epoch for rank, epoch in situation.live.items() if rank not in ranks}
    return replace(situation, failed_ranks=tuple(sorted(ranks)), lost_nodes=nodes, live=live)


def _order(alternative: Alternative) -> tuple[bool, float, int, StrategyName]:
    return (
        not alternative.feasible,
        alternative.cost_seconds or 0.0,
        alternative.steps_lost or 0,
        alternative.strategy,
    )


def _identify(situation: Situation) -> str:
    """A UUID (version 8: made of a digest) that is the same for the same situation, so that a retry adds no plan."""
    ordered = replace(
        situation,
        live=dict(sorted(situation.live.items())),
        standbys=dict(sorted(situation.standbys.items())),
        cold=dict(sorted(situation.cold.items())),
    )
    digest = hashlib.blake2b(msgspec.json.encode(ordered), digest_size=16).digest()
    raw = bytearray(digest)
    raw[6], raw[8] = 0x80 | raw[6] & 0x0F, 0x80 | raw[8] & 0x3F  # RFC 9562: version and variant
    return str(uuid.UUID(bytes=bytes(raw)))


def _explain(alternatives: tuple[Alternative, ...], best: Alternative | None) -> str:
    if best is None:
        reasons = " ".join(f"{a.strategy}: {a.reason}" for a in alternatives)
        return f"Nothing brings the job back by itself, a human is needed. {reasons}"
    kept = sum(restore.source is RestoreSource.LIVE for restore in best.restores)
    keep = f"{kept} of {len(best.restores)} ranks keep what they hold"
    text = f"{best.strategy}: {best.reason} It takes {_price(best)}; {keep}."
    others = [a for a in alternatives if a is not best]
    if others and others[0].feasible:
        return f"{text} Next best: {others[0].strategy}, {_price(others[0])}."
    return f"{text} No other strategy is possible here."


def _price(alternative: Alternative) -> str:
    steps = f"{alternative.steps_lost} steps" if alternative.steps_lost != 1 else "1 step"
    return f"about {alternative.seconds:.2f} s and {steps} to repeat"
