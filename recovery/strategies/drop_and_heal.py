"""Pipelines that lost a worker are left out and the others take their work; they recover from a peer later."""

from __future__ import annotations

from mainstay.recovery.cost_inputs import CostInputs
from mainstay.recovery.cost_model.failure_cost import RecoveryAction
from mainstay.recovery.cost_model.iteration import dropped_rate
from mainstay.recovery.recovery_plan import RecoveryStrategyName
from mainstay.recovery.strategies.recovery_strategy import RecoveryStrategy, rejoins, single_pipeline, unheld


class DropAndHeal(RecoveryStrategy):
    """torchft: the quorum shrinks by a replica group and grows again. As many pipelines go as workers, at worst."""

    way = RecoveryStrategyName.DROP_AND_HEAL
    awaits_return = True

    def infeasible_reason(self, cost_inputs: CostInputs) -> str | None:
        """A whole pipeline must remain."""
        if why := unheld(cost_inputs):
            return why
        hit, dp = cost_inputs.hit, cost_inputs.shape.dp
        if hit >= dp:
            return f"{hit} of {dp} pipelines may have lost a worker, so that none is whole."
        return None

    def recovery_action(self, cost_inputs: CostInputs) -> RecoveryAction:
        """The batch is kept; the smaller world needs no state moved until a worker is back."""
        return RecoveryAction(
            downtime_s=cost_inputs.stop_s,
            repeated_s=cost_inputs.cut_s,
            rate=dropped_rate(cost_inputs.shape, cost_inputs.hit),
            rejoin_s=rejoins(cost_inputs),
            copies_at_risk=single_pipeline(cost_inputs, cost_inputs.hit),
        )
