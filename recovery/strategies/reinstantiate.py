"""All workers that are left form pipelines again, of unlike depth, from templates planned ahead; no restart."""

from __future__ import annotations

from mainstay.recovery.cost_inputs import CostInputs, ProgramCapability
from mainstay.recovery.cost_model.failure_cost import RecoveryAction
from mainstay.recovery.cost_model.layouts import best_mix, mixable
from mainstay.recovery.recovery_plan import RecoveryStrategyName
from mainstay.recovery.strategies.recovery_strategy import RecoveryStrategy, rejoins, unheld


class Reinstantiate(RecoveryStrategy):
    """Oobleck (SOSP'23): heterogeneous pipelines; layers that are missing are copied from a surviving replica."""

    way = RecoveryStrategyName.REINSTANTIATE
    awaits_return = True

    def infeasible_reason(self, cost_inputs: CostInputs) -> str | None:
        """Two replicas at least must remain (f + 1 with f = 1), or the next loss is the last."""
        if ProgramCapability.TEMPLATES not in cost_inputs.able:
            return "The training program cannot train pipelines of unlike depth together."
        if why := unheld(cost_inputs):
            return why
        least = 2 * cost_inputs.pool.least_stages
        if cost_inputs.left < least:
            return f"{cost_inputs.left} workers are left, and two replicas of the model need {least}."
        return (
            None if mixable(cost_inputs.model, cost_inputs.left) else "The batch cannot keep any mix of pipelines busy."
        )

    def recovery_action(self, cost_inputs: CostInputs) -> RecoveryAction:
        """At most one worker's state moves into each worker, all at once; or all write, start again and read."""
        found = best_mix(cost_inputs.model, cost_inputs.left)
        assert found is not None  # masked
        through_s = 2.0 * cost_inputs.read_s + cost_inputs.costs.spawn_cold_s
        move_s = through_s if cost_inputs.through_disk else cost_inputs.move_s
        return RecoveryAction(
            downtime_s=cost_inputs.stop_s + move_s,
            repeated_s=cost_inputs.cut_s,
            rate=min(1.0, cost_inputs.step_s / found[0]),
            rejoin_s=rejoins(cost_inputs) - cost_inputs.move_s + move_s,
        )
