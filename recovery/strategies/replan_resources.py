"""The job continues with as many workers as are worth having by what it has seen of its own steps."""

from __future__ import annotations

from mainstay.recovery.cost_inputs import CostInputs, ProgramCapability
from mainstay.recovery.cost_model.failure_cost import RecoveryAction
from mainstay.recovery.cost_model.resources import Fit, enough, fit, useful_workers
from mainstay.recovery.recovery_plan import RecoveryStrategyName
from mainstay.recovery.strategies.recovery_strategy import RecoveryStrategy, rejoins, unheld


class ReplanResources(RecoveryStrategy):
    """DLRover-RM (VLDB 2024): a fitted model of performance, and shards of data that are queued again."""

    way = RecoveryStrategyName.REPLAN_RESOURCES
    awaits_return = True

    def infeasible_reason(self, cost_inputs: CostInputs) -> str | None:
        """It learns from steps with three numbers of workers at least."""
        if ProgramCapability.RESHAPE not in cost_inputs.able:
            return "The training program cannot continue with another number of workers."
        if why := unheld(cost_inputs):
            return why
        if not enough(cost_inputs.pool.samples):
            return "Steps were seen with fewer than three numbers of workers, which says nothing about a fourth."
        if cost_inputs.left < cost_inputs.pool.least_stages:
            return f"{cost_inputs.left} workers cannot hold the model."
        return None

    def recovery_action(self, cost_inputs: CostInputs) -> RecoveryAction:
        """The job shrinks to what is left and worth having, or takes spares that are."""
        fitted = fit(cost_inputs.pool.samples)
        assert fitted is not None  # masked
        there = cost_inputs.left + cost_inputs.pool.standbys
        return RecoveryAction(
            downtime_s=cost_inputs.stop_s + cost_inputs.move_s,
            repeated_s=cost_inputs.cut_s,
            rate=_rate(cost_inputs, fitted, min(there, useful_workers(fitted, cost_inputs.workers))),
            rejoin_s=rejoins(cost_inputs),
        )


def _rate(cost_inputs: CostInputs, fitted: Fit, workers: int) -> float:
    """Against the healthy step, both by the fit; no faster than all workers are."""
    return min(1.0, fitted.step_s(cost_inputs.workers) / fitted.step_s(max(1, workers)))
