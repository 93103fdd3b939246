"""Every rank goes back to its own memory: failed processes to their slots, which outlive them in their node's agent."""

from __future__ import annotations

from recovery.outlook import Fault, Outlook
from recovery.plan import Alternative, StrategyName, WayName
from recovery.pricing.event import Action
from recovery.situation import Case
from recovery.strategies.base import choose, feasible, homeless, infeasible
from recovery.strategies.offers import Everyone, local_offers
from recovery.strategies.way import nothing_lost


class LocalSlot:
    """Restore from the node's own snapshot (in-memory snapshot processes: REFT; local tier of GEMINI and TRANSOM)."""

    name = StrategyName.LOCAL_SLOT
    way = WayName.LOCAL_SLOT
    systems = "REFT, GEMINI, TRANSOM"
    executed_as = StrategyName.LOCAL_SLOT

    def price(self, case: Case) -> Alternative:
        """See ``Strategy``; infeasible as soon as a node is lost, whose memory is gone."""
        if why := homeless(case):
            return infeasible(self.name, why)
        own = {rank: local_offers(case, rank) for rank in case.failed}
        bare = next((rank for rank, offers in own.items() if not offers), None)
        if bare is not None:
            return infeasible(self.name, self._missing(case, bare))
        offers = Everyone(case, own)
        epoch, why_not = choose(offers, own)
        if epoch is None:
            return infeasible(self.name, why_not)
        return feasible(self.name, self._reason(case, epoch), epoch, offers)

    def _missing(self, case: Case, rank: int) -> str:
        node = case.situation.ranks[rank].node
        if node in case.lost:
            return f"Node {node} is lost, and with it the snapshots of rank {rank} in its memory."
        return f"Node {node} holds no verified snapshot of rank {rank}."

    def _reason(self, case: Case, epoch: int) -> str:
        if not case.failed:
            return f"No rank is gone: all ranks meet at step {epoch} from their own memory."
        who = ", ".join(map(str, case.failed))
        return f"The snapshot of step {epoch} that failed rank {who} left in its node's memory is whole."

    def mask(self, outlook: Outlook) -> str | None:
        """See ``Way``; the memory of a lost node is gone with it."""
        if why := nothing_lost(outlook):
            return why
        if outlook.fault is Fault.NODE:
            return "Nodes are lost, and with them the snapshots in their memory."
        return None if outlook.held.local_s is not None else "No snapshot is in the memory of the node."

    def action(self, outlook: Outlook) -> Action:
        """A new process, and a copy within its node."""
        down = outlook.down_s(outlook.spawn_s + outlook.load_s)
        return Action(downtime_s=down, repeated_s=outlook.held.local_s or 0.0)
