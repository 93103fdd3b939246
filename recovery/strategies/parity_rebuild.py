"""A rank whose node is gone is decoded from the parity and the snapshots of its group's other nodes.

As many losses a group as it has rows of parity (XOR one, Reed-Solomon more): all other members must live and hold both
their own slot of the epoch and their parity rows.
"""

from __future__ import annotations

from mainstay.recovery.cost_inputs import CostInputs
from mainstay.recovery.cost_model.failure_cost import RecoveryAction
from mainstay.recovery.planner_input import FailureCase, HeldParity
from mainstay.recovery.recovery_plan import Alternative, RestoreSource, RestoreStrategyName
from mainstay.recovery.strategies.restore_options import RestoreOption
from mainstay.recovery.strategies.restore_strategy import RestoreStrategy


class ParityRebuild(RestoreStrategy):
    """Restore from an erasure code over nodes (REFT's RAIM5; cost as in Chen et al., ICCD 2023)."""

    name = RestoreStrategyName.PARITY_REBUILD

    def restore(self, case: FailureCase) -> Alternative | str:
        """Infeasible without parity, or where a group lost more than it tolerates."""
        if not case.failed:
            return "No rank is gone, so there is nothing to rebuild."
        if not case.has_parity:
            return "No parity is kept on any living node."
        own = {rank: self._offers(case, rank) for rank in case.failed}
        return self.restore_from(case, own, "Parity of step {} is complete on the other nodes of the group.".format)

    def _offers(self, case: FailureCase, rank: int) -> dict[int, RestoreOption]:
        offers: dict[int, RestoreOption] = {}
        for ranks, rows in case.rows(rank).items():
            if len(ranks) > 1:
                for epoch, held in rows.items():
                    helpers = self._helpers(case, rank, ranks, epoch, held)
                    if helpers is not None and epoch not in offers:
                        offers[epoch] = RestoreOption(RestoreSource.PARITY, from_nodes=helpers)
        return offers

    def _helpers(
        self, case: FailureCase, rank: int, ranks: tuple[int, ...], epoch: int, held: list[HeldParity]
    ) -> tuple[str, ...] | None:
        """The nodes of as many members, each with slot and rows, as a decode reads from; None if too few are left.

        What other members have may be of use too, but is not counted on.
        """
        nodes: list[str] = []
        for place, other in enumerate(ranks):
            if other != rank:
                slots = {slot.node for slot in case.slots[other] if slot.epoch == epoch}
                both = sorted(r.node for r in held if r.node in slots and _is_of(r, place, nodes))
                nodes.extend(both[:1])
        needed = max(1, len(ranks) - held[0].parity)
        return tuple(nodes[:needed]) if len(nodes) >= needed else None

    def missing(self, case: FailureCase, rank: int) -> str:
        rows = case.rows(rank)
        if not rows:
            return f"Rank {rank} belongs to no parity group with a row on a living node."
        group, held = next(iter(rows.items()))
        absent = [r for r in group if r != rank and not case.slots[r]]
        covered = next(iter(held.values()))[0].parity
        if len(absent) >= covered:
            return (
                f"The parity group of rank {rank} also misses the snapshots of rank {' and '.join(map(str, absent))}: "
                f"it covers {'one loss' if covered == 1 else f'{covered} losses'}."
            )
        return f"No step has the parity rows and snapshots of enough members of rank {rank}'s group."

    def lacking(self, cost_inputs: CostInputs) -> str | None:
        """Losses are taken to be of one group, which is the worst."""
        if cost_inputs.held.parity_s is None:
            return "No parity is kept."
        if cost_inputs.gone > cost_inputs.held.parity_losses:
            return f"{cost_inputs.gone} workers are lost, and a group bears {cost_inputs.held.parity_losses}."
        return None

    def recovery_action(self, cost_inputs: CostInputs) -> RecoveryAction:
        """A new process; what the others hold comes over the network and is decoded."""
        decode_s = cost_inputs.state_bytes / cost_inputs.costs.xor_Bps
        down = cost_inputs.down_s(cost_inputs.spawn_s + cost_inputs.move_s + decode_s)
        return RecoveryAction(downtime_s=down, repeated_s=cost_inputs.held.parity_s or 0.0)


def _is_of(row: HeldParity, place: int, taken: list[str]) -> bool:
    """Whether rows are those of a member; where they do not say whose, a node's count once."""
    return row.place == place or (row.place < 0 and row.node not in taken)
