"""A failed rank copies the snapshot of a data-parallel peer, which holds the same state, from the peer's agent.

The peer's process need not live, only its node. A second copy of the rank's own slot on another node serves as well.
"""

from __future__ import annotations

from recovery.outlook import Outlook
from recovery.plan import Alternative, RestoreSource, StrategyName, WayName
from recovery.pricing.event import Action
from recovery.situation import Case
from recovery.strategies.base import choose, feasible, homeless, infeasible
from recovery.strategies.offers import Everyone, Offer, local_offers
from recovery.strategies.way import nothing_lost, placeless, unheld


class PeerCopy:
    """Restore from a replica (FlashRecovery, TrainMover, torchft's healing; GEMINI's peer tier)."""

    name = StrategyName.PEER_COPY
    way = WayName.PEER_COPY
    systems = "GEMINI, FlashRecovery, torchft's healing"
    executed_as = StrategyName.PEER_COPY

    def price(self, case: Case) -> Alternative:
        """See ``Strategy``; infeasible where nobody else holds the same state."""
        if why := homeless(case):
            return infeasible(self.name, why)
        if not case.failed:
            return infeasible(self.name, "No rank is gone, so there is nothing to copy.")
        own = {rank: self._offers(case, rank) for rank in case.failed}
        mine = {rank: local_offers(case, rank) | own[rank] for rank in case.failed}
        bare = next((rank for rank in case.failed if not mine[rank]), None)
        if bare is not None or not any(own.values()):
            return infeasible(self.name, self._missing(case, case.failed[0] if bare is None else bare))
        offers = Everyone(case, mine)
        epoch, why_not = choose(offers, own)
        if epoch is None:
            return infeasible(self.name, why_not)
        return feasible(self.name, self._reason(case, epoch, own), epoch, offers)

    def _offers(self, case: Case, rank: int) -> dict[int, Offer]:
        """Per epoch the best source: on the same node, else the peer with the lowest number on the first node."""
        here, best = case.node[rank], dict[int, tuple[bool, int, str]]()
        for peer in case.peers(rank) if case.situation.replicated else [rank]:
            for epoch, nodes in case.slots(peer).items():
                for node in nodes:
                    if peer != rank or node != here:
                        best[epoch] = min(best.get(epoch, (True, peer, node)), (node != here, peer, node))
        return {
            epoch: Offer(RestoreSource.PEER_COPY, from_rank=peer, from_nodes=(node,))
            for epoch, (_, peer, node) in best.items()
        }

    def _missing(self, case: Case, rank: int) -> str:
        if len(case.peers(rank)) == 1:
            return f"No other node holds the state of rank {rank}: no data-parallel peer, no copy of its own."
        if not case.situation.replicated:
            return f"This job shards its state among data-parallel peers: what rank {rank} held, no other node holds."
        return f"No living node holds a verified snapshot of a data-parallel peer of rank {rank}."

    def _reason(self, case: Case, epoch: int, own: dict[int, dict[int, Offer]]) -> str:
        copies = [
            f"rank {rank} from {_whose(rank, own[rank][epoch])} on {own[rank][epoch].from_nodes[0]}"
            for rank in case.failed
            if epoch in own[rank]
        ]
        shown = ", ".join(copies[:4]) + (f" and {len(copies) - 4} more" if len(copies) > 4 else "")
        return f"A replica of step {epoch} is in memory elsewhere: {shown}."

    def mask(self, outlook: Outlook) -> str | None:
        """See ``Way``; somebody else must hold a snapshot of the same state."""
        if why := nothing_lost(outlook):
            return why
        if outlook.held.peer_s is None:
            return "No other node holds a snapshot of the state that is lost."
        return unheld(outlook) or placeless(outlook)

    def action(self, outlook: Outlook) -> Action:
        """A new process, and a copy over the network."""
        down = outlook.down_s(outlook.spawn_s + outlook.move_s)
        return Action(downtime_s=down, repeated_s=outlook.held.peer_s or 0.0)


def _whose(rank: int, offer: Offer) -> str:
    return "its own copy" if offer.from_rank == rank else f"rank {offer.from_rank}"
