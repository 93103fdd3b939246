"""The job is restarted from a checkpoint at the (dp, pp) that is fastest on the workers that are left."""

from __future__ import annotations

from mainstay.recovery.cost_inputs import CostInputs, FaultKind, ProgramCapability
from mainstay.recovery.cost_model.failure_cost import RecoveryAction
from mainstay.recovery.cost_model.layouts import best_layout, layout_s
from mainstay.recovery.recovery_plan import RecoveryStrategyName
from mainstay.recovery.strategies.recovery_strategy import RecoveryStrategy


class Morph(RecoveryStrategy):
    """Varuna (EuroSys'22): job morphing by restart; with notice it saves just before."""

    way = RecoveryStrategyName.MORPH
    awaits_return = True

    def infeasible_reason(self, cost_inputs: CostInputs) -> str | None:
        """A checkpoint and enough workers."""
        if ProgramCapability.RESHAPE not in cost_inputs.able:
            return "The training program cannot continue at another (dp, pp)."
        if cost_inputs.held.disk_s is None and cost_inputs.fault is not FaultKind.NOTICE:
            return "No checkpoint is on disk."
        if best_layout(cost_inputs.model, cost_inputs.left) is None:
            return f"{cost_inputs.left} workers cannot hold the model."
        return None

    def recovery_action(self, cost_inputs: CostInputs) -> RecoveryAction:
        """Restart, read, and as slow as fewer workers are; a later growth is a restart again."""
        model = cost_inputs.model
        found = best_layout(model, cost_inputs.left)
        assert found is not None  # masked
        noticed = cost_inputs.fault is FaultKind.NOTICE
        regroup_s = cost_inputs.costs.regroup_s + cost_inputs.warm_up_s
        return RecoveryAction(
            downtime_s=cost_inputs.down_s(cost_inputs.reload_s) + (cost_inputs.read_s if noticed else 0.0),
            repeated_s=0.0 if noticed else cost_inputs.held.disk_s or 0.0,
            rate=min(1.0, cost_inputs.step_s / layout_s(model, found)),
            rejoin_s=cost_inputs.reload_s + cost_inputs.read_s + regroup_s,
        )
