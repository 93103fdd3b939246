"""A warm standby takes the place of each worker that is lost, slow or about to go, with state from a live peer."""

from __future__ import annotations

from recovery.outlook import GONE, Outlook
from recovery.plan import StrategyName, WayName
from recovery.pricing.event import Action
from recovery.strategies.way import unheld


class StandbySwap:
    """TrainMover, ByteRobust, FlashRecovery. Here: a peer copy to a standby, or a migration where the worker lives."""

    way = WayName.STANDBY_SWAP
    systems = "TrainMover, ByteRobust, FlashRecovery"
    executed_as = StrategyName.PEER_COPY

    def mask(self, outlook: Outlook) -> str | None:
        """Each needs a standby; the state of what is gone, a peer."""
        if outlook.pool.standbys < outlook.gone:
            return f"{outlook.gone} workers are to be swapped, and {outlook.pool.standbys} standbys are warm."
        return unheld(outlook) if outlook.fault in GONE else None

    def action(self, outlook: Outlook) -> Action:
        """Planned swaps wait for the end of a step, and nothing is repeated."""
        more = outlook.costs.spawn_warm_s + outlook.move_s
        if outlook.fault in GONE:
            return Action(downtime_s=outlook.down_s(more), repeated_s=outlook.step_s / 2.0)
        costs = outlook.costs
        return Action(downtime_s=costs.regroup_s + outlook.warm_up_s + more, repeated_s=0.0)
