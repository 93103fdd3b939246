"""Stages are pools: micro-batches find a live worker by themselves, and workers move to the pool that lacks most."""

from __future__ import annotations

from mainstay.recovery.cost_inputs import GONE, CostInputs, ProgramCapability
from mainstay.recovery.cost_model.failure_cost import RecoveryAction
from mainstay.recovery.recovery_plan import RecoveryStrategyName
from mainstay.recovery.strategies.recovery_strategy import RecoveryStrategy, rejoins, single_stages, unheld


class PoolRebalance(RecoveryStrategy):
    """SWARM (ICML'23): stochastic wiring; a peer that fails is banned and its micro-batch sent again."""

    way = RecoveryStrategyName.POOL_REBALANCE
    awaits_return = True

    def infeasible_reason(self, cost_inputs: CostInputs) -> str | None:
        """Every pool needs a worker."""
        if ProgramCapability.POOL not in cost_inputs.able:
            return "The training program wires its pipelines fast."
        return unheld(cost_inputs)

    def recovery_action(self, cost_inputs: CostInputs) -> RecoveryAction:
        """Nothing stands still but what waited for the lost micro-batch; the smallest pool sets the pace.

        Pools are evened out beside training: a worker that moves downloads its new stage's state, and where that makes
        no pool larger no worker moves.
        """
        dp, pp = cost_inputs.shape.dp, cost_inputs.shape.pp
        worst = dp - max(cost_inputs.lost)
        even = cost_inputs.left // pp
        return RecoveryAction(
            downtime_s=(cost_inputs.detect_s if cost_inputs.fault in GONE else 0.0) + cost_inputs.slot_s,
            repeated_s=cost_inputs.move_s * (1.0 - worst / dp) if even > worst else 0.0,
            rate=min(1.0, max(even, worst) / dp),
            rejoin_s=rejoins(cost_inputs) - cost_inputs.costs.regroup_s,
            copies_at_risk=single_stages(cost_inputs),
        )
