"""The process that failed lives on: its training loop is entered again, without start, import or set-up."""

from __future__ import annotations

from mainstay.recovery.cost_inputs import CostInputs, FaultKind, ProgramCapability
from mainstay.recovery.cost_model.failure_cost import RecoveryAction
from mainstay.recovery.recovery_plan import RecoveryStrategyName, RestoreStrategyName
from mainstay.recovery.strategies.recovery_strategy import RecoveryStrategy, unheld


class InProcess(RecoveryStrategy):
    """In-process restart (Unicron; NVRx): the same processes regroup, state comes from a peer or their own slot.

    A running job's planner calls it a local slot without a failed rank (``mainstay.recovery.controller.retry_policy``).
    """

    way = RecoveryStrategyName.IN_PROCESS
    executed_as = RestoreStrategyName.LOCAL_SLOT

    def infeasible_reason(self, cost_inputs: CostInputs) -> str | None:
        """For errors and hangs alone: a process that is gone cannot be entered again."""
        if cost_inputs.fault is not FaultKind.ERROR:
            return "The process is gone or was never in error, so that there is nothing to enter again."
        if ProgramCapability.IN_PROCESS not in cost_inputs.able:
            return "The training program cannot enter its loop again within a process."
        return None if cost_inputs.held.local_s is not None else unheld(cost_inputs)

    def recovery_action(self, cost_inputs: CostInputs) -> RecoveryAction:
        """From the nearest source: its own slot if there is one, else a peer."""
        local_s = cost_inputs.held.local_s
        if local_s is not None:
            return RecoveryAction(downtime_s=cost_inputs.down_s(cost_inputs.load_s), repeated_s=local_s)
        return RecoveryAction(downtime_s=cost_inputs.down_s(cost_inputs.move_s), repeated_s=cost_inputs.step_s / 2.0)
