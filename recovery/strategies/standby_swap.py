"""A warm standby takes the place of each worker that is lost, slow or about to go, with state from a live peer."""

from __future__ import annotations

from mainstay.recovery.cost_inputs import GONE, CostInputs
from mainstay.recovery.cost_model.failure_cost import RecoveryAction
from mainstay.recovery.recovery_plan import RecoveryStrategyName, RestoreStrategyName
from mainstay.recovery.strategies.recovery_strategy import RecoveryStrategy, unheld


class StandbySwap(RecoveryStrategy):
    """TrainMover, ByteRobust, FlashRecovery. Here: a peer copy to a standby, or a migration where the worker lives."""

    way = RecoveryStrategyName.STANDBY_SWAP
    executed_as = RestoreStrategyName.PEER_COPY

    def infeasible_reason(self, cost_inputs: CostInputs) -> str | None:
        """Each needs a standby; the state of what is gone, a peer."""
        if cost_inputs.pool.standbys < cost_inputs.gone:
            return f"{cost_inputs.gone} workers are to be swapped, and {cost_inputs.pool.standbys} standbys are warm."
        return unheld(cost_inputs) if cost_inputs.fault in GONE else None

    def recovery_action(self, cost_inputs: CostInputs) -> RecoveryAction:
        """Planned swaps wait for the end of a step, and nothing is repeated."""
        more = cost_inputs.costs.spawn_warm_s + cost_inputs.move_s
        return RecoveryAction(downtime_s=cost_inputs.stop_s + more, repeated_s=cost_inputs.cut_s)
