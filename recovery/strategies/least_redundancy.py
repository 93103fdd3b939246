"""States come back from the redundancy in memory that costs least for its safety."""

from __future__ import annotations

from mainstay.recovery.cost_inputs import CostInputs
from mainstay.recovery.cost_model.failure_cost import RecoveryAction
from mainstay.recovery.cost_model.redundancy import RedundancyScheme, torn_rate
from mainstay.recovery.recovery_plan import RecoveryStrategyName
from mainstay.recovery.strategies.recovery_strategy import RecoveryStrategy, nothing_lost, placeless


class LeastRedundancy(RecoveryStrategy):
    """Chen et al. (ICCD 2023): copies or a code, chosen by cost; GEMINI's replicas are its schemes of one block."""

    way = RecoveryStrategyName.LEAST_REDUNDANCY

    def infeasible_reason(self, cost_inputs: CostInputs) -> str | None:
        """A scheme must fit into memory and bear what was lost."""
        if why := nothing_lost(cost_inputs) or placeless(cost_inputs):
            return why
        if not cost_inputs.pool.schemes:
            return "No scheme of redundancy is offered."
        if _fitting(cost_inputs):
            return None
        return f"No scheme fits into the memory that there is and bears {cost_inputs.gone} losses in one group."

    def recovery_action(self, cost_inputs: CostInputs) -> RecoveryAction:
        """That of the least cost by failure, all the time between failures counted."""
        between_s = 1.0 / cost_inputs.job_rate if cost_inputs.job_rate else 0.0

        def cost_s(action: RecoveryAction) -> float:
            return action.downtime_s + action.repeated_s + action.readiness_share * between_s

        return min((_action(cost_inputs, scheme) for scheme in _fitting(cost_inputs)), key=cost_s)


def _fitting(cost_inputs: CostInputs) -> list[RedundancyScheme]:
    """Those that fit into memory and the job, and bear what was lost, as though it were all of one group."""
    return [
        scheme
        for scheme in cost_inputs.pool.schemes
        if scheme.memory * cost_inputs.state_bytes <= cost_inputs.pool.room_bytes
        and scheme.data + scheme.extra <= cost_inputs.workers
        and scheme.extra >= cost_inputs.gone
    ]


def _action(cost_inputs: CostInputs, scheme: RedundancyScheme) -> RecoveryAction:
    """A block is decoded from ``data`` others. Readiness: its saves, and the restarts from disk it cannot prevent."""
    fetched_s = cost_inputs.state_bytes * scheme.data / cost_inputs.costs.net_Bps
    decoded_s = cost_inputs.state_bytes * scheme.data / cost_inputs.costs.xor_Bps if scheme.data > 1 else 0.0
    odds = cost_inputs.odds
    torn = torn_rate(scheme, workers=cost_inputs.workers, worker_rate=odds.worker_rate, window_s=odds.repair_s)
    return RecoveryAction(
        downtime_s=cost_inputs.down_s(cost_inputs.spawn_s + fetched_s + decoded_s + cost_inputs.load_s),
        repeated_s=scheme.every_s / 2.0,
        readiness_share=min(1.0, scheme.share + torn * cost_inputs.from_disk_s),
    )
