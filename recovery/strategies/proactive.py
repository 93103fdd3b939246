"""Before workers go, the job moves to the (dp, pp) that trains most on those that stay."""

from __future__ import annotations

from mainstay.recovery.cost_inputs import CostInputs, FaultKind, ProgramCapability
from mainstay.recovery.cost_model.failure_cost import RecoveryAction
from mainstay.recovery.cost_model.layouts import Layout, LayoutModel, best_layout, layout_s, layouts
from mainstay.recovery.recovery_plan import RecoveryStrategyName
from mainstay.recovery.strategies.recovery_strategy import RecoveryStrategy, rejoins, waiting_s


class Proactive(RecoveryStrategy):
    """Parcae's liveput (NSDI'24), LiveR: a planned change while all state is still there."""

    way = RecoveryStrategyName.PROACTIVE
    awaits_return = True

    def infeasible_reason(self, cost_inputs: CostInputs) -> str | None:
        """Without notice there is nothing to move from."""
        if cost_inputs.fault is not FaultKind.NOTICE:
            return "Nothing was announced: a planned change needs the workers that go."
        if ProgramCapability.RESHAPE not in cost_inputs.able:
            return "The training program cannot continue at another (dp, pp)."
        if best_layout(cost_inputs.model, cost_inputs.left) is None:
            return f"{cost_inputs.left} workers cannot hold the model."
        return None

    def recovery_action(self, cost_inputs: CostInputs) -> RecoveryAction:
        """The layout of most liveput: throughput until workers are back, less what it costs to come and to go back.

        ``bench.lib_liveput`` does the same over many intervals whose nodes are known or predicted.
        """
        model = cost_inputs.model
        wait = waiting_s(cost_inputs)

        def lost_s(action: RecoveryAction) -> float:
            return action.downtime_s + (1.0 - action.rate) * wait + action.rejoin_s

        actions = (_moved(cost_inputs, model, layout) for layout in layouts(model, cost_inputs.left))
        return min(actions, key=lost_s)


def _moved(cost_inputs: CostInputs, model: LayoutModel, layout: Layout) -> RecoveryAction:
    """State streams beside training while there is notice; the job stops for the rest, and for the return."""
    move_s = cost_inputs.move_s if layout[1] != cost_inputs.shape.pp else 0.0
    hidden = min(move_s, cost_inputs.odds.notice_s)
    return RecoveryAction(
        downtime_s=cost_inputs.stop_s + move_s - hidden,
        repeated_s=0.0,
        rate=min(1.0, cost_inputs.step_s / layout_s(model, layout)),
        rejoin_s=rejoins(cost_inputs),
    )
