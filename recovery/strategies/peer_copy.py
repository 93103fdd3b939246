"""A failed rank copies the snapshot of a data-parallel peer, which holds the same state, from the peer's agent.

The peer's process need not live, only its node. A second copy of the rank's own slot on another node serves as well.
"""

from __future__ import annotations

from mainstay.recovery.cost_inputs import CostInputs
from mainstay.recovery.cost_model.failure_cost import RecoveryAction
from mainstay.recovery.planner_input import FailureCase
from mainstay.recovery.recovery_plan import Alternative, RestoreSource, RestoreStrategyName
from mainstay.recovery.strategies.recovery_strategy import unheld
from mainstay.recovery.strategies.restore_options import RestoreOption
from mainstay.recovery.strategies.restore_strategy import RestoreStrategy


class PeerCopy(RestoreStrategy):
    """Restore from a replica (FlashRecovery, TrainMover, torchft's recovery; GEMINI's peer tier)."""

    name = RestoreStrategyName.PEER_COPY

    def restore(self, case: FailureCase) -> Alternative | str:
        """Infeasible where no other rank holds the same state."""
        if not case.failed:
            return "No rank is gone, so there is nothing to copy."
        own = {rank: self._offers(case, rank) for rank in case.failed}
        return self.restore_from(case, own, lambda epoch: self._reason(case, epoch, own))

    def _offers(self, case: FailureCase, rank: int) -> dict[int, RestoreOption]:
        """Per epoch the best source: on the same node, else the peer with the lowest number on the first node."""
        here, offers = case.node[rank], dict[int, RestoreOption]()
        for epoch, copies in case.copies(rank).items():
            near = next((peer for peer in copies.get(here, ()) if peer != rank), None)
            node = here if near is not None else next((node for node in copies if node != here), None)
            if node is not None:
                peer = copies[node][0] if near is None else near
                offers[epoch] = RestoreOption(RestoreSource.PEER_COPY, from_rank=peer, from_nodes=(node,))
        return offers

    def missing(self, case: FailureCase, rank: int) -> str:
        if len(case.peers(rank)) == 1:
            return f"No other node holds the state of rank {rank}: no data-parallel peer, no copy of its own."
        if not case.situation.replicated:
            return f"This job shards its state among data-parallel peers: what rank {rank} held, no other node holds."
        return f"No living node holds a verified snapshot of a data-parallel peer of rank {rank}."

    def _reason(self, case: FailureCase, epoch: int, own: dict[int, dict[int, RestoreOption]]) -> str:
        copies = [
            f"rank {rank} from {_whose(rank, own[rank][epoch])} on {own[rank][epoch].from_nodes[0]}"
            for rank in case.failed
            if epoch in own[rank]
        ]
        shown = ", ".join(copies[:4]) + (f" and {len(copies) - 4} more" if len(copies) > 4 else "")
        return f"A replica of step {epoch} is in memory on another node: {shown}."

    def lacking(self, cost_inputs: CostInputs) -> str | None:
        """Another rank must hold a snapshot of the same state."""
        if cost_inputs.held.peer_s is None:
            return "No other node holds a snapshot of the state that is lost."
        return unheld(cost_inputs)

    def recovery_action(self, cost_inputs: CostInputs) -> RecoveryAction:
        """A new process, and a copy over the network."""
        down = cost_inputs.down_s(cost_inputs.spawn_s + cost_inputs.move_s)
        return RecoveryAction(downtime_s=down, repeated_s=cost_inputs.held.peer_s or 0.0)


def _whose(rank: int, offer: RestoreOption) -> str:
    return "its own copy" if offer.from_rank == rank else f"rank {offer.from_rank}"
