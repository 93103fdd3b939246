"""Each worker also computes its successor's layers, and takes over when that one is lost."""

from __future__ import annotations

from mainstay.recovery.cost_inputs import GONE, CostInputs, ProgramCapability
from mainstay.recovery.cost_model.failure_cost import RecoveryAction
from mainstay.recovery.cost_model.iteration import REDUNDANT_FAILOVER
from mainstay.recovery.recovery_plan import RecoveryStrategyName
from mainstay.recovery.strategies.recovery_strategy import RecoveryStrategy, rejoins, single_stages

REDUNDANT_SHARE = 0.803
"""Of the time, that redundant forwards and their communication take: 1 - 0.197, the useful share of Bamboo's runs in
the simulator behind Oobleck's Table 2."""


class RedundantCompute(RecoveryStrategy):
    """Bamboo (NSDI'23). Its price is paid all the time, so that it stands in ``readiness_share``."""

    way = RecoveryStrategyName.REDUNDANT_COMPUTE
    awaits_return = True

    def infeasible_reason(self, cost_inputs: CostInputs) -> str | None:
        """Two neighbors lost may be of one pipeline, and then no worker holds the second one's layers."""
        if ProgramCapability.REDUNDANT not in cost_inputs.able:
            return "The training program computes nothing redundantly."
        if cost_inputs.shape.pp < 2:
            return "A pipeline of one stage has no neighbor to compute for."
        pp = cost_inputs.shape.pp
        both = next((s for s in range(pp) if cost_inputs.lost[s] and cost_inputs.lost[(s + 1) % pp]), None)
        if both is not None:
            return f"Neighbouring stages {both} and {(both + 1) % pp} lost workers: no shadow may be left."
        return None

    def recovery_action(self, cost_inputs: CostInputs) -> RecoveryAction:
        """A shadow runs two stages: its slot is twice as long, and sets the pace."""
        failover_s = (REDUNDANT_FAILOVER - 1.0) * cost_inputs.step_s
        stop_s = cost_inputs.detect_s + cost_inputs.costs.fence_s + failover_s
        shape = cost_inputs.shape
        return RecoveryAction(
            downtime_s=stop_s if cost_inputs.fault in GONE else 0.0,
            repeated_s=0.0,
            rate=shape.slots / (2.0 * shape.micro_batches + shape.pp - 1),
            rejoin_s=rejoins(cost_inputs),
            copies_at_risk=single_stages(cost_inputs),
            readiness_share=REDUNDANT_SHARE,
        )
