"""Everybody goes back to a checkpoint on disk: slowest, oldest, and the one that survives the loss of all memory.

A rank that still holds the checkpoint's step in memory uses that instead of the disk.
"""

from __future__ import annotations

from mainstay.recovery.cost_inputs import CostInputs
from mainstay.recovery.cost_model.failure_cost import RecoveryAction
from mainstay.recovery.planner_input import FailureCase
from mainstay.recovery.recovery_plan import Alternative, RestoreStrategyName
from mainstay.recovery.strategies.restore_options import AllRankOptions, disk_offers
from mainstay.recovery.strategies.restore_strategy import RestoreStrategy


class DiskRestart(RestoreStrategy):
    """Restart from a persistent checkpoint (the baseline of every paper; Varuna's morphing)."""

    name = RestoreStrategyName.DISK_RESTART

    def restore(self, case: FailureCase) -> Alternative | str:
        """Infeasible where some rank has no checkpoint that its node can read."""
        own = {rank: disk_offers(case, rank) for rank in case.failed or case.survivors}
        bare = next((rank for rank in case.failed if not own[rank]), None)
        if bare is not None:
            return f"No checkpoint of rank {bare} is on a disk that {case.node[bare]} can read."
        offers = AllRankOptions(case, own if case.failed else {}, disk=True)
        return self.restore_together(offers, own, "A checkpoint of step {} is on disk for every rank.".format)

    def lacking(self, cost_inputs: CostInputs) -> str | None:
        return "No checkpoint is on disk." if cost_inputs.held.disk_s is None else None

    def recovery_action(self, cost_inputs: CostInputs) -> RecoveryAction:
        """All start again and read: each worker its own part, all at the same time."""
        down = cost_inputs.down_s(cost_inputs.reload_s)
        return RecoveryAction(downtime_s=down, repeated_s=cost_inputs.held.disk_s or 0.0)
