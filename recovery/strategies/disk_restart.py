"""Everybody goes back to a checkpoint on disk: slowest, oldest, and the one that survives the loss of all memory.

A rank that still holds the checkpoint's step in memory uses that instead of the disk.
"""

from __future__ import annotations

from recovery.outlook import Outlook
from recovery.plan import Alternative, RestoreSource, StrategyName, WayName
from recovery.pricing.event import Action
from recovery.situation import Case
from recovery.strategies.base import Offer, choose, feasible, homeless, infeasible, survivor_offers
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
        own = {rank: self._offers(case, rank) for rank in sorted({*case.failed, *case.survivors})}
        bare = next((rank for rank in case.failed if not own[rank]), None)
        if bare is not None:
            return infeasible(self.name, f"No checkpoint of rank {bare} is on a disk that {case.node[bare]} can read.")
        offers = own | {rank: own[rank] | survivor_offers(case, rank) for rank in case.survivors}
        epoch, why_not = choose(offers, own)
        if epoch is None:
            return infeasible(self.name, why_not)
        return feasible(self.name, f"A checkpoint of step {epoch} is on disk for every rank.", case, epoch, offers)

    def _offers(self, case: Case, rank: int) -> dict[int, Offer]:
        return {
            epoch: Offer(RestoreSource.DISK, from_nodes=() if node is None else (node,))
            for epoch, node in sorted(case.disk.get(rank, []), key=lambda held: held[1] is None)
            if node in (None, case.node[rank])
        }

    def mask(self, outlook: Outlook) -> str | None:
        """See ``Way``."""
        if why := nothing_lost(outlook):
            return why
        return "No checkpoint is on disk." if outlook.held.disk_s is None else placeless(outlook)

    def action(self, outlook: Outlook) -> Action:
        """All start anew and read: each worker its own part, all at the same time."""
        down = outlook.down_s(outlook.restart_s + outlook.costs.spawn_cold_s + outlook.read_s)
        return Action(downtime_s=down, repeated_s=outlook.held.disk_s or 0.0)
