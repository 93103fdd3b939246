"""A rank whose node is gone is decoded from the parity and the snapshots of its group's other nodes.

As many losses a group as it has rows of parity (XOR one, Reed-Solomon more): all other members must live and hold both
their own slot of the epoch and their parity rows.
"""

from __future__ import annotations

from recovery.outlook import Outlook
from recovery.plan import Alternative, RestoreSource, StrategyName, WayName
from recovery.pricing.event import Action
from recovery.situation import Case, ParityHold
from recovery.strategies.base import choose, feasible, homeless, infeasible
from recovery.strategies.offers import Everyone, Offer, local_offers
from recovery.strategies.way import nothing_lost, placeless


class ParityRebuild:
    """Restore from an erasure code over nodes (REFT's RAIM5; cost as in Chen et al., ICCD 2023)."""

    name = StrategyName.PARITY_REBUILD
    way = WayName.PARITY_REBUILD
    systems = "REFT, Chen et al."
    executed_as = StrategyName.PARITY_REBUILD

    def price(self, case: Case) -> Alternative:
        """See ``Strategy``; infeasible without parity, or where a group lost more than it tolerates."""
        if why := homeless(case):
            return infeasible(self.name, why)
        if not case.failed:
            return infeasible(self.name, "No rank is gone, so there is nothing to rebuild.")
        if not case.has_parity:
            return infeasible(self.name, "No parity is kept on any living node.")
        own = {rank: self._offers(case, rank) for rank in case.failed}
        mine = {rank: local_offers(case, rank) | own[rank] for rank in case.failed}
        bare = next((rank for rank in case.failed if not mine[rank]), None)
        if bare is not None or not any(own.values()):
            return infeasible(self.name, self._missing(case, case.failed[0] if bare is None else bare))
        offers = Everyone(case, mine)
        epoch, why_not = choose(offers, own)
        if epoch is None:
            return infeasible(self.name, why_not)
        reason = f"Parity of step {epoch} is complete on the other nodes of the group."
        return feasible(self.name, reason, epoch, offers)

    def _offers(self, case: Case, rank: int) -> dict[int, Offer]:
        offers: dict[int, Offer] = {}
        for ranks, rows in case.rows(rank).items():
            if len(ranks) > 1:
                for epoch, held in rows.items():
                    helpers = self._helpers(case, rank, ranks, epoch, held)
                    if helpers is not None and epoch not in offers:
                        offers[epoch] = Offer(RestoreSource.PARITY, from_nodes=helpers)
        return offers

    def _helpers(
        self, case: Case, rank: int, ranks: tuple[int, ...], epoch: int, held: list[ParityHold]
    ) -> tuple[str, ...] | None:
        """The nodes of as many members, each with slot and rows, as a decode reads from; None if too few are left.

        What other members have may be of use too, but is not counted on.
        """
        nodes: list[str] = []
        for place, other in enumerate(ranks):
            if other != rank:
                slots = case.slots(other).get(epoch, ())
                both = sorted(r.node for r in held if r.node in slots and _is_of(r, place, nodes))
                nodes.extend(both[:1])
        needed = max(1, len(ranks) - held[0].parity)
        return tuple(nodes[:needed]) if len(nodes) >= needed else None

    def _missing(self, case: Case, rank: int) -> str:
        rows = case.rows(rank)
        if not rows:
            return f"Rank {rank} belongs to no parity group with a row on a living node."
        group, held = next(iter(rows.items()))
        absent = [r for r in group if r != rank and not case.slots(r)]
        covered = next(iter(held.values()))[0].parity
        if len(absent) >= covered:
            return (
                f"The parity group of rank {rank} also misses the snapshots of rank {' and '.join(map(str, absent))}: "
                f"it covers {'one loss' if covered == 1 else f'{covered} losses'}."
            )
        return f"No step has the parity rows and snapshots of enough members of rank {rank}'s group."

    def mask(self, outlook: Outlook) -> str | None:
        """See ``Way``; losses are taken to be of one group, which is the worst."""
        if why := nothing_lost(outlook):
            return why
        if outlook.held.parity_s is None:
            return "No parity is kept."
        if outlook.gone > outlook.held.parity_losses:
            return f"{outlook.gone} workers are lost, and a group bears {outlook.held.parity_losses}."
        return placeless(outlook)

    def action(self, outlook: Outlook) -> Action:
        """A new process; what the others hold comes over the network and is decoded."""
        decode_s = outlook.state_bytes / outlook.costs.xor_Bps
        down = outlook.down_s(outlook.spawn_s + outlook.move_s + decode_s)
        return Action(downtime_s=down, repeated_s=outlook.held.parity_s or 0.0)


def _is_of(row: ParityHold, place: int, taken: list[str]) -> bool:
    """Whether rows are those of a member; where they do not say whose, a node's count once."""
    return row.place == place or (row.place < 0 and row.node not in taken)
