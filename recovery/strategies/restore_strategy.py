"""The contract of a strategy, and what all of them share: the choice of the epoch, and the price.

Feasibility first, with a sentence for operators; then the cost: seconds by phase (they add up to the total), committed
steps that must be repeated, and the objective, seconds + steps lost x step time.

The epoch is the newest that *every* rank can provide: a survivor from its own tensors or its own verified slot, a
failed rank from the strategy's source or, where its node lives, its own slot. At least one failed rank uses the
strategy's own source, so that no two strategies are the same plan under two names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import cast

from mainstay.recovery.cost_inputs import CostInputs
from mainstay.recovery.planner_input import FailureCase
from mainstay.recovery.recovery_plan import (
    Alternative,
    RankRestore,
    RecoveryStrategyName,
    RestoreSource,
    RestoreStrategyName,
)
from mainstay.recovery.strategies.recovery_strategy import RecoveryStrategy, nothing_lost, placeless
from mainstay.recovery.strategies.restore_options import AllRankOptions, Offers, RestoreOption, local_offers

_LISTED = 4  # epochs named in a sentence: enough to see that two ranks do not meet


class RestoreStrategy(RecoveryStrategy):
    """A strategy that restores memory. Pure: the same case gives the same alternative."""

    name: RestoreStrategyName

    def __init_subclass__(cls) -> None:
        cls.way, cls.executed_as = RecoveryStrategyName(cls.name.value), cls.name

    def infeasible_reason(self, cost_inputs: CostInputs) -> str | None:
        """See ``RecoveryStrategy``: something is lost, its source holds it, and there is a place for it."""
        return nothing_lost(cost_inputs) or self.lacking(cost_inputs) or placeless(cost_inputs)

    def lacking(self, cost_inputs: CostInputs) -> str | None:
        """Why the source does not hold what is lost, in one sentence; None if it does."""
        raise NotImplementedError

    def price(self, case: FailureCase) -> Alternative:
        """The alternative: feasible with a price and a restore for every rank, or infeasible with the reason."""
        found = _placement_problem(case) or self.restore(case)
        return Alternative(strategy=self.name, feasible=False, reason=found) if isinstance(found, str) else found

    def restore(self, case: FailureCase) -> Alternative | str:
        """The priced alternative where all ranks have a place, or the sentence why there is none."""
        raise NotImplementedError

    def missing(self, case: FailureCase, rank: int) -> str:
        """Why a failed rank has nothing."""
        raise NotImplementedError

    def restore_from(
        self, case: FailureCase, own: Mapping[int, dict[int, RestoreOption]], reason: Callable[[int], str]
    ) -> Alternative | str:
        """Restore each failed rank from ``own`` or its own slot, at the newest epoch that all can have.

        Args:
            case: the failure.
            own: failed rank -> epoch -> what the strategy's source has.
            reason: why the strategy works at an epoch.
        """
        mine = {rank: local_offers(case, rank) | own[rank] for rank in case.failed}
        bare = next((rank for rank in case.failed if not mine[rank]), None)
        if bare is not None or (case.failed and not any(own.values())):
            return self.missing(case, case.failed[0] if bare is None else bare)
        return self.restore_together(AllRankOptions(case, mine), own, reason)

    def restore_together(
        self, offers: AllRankOptions, own: Mapping[int, Offers], reason: Callable[[int], str]
    ) -> Alternative | str:
        """Restore at the newest epoch that all can have, if there is one."""
        epoch, why_not = _choose(offers, own)
        return why_not if epoch is None else _evaluate(self.name, reason(epoch), epoch, offers)


def _placement_problem(case: FailureCase) -> str | None:
    """Why no strategy can work, or None."""
    if case.unplaced is None:
        return None
    node = case.situation.ranks[case.unplaced].node
    why = "is lost" if node in case.lost else "takes no rank"
    return f"Node {node} {why} and no other node has a free standby or room for rank {case.unplaced}."


def _choose(offers: AllRankOptions, own: Mapping[int, Offers]) -> tuple[int | None, str]:
    """The newest epoch that every rank offers and at least one has from the strategy's own source; else the reason."""
    common = offers.common()
    if not common:
        return None, _disagreement(offers)
    if own:
        common &= {epoch for rank in own for epoch in own[rank] if offers[rank].get(epoch) == own[rank][epoch]}
    if not common:
        return None, "The steps that this source has are not held by all ranks."
    return max(common), ""


def _disagreement(offers: AllRankOptions) -> str:
    """Name the first rank, in order, that has none of the epochs that all before it share."""
    common: set[int] | None = None
    rank, held = 0, cast("Offers", {})
    for rank in offers.ranks():
        held = offers[rank]
        common = set(held) if common is None else common & held.keys()
        if not common:
            break
    if not held:
        return f"Rank {rank} has no whole state in memory and no verified snapshot on its node."
    before = ((r, offers[r]) for r in offers.ranks() if r < rank)
    other = next(((r, has) for r, has in before if not has.keys() & held.keys()), None)
    if other is None:
        return f"No step is held by all of ranks 0 to {rank}."
    return f"No step is held by all ranks: rank {other[0]} has {_steps(other[1])}, rank {rank} {_steps(held)}."


def _steps(offers: Offers) -> str:
    newest = sorted(offers, reverse=True)[:_LISTED]
    return "step " + " and ".join(map(str, newest)) if newest else "none"


def _evaluate(name: RestoreStrategyName, reason: str, epoch: int, offers: AllRankOptions) -> Alternative:
    """Price the chosen epoch."""
    case = offers.case
    everyone = offers.survivors.together(epoch).restores.copy()
    for rank, own in offers.failed.items():
        everyone[rank] = own[epoch].restore(rank, case.node[rank])
    restores = tuple(filter(None, everyone)) if case.situation.away else tuple(cast("list[RankRestore]", everyone))
    parts = _seconds(offers, epoch, restores)
    seconds, lost = sum(parts.values()), max(0, case.newest - epoch)
    return Alternative(
        strategy=name,
        feasible=True,
        reason=reason,
        epoch=epoch,
        seconds=seconds,
        steps_lost=lost,
        cost_seconds=seconds + lost * case.situation.step_seconds,
        parts=parts,
        restores=restores,
    )


def _seconds(offers: AllRankOptions, epoch: int, restores: tuple[RankRestore, ...]) -> dict[str, float]:
    """Seconds by phase, one after the other. Within a phase nodes work at the same time: the busiest one counts."""
    case = offers.case
    costs, work = case.situation.costs, _work(offers, epoch, restores)
    spawn_s = costs.spawn_warm_s if case.warm.issuperset(case.failed) else costs.spawn_cold_s
    parts = {"fence": costs.fence_s, "spawn": spawn_s} if case.failed else {}
    parts |= {
        "fetch": max(_most(work.received), _most(work.sent)) / costs.net_Bps + _most(work.handed) / costs.copy_Bps,
        "decode": _most(work.decoded) / costs.xor_Bps,
        "read": _most(work.read) / costs.disk_Bps,
        "load": _most(work.loaded) / costs.copy_Bps,
    }
    return {phase: s for phase, s in parts.items() if s > 0.0} | {"regroup": costs.regroup_s}


def _work(offers: AllRankOptions, epoch: int, restores: tuple[RankRestore, ...]) -> _Work:
    """What the surviving ranks do together, and each failed one."""
    case, together = offers.case, offers.survivors.together(epoch)
    work = _Work()
    work.loaded, work.read = together.loaded.copy(), together.read.copy()
    for rank, own in offers.failed.items():
        work.add_restore(own[epoch].restore(rank, case.node[rank]), case.situation.state_bytes[rank])
    if case.situation.sharded:
        nodes = {restore.rank: restore.node for restore in restores}
        for restore in restores:
            for peer in () if restore.source is RestoreSource.LIVE else case.peers(restore.rank):
                if peer != restore.rank and peer in nodes:
                    work.gather(nodes[peer], restore.node, case.situation.state_bytes[peer])
    return work


def _most(counter: Counter[str]) -> float:
    return max(counter.values(), default=0)


class _Work:
    """Bytes that each node receives, sends, hands over within itself, decodes, reads and loads."""

    def __init__(self) -> None:
        self.received, self.sent, self.handed = Counter[str](), Counter[str](), Counter[str]()
        self.decoded, self.read, self.loaded = Counter[str](), Counter[str](), Counter[str]()

    def add_restore(self, restore: RankRestore, nbytes: int) -> None:
        if restore.source is not RestoreSource.LIVE:
            self.loaded[restore.node] += nbytes
        if restore.source is RestoreSource.DISK:
            self.read[restore.node] += nbytes
        elif restore.source is RestoreSource.PEER_COPY:
            self._copy(restore.from_nodes[0], restore.node, nbytes)
        elif restore.source is RestoreSource.PARITY:
            self._rebuild(restore, nbytes)

    def gather(self, source: str, target: str, nbytes: int) -> None:
        """The part of the state that a replica on ``source`` has saved."""
        self.loaded[target] += nbytes
        self._copy(source, target, nbytes)

    def _copy(self, source: str, target: str, nbytes: int) -> None:
        if source == target:
            self.handed[source] += nbytes
        else:
            self.sent[source] += nbytes
            self.received[target] += nbytes

    def _rebuild(self, restore: RankRestore, nbytes: int) -> None:
        """Each of m - 1 survivors gathers the others' data of one stripe, decodes it and sends it on.

        A stripe is nbytes / (m - 1); a survivor gathers m - 2 of them, XORs m - 1, and sends out m - 1: one for the
        newcomer (unless it is at home there), and its data for the other decoders.
        """
        survivors = len(restore.from_nodes)
        stripe = -(-nbytes // survivors)
        for node in restore.from_nodes:
            away = int(node != restore.node)
            self.received[node] += (survivors - 1) * stripe
            self.received[restore.node] += away * stripe
            self.sent[node] += (survivors - 1 + away) * stripe
            self.decoded[node] += survivors * stripe
