"""A rank whose node is gone is decoded from the XOR parity and the snapshots of its group's other nodes.

One loss a group: every other member must live and hold both its own slot of the epoch and its parity row.
"""

from __future__ import annotations

from recovery.plan import Alternative, RestoreSource, StrategyName
from recovery.situation import Case
from recovery.strategies.base import Offer, choose, feasible, homeless, infeasible, local_offers, survivor_offers


class ParityRebuild:
    """Restore from an erasure code over nodes (REFT's RAIM5; cost as in Chen et al., ICCD 2023)."""

    name = StrategyName.PARITY_REBUILD

    def price(self, case: Case) -> Alternative:
        """See ``Strategy``; infeasible without parity, or where a group lost more than one member."""
        if why := homeless(case):
            return infeasible(self.name, why)
        if not case.failed:
            return infeasible(self.name, "No rank is gone, so there is nothing to rebuild.")
        if not case.rows:
            return infeasible(self.name, "No parity is kept on any living node.")
        own = {rank: self._offers(case, rank) for rank in case.failed}
        offers = {rank: local_offers(case, rank) | own[rank] for rank in case.failed}
        bare = next((rank for rank in case.failed if not offers[rank]), None)
        if bare is not None or not any(own.values()):
            return infeasible(self.name, self._missing(case, case.failed[0] if bare is None else bare))
        offers |= {rank: survivor_offers(case, rank) for rank in case.survivors}
        epoch, why_not = choose(offers, own)
        if epoch is None:
            return infeasible(self.name, why_not)
        reason = f"Parity of step {epoch} is complete on the other nodes of the group."
        return feasible(self.name, reason, case, epoch, offers)

    def _offers(self, case: Case, rank: int) -> dict[int, Offer]:
        offers: dict[int, Offer] = {}
        for ranks, rows in case.rows.items():
            if rank in ranks and len(ranks) > 1:
                for epoch, holders in rows.items():
                    helpers = self._helpers(case, rank, ranks, epoch, holders)
                    if helpers is not None and epoch not in offers:
                        offers[epoch] = Offer(RestoreSource.PARITY, from_nodes=helpers)
        return offers

    def _helpers(
        self, case: Case, rank: int, ranks: tuple[int, ...], epoch: int, holders: set[str]
    ) -> tuple[str, ...] | None:
        """A node for each other member that holds its slot and a row, all different; None if one is missing."""
        nodes: list[str] = []
        for other in ranks:
            if other != rank:
                both = sorted(holders.intersection(case.slots.get(other, {}).get(epoch, ())).difference(nodes))
                if not both:
                    return None
                nodes.append(both[0])
        return tuple(nodes)

    def _missing(self, case: Case, rank: int) -> str:
        groups = [ranks for ranks in case.rows if rank in ranks]
        if not groups:
            return f"Rank {rank} belongs to no parity group with a row on a living node."
        absent = [r for r in groups[0] if r != rank and not case.slots.get(r)]
        if absent:
            return f"The parity group of rank {rank} also misses the snapshots of rank {absent[0]}: it covers one loss."
        return f"No step has the parity rows and snapshots of all other members of rank {rank}'s group."
