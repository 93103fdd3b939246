"""Every rank goes back to its own memory: failed processes to their slots, which outlive them in their node's agent."""

from __future__ import annotations

from mainstay.recovery.cost_inputs import CostInputs, FaultKind
from mainstay.recovery.cost_model.failure_cost import RecoveryAction
from mainstay.recovery.planner_input import FailureCase
from mainstay.recovery.recovery_plan import Alternative, RestoreStrategyName
from mainstay.recovery.strategies.restore_options import local_offers
from mainstay.recovery.strategies.restore_strategy import RestoreStrategy


class LocalSlot(RestoreStrategy):
    """Restore from the node's own snapshot (in-memory snapshot processes: REFT; local tier of GEMINI and TRANSOM)."""

    name = RestoreStrategyName.LOCAL_SLOT

    def restore(self, case: FailureCase) -> Alternative | str:
        """Infeasible as soon as a node is lost, whose memory is gone."""
        own = {rank: local_offers(case, rank) for rank in case.failed}
        return self.restore_from(case, own, lambda epoch: self._reason(case, epoch))

    def missing(self, case: FailureCase, rank: int) -> str:
        node = case.situation.ranks[rank].node
        if node in case.lost:
            return f"Node {node} is lost, and with it the snapshots of rank {rank} in its memory."
        return f"Node {node} holds no verified snapshot of rank {rank}."

    def _reason(self, case: FailureCase, epoch: int) -> str:
        if not case.failed:
            return f"No rank is gone: all ranks meet at step {epoch} from their own memory."
        who = ", ".join(map(str, case.failed))
        return f"The snapshot of step {epoch} that failed rank {who} left in its node's memory is whole."

    def lacking(self, cost_inputs: CostInputs) -> str | None:
        """The memory of a lost node is gone with it."""
        if cost_inputs.fault is FaultKind.NODE:
            return "Nodes are lost, and with them the snapshots in their memory."
        return None if cost_inputs.held.local_s is not None else "No snapshot is in the memory of the node."

    def recovery_action(self, cost_inputs: CostInputs) -> RecoveryAction:
        """A new process, and a copy within its node."""
        down = cost_inputs.down_s(cost_inputs.spawn_s + cost_inputs.load_s)
        return RecoveryAction(downtime_s=down, repeated_s=cost_inputs.held.local_s or 0.0)
