"""A plan of the largest jobs is news that a service takes."""

from __future__ import annotations

import time

import msgspec
import pytest
from pydantic import ValidationError

from mainstay.probes.ids import uuid7
from mainstay.recovery.recovery_plan import (
    LISTED,
    Alternative,
    RankRestore,
    RecoveryPlan,
    RestoreSource,
    RestoreStrategyName,
    summarize_plan,
)
from mainstay.service.events.schemas import EventIn

RANKS = 16_384


def way(strategy: RestoreStrategyName, moved: int) -> Alternative:
    """The first ``moved`` ranks get their state from another node."""
    sources = [RestoreSource.PEER_COPY] * moved + [RestoreSource.LIVE] * (RANKS - moved)
    restores = tuple(
        RankRestore(rank=rank, node=f"node-{rank // 8}", source=source, from_nodes=(f"node-{rank % 2048}",))
        for rank, source in enumerate(sources)
    )
    return Alternative(
        strategy=strategy, feasible=True, reason="It can.", epoch=7, seconds=1.0, steps_lost=0, restores=restores
    )


def event(plan: RecoveryPlan) -> EventIn:
    data = {"plan": msgspec.json.decode(msgspec.json.encode(plan))}  # as it arrives
    return EventIn.model_validate({"id": uuid7(), "time": time.time(), "kind": "recovery_planned", "data": data})


@pytest.mark.parametrize(("moved", "told"), [(8, 8), (RANKS, LISTED)])
def test_what_was_chosen_for_sixteen_thousand_ranks_is_taken(moved: int, told: int) -> None:
    plan = RecoveryPlan(
        id="p", job="demo", generation=2, failed_ranks=(0,), chosen=RestoreStrategyName.PEER_COPY,
        explanation="So it is.",
        alternatives=tuple(way(strategy, moved) for strategy in RestoreStrategyName),
    )  # fmt: skip
    with pytest.raises(ValidationError, match="values"):
        event(plan)
    taken = event(summarize_plan(plan)).data["plan"]
    chosen = next(a for a in taken["alternatives"] if a["strategy"] == "peer_copy")
    assert (len(chosen["restores"]), chosen["left_out"]) == (told, RANKS - told)
