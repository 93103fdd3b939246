"""Another job of the cluster gives up workers, where that costs all jobs together least."""

from __future__ import annotations

from mainstay.recovery.cost_inputs import CostInputs, FaultKind
from mainstay.recovery.cost_model.allocation import donor_loss
from mainstay.recovery.cost_model.failure_cost import RecoveryAction
from mainstay.recovery.recovery_plan import RecoveryStrategyName
from mainstay.recovery.strategies.recovery_strategy import RecoveryStrategy, unheld


class BorrowWorkers(RecoveryStrategy):
    """Unicron: the plan of least cost over several jobs, here for the one that lost workers."""

    way = RecoveryStrategyName.BORROW_WORKERS

    def infeasible_reason(self, cost_inputs: CostInputs) -> str | None:
        """Another job must have as many workers to give; the lost state must be held."""
        if cost_inputs.fault in {FaultKind.ERROR, FaultKind.PROCESS}:
            return "No worker is lost, so that none is to be borrowed."
        if cost_inputs.fault is FaultKind.NODE and (why := unheld(cost_inputs)):
            return why
        if not cost_inputs.pool.others:
            return "No other job shares this cluster."
        if _loss(cost_inputs) is None:
            return f"No other job has {cost_inputs.gone} workers to give up."
        return None

    def recovery_action(self, cost_inputs: CostInputs) -> RecoveryAction:
        """A donor's loss counts as this job's: in its seconds, by the donor's rate against this job's own.

        Rates of tenants are in units of one healthy worker of this job, so that a value of 1 is one worker's second.
        """
        loss = _loss(cost_inputs)
        assert loss is not None  # masked
        more = cost_inputs.costs.spawn_cold_s + cost_inputs.move_s + loss / cost_inputs.workers
        return RecoveryAction(downtime_s=cost_inputs.stop_s + more, repeated_s=cost_inputs.cut_s)


def _loss(cost_inputs: CostInputs) -> float | None:
    """The least loss of value, in seconds of one worker."""
    return donor_loss(cost_inputs.pool.others, cost_inputs.gone, cost_inputs.odds.repair_s)
