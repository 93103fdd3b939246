"""Cost inputs drawn with a plain generator, so that every way is possible in some and impossible in others."""

from __future__ import annotations

import random

from mainstay.recovery.cost_inputs import (
    CostInputs,
    FailureOdds,
    FaultKind,
    ProgramCapability,
    RollbackCosts,
    SpareCapacity,
)
from mainstay.recovery.cost_model.allocation import Tenant
from mainstay.recovery.cost_model.failure_cost import Repair
from mainstay.recovery.cost_model.iteration import IterationShape
from mainstay.recovery.cost_model.redundancy import RedundancyScheme
from mainstay.recovery.cost_model.resources import ScalingSample
from mainstay.recovery.planner_input import MachineCosts


def cost_inputs(seed: int) -> CostInputs:
    rng = random.Random(seed)
    dp, pp = rng.randint(1, 6), rng.randint(1, 6)
    fault = rng.choice(list(FaultKind))
    lost = [0] * pp
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        lost[rng.randrange(pp)] += 1
    return CostInputs(
        shape=IterationShape(dp=dp, pp=pp, micro_batches=rng.randint(1, 32)),
        slot_s=rng.uniform(0.03, 3.0),
        layers=pp * rng.randint(1, 4) + rng.randint(0, 2),
        state_bytes=10 ** rng.uniform(6, 11),
        fault=fault,
        lost=tuple(min(each, dp) for each in lost),
        odds=FailureOdds(
            worker_rate=rng.choice((0.0, 1e-7, 1e-5)),
            confidence=rng.choice((1.0, 0.9, 0.2)),
            confirm_s=rng.choice((0.0, 5.0, 60.0)),
            repairs=(Repair(0.5, rng.uniform(1.0, 900.0)), Repair(0.5, rng.uniform(900.0, 1e5))),
            single_copy_s=rng.choice((60.0, 1e6)),
            notice_s=rng.choice((0.0, 30.0, 120.0)),
        ),
        gpus=rng.choice((1, 8)),
        speed=rng.uniform(0.1, 1.0),
        held=held(rng),
        pool=pool(rng),
        costs=MachineCosts(
            fence_s=rng.uniform(0.01, 3.0), spawn_cold_s=rng.uniform(1.0, 300.0), net_Bps=10 ** rng.uniform(8, 11)
        ),
        detect_s=rng.uniform(0.01, 5.0),
        warm_up_s=rng.uniform(0.01, 10.0),
        restart_s=rng.uniform(0.0, 600.0),
        able=frozenset(ability for ability in ProgramCapability if rng.random() < 0.7),
    )  # fmt: skip


def held(rng: random.Random) -> RollbackCosts:
    def some(most: float) -> float | None:
        return rng.uniform(0.0, most) if rng.random() < 0.7 else None

    return RollbackCosts(
        local_s=some(10.0),
        peer_s=some(10.0),
        parity_s=some(100.0),
        parity_losses=rng.randint(1, 2),
        disk_s=some(3600.0),
        replicated=rng.random() < 0.8,
    )


def pool(rng: random.Random) -> SpareCapacity:
    others = tuple(
        Tenant(name=f"job-{i}", workers=k, achieved=tuple(float(n) for n in range(k + 1)), transition_s=30.0)
        for i, k in enumerate(rng.choices(range(5), k=rng.randint(0, 3)))
    )
    schemes = (
        RedundancyScheme(data=1, extra=1, every_s=rng.uniform(1.0, 100.0), save_s=rng.uniform(0.0, 1.0)),
        RedundancyScheme(data=4, extra=2, every_s=rng.uniform(1.0, 100.0), save_s=rng.uniform(0.0, 1.0)),
    )
    return SpareCapacity(
        standbys=rng.randint(0, 2),
        spares=rng.randint(0, 2),
        standby_after_s=rng.choice((120.0, float("inf"))),
        least_stages=rng.randint(1, 3),
        room_bytes=10 ** rng.uniform(6, 13),
        others=others,
        schemes=schemes[: rng.randint(0, 2)],
        samples=tuple(ScalingSample(n, 1.0 + 10.0 / n) for n in range(1, rng.randint(2, 6))),
    )
