"""Healthy replicas save their state when a failure has happened, not before; then the job starts from that."""

from __future__ import annotations

from mainstay.recovery.cost_inputs import CostInputs
from mainstay.recovery.cost_model.failure_cost import RecoveryAction
from mainstay.recovery.recovery_plan import RecoveryStrategyName
from mainstay.recovery.strategies.recovery_strategy import RecoveryStrategy, nothing_lost, placeless, unheld


class JustInTime(RecoveryStrategy):
    """Just-in-time checkpointing (EuroSys'24): save + restart + half a step, and no steady overhead."""

    way = RecoveryStrategyName.JUST_IN_TIME

    def infeasible_reason(self, cost_inputs: CostInputs) -> str | None:
        """Without a live replica of every lost stage no rank can save."""
        return nothing_lost(cost_inputs) or unheld(cost_inputs) or placeless(cost_inputs)

    def recovery_action(self, cost_inputs: CostInputs) -> RecoveryAction:
        """One replica a stage writes at the same time as the others; all read."""
        more = cost_inputs.read_s + cost_inputs.reload_s
        return RecoveryAction(downtime_s=cost_inputs.down_s(more), repeated_s=cost_inputs.step_s / 2.0)
