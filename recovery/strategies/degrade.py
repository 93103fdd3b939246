"""Slow workers stay and get less: their pipelines fewer micro-batches, or they themselves fewer layers."""

from __future__ import annotations

from mainstay.recovery.cost_inputs import CostInputs, FaultKind
from mainstay.recovery.cost_model.failure_cost import RecoveryAction
from mainstay.recovery.cost_model.layouts import Mix, mix_s
from mainstay.recovery.recovery_plan import RecoveryStrategyName
from mainstay.recovery.strategies.recovery_strategy import RecoveryStrategy


class Degrade(RecoveryStrategy):
    """ResiHP, ElasWave: micro-batches assigned by speed, layers split again; whichever is faster."""

    way = RecoveryStrategyName.DEGRADE
    awaits_return = True

    def infeasible_reason(self, cost_inputs: CostInputs) -> str | None:
        """For slow workers alone."""
        if cost_inputs.fault is not FaultKind.SLOW:
            return "No worker is slow: there is no worker to give less to."
        return None

    def recovery_action(self, cost_inputs: CostInputs) -> RecoveryAction:
        """The assignment changes at the end of a step. New layers also move state, and pay it for the rate alone."""
        assigned, split = degraded_s(cost_inputs)
        moved = split < assigned
        return RecoveryAction(
            downtime_s=cost_inputs.stop_s + (cost_inputs.move_s if moved else 0.0),
            repeated_s=0.0,
            rate=min(1.0, cost_inputs.step_s / min(assigned, split)),
            rejoin_s=cost_inputs.costs.regroup_s + (cost_inputs.move_s if moved else 0.0),
        )


def degraded_s(cost_inputs: CostInputs) -> tuple[float, float]:
    """Seconds of a step with micro-batches assigned by speed, and with layers split again.

    Assigned: each slow worker drags a pipeline of its own, at worst. Split: in those pipelines the slow stage gets the
    layers that balance it (minimax), so that a pipeline of P stages with total speed P - 1 + v runs at that share.
    """
    dp, pp = cost_inputs.shape.dp, cost_inputs.shape.pp
    slow, slot = cost_inputs.hit, cost_inputs.slot_s
    healthy: Mix = ((dp - slow, pp, slot),) if dp > slow else ()
    assigned = mix_s(cost_inputs.model, (*healthy, (slow, pp, slot / cost_inputs.speed)))
    split = mix_s(cost_inputs.model, (*healthy, (slow, pp, split_slot_s(cost_inputs))))
    return assigned, split


def split_slot_s(cost_inputs: CostInputs) -> float:
    """The slowest slot of a pipeline with one slow stage after the best split of whole layers."""
    model, pp = cost_inputs.model, cost_inputs.shape.pp
    if pp == 1:
        return cost_inputs.slot_s / cost_inputs.speed
    least = min(
        max(few * model.layer_s / cost_inputs.speed, -(-(model.layers - few) // (pp - 1)) * model.layer_s)
        for few in range(1, -(-model.layers // pp) + 1)
    )
    return max(least, cost_inputs.slot_s)
