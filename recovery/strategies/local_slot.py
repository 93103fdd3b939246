"""Every rank goes back to its own memory: failed processes to their slots, which outlive them in their node's agent."""

from __future__ import annotations

from recovery.plan import Alternative, StrategyName
from recovery.situation import Case
from recovery.strategies.base import choose, feasible, homeless, infeasible, local_offers, survivor_offers


class LocalSlot:
    """Restore from the node's own snapshot (in-memory snapshot processes: REFT; local tier of GEMINI and TRANSOM)."""

    name = StrategyName.LOCAL_SLOT

    def price(self, case: Case) -> Alternative:
        """See ``Strategy``; infeasible as soon as a node is lost, whose memory is gone."""
        if why := homeless(case):
            return infeasible(self.name, why)
        own = {rank: local_offers(case, rank) for rank in case.failed}
        bare = next((rank for rank, offers in own.items() if not offers), None)
        if bare is not None:
            return infeasible(self.name, self._missing(case, bare))
        offers = own | {rank: survivor_offers(case, rank) for rank in case.survivors}
        epoch, why_not = choose(offers, own)
        if epoch is None:
            return infeasible(self.name, why_not)
        return feasible(self.name, self._reason(case, epoch), case, epoch, offers)

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
