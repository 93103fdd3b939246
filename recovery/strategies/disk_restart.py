"""Everybody goes back to a checkpoint on disk: slowest, oldest, and the one that survives the loss of all memory.

A rank that still holds the checkpoint's step in memory uses that instead of the disk.
"""

from __future__ import annotations

from recovery.outlook import Outlook
from recovery.plan import Alternative, StrategyName, WayName
from recovery.pricing.event import Action
from recovery.situation import Case
from recovery.strategies.base import choose, feasible, homeless, infeasible
from recovery.strategies.offers import Everyone, disk_offers
from recovery.strategies.way import nothing_lost, placeless


class DiskRestart:
    """Restart from a persistent checkpoint (the baseline of every paper; Varuna's morphing)."""

    name = StrategyName.DISK_RESTART
    way = WayName.DISK_RESTART
    systems = "the baseline of every paper"
    executed_as = StrategyName.DISK_RESTART

    def price(self, case: Case) -> Alternative:
        """See ``Strategy``; infeasible where some rank has no checkpoint that its node can read."""
        if why := homeless(case):
            return infeasible(self.name, why)
        own = {rank: disk_offers(case, rank) for rank in case.failed or case.survivors}
        bare = next((rank for rank in case.failed if not own[rank]), None)
        if bare is not None:
            return infeasible(self.name, f"No checkpoint of rank {bare} is on a disk that {case.node[bare]} can read.")
        offers = Everyone(case, own if case.failed else {}, disk=True)
        epoch, why_not = choose(offers, own)
        if epoch is None:
            return infeasible(self.name, why_not)
        return feasible(self.name, f"A checkpoint of step {epoch} is on disk for every rank.", epoch, offers)

    def mask(self, outlook: Outlook) -> str | None:
        """See ``Way``."""
        if why := nothing_lost(outlook):
            return why
        return "No checkpoint is on disk." if outlook.held.disk_s is None else placeless(outlook)

    def action(self, outlook: Outlook) -> Action:
        """All start anew and read: each worker its own part, all at the same time."""
        down = outlook.down_s(outlook.restart_s + outlook.costs.spawn_cold_s + outlook.read_s)
        return Action(downtime_s=down, repeated_s=outlook.held.disk_s or 0.0)
