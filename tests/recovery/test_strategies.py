"""Every strategy, held to the rules of ``restore_strategy.py`` in situations that hypothesis makes up."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstay.recovery.planner import plan_recovery
from mainstay.recovery.planner_input import (
    FailureCase,
    HeldCheckpoint,
    HeldParity,
    HeldSlot,
    MachineCosts,
    PlannerInput,
    RankPlacement,
)
from mainstay.recovery.recovery_plan import Alternative, RestoreSource, RestoreStrategyName
from mainstay.recovery.strategies import STRATEGIES
from mainstay.recovery.strategies.restore_strategy import RestoreStrategy

S = RestoreSource
OWN = {
    RestoreStrategyName.LOCAL_SLOT: S.LOCAL_SLOT,
    RestoreStrategyName.PEER_COPY: S.PEER_COPY,
    RestoreStrategyName.PARITY_REBUILD: S.PARITY,
    RestoreStrategyName.DISK_RESTART: S.DISK,
}
EVERY = pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name.value)
NODES = "abcd"


def make(seed: int) -> PlannerInput:
    """A situation drawn with a plain generator: a thousand times cheaper than drawing every number from hypothesis."""
    rng = random.Random(seed)
    dp, pp = rng.randint(1, 3), rng.randint(1, 2)
    size, nodes = dp * pp, NODES[: rng.randint(1, 4)]
    ranks = tuple(RankPlacement(rank=r, dp=r // pp, pp=r % pp, node=rng.choice(nodes)) for r in range(size))
    used = sorted({place.node for place in ranks})
    failed = rng.sample(range(size), rng.randint(0, min(2, size)))
    return PlannerInput(
        job="made-up",
        generation=rng.randint(0, 9),
        step=rng.randint(0, 5),
        step_seconds=rng.uniform(0.0, 10.0),
        ranks=ranks,
        state_bytes=tuple(rng.randint(0, 10**10) for _ in range(size)),
        failed_ranks=tuple(failed),
        lost_nodes=tuple(rng.sample(used, rng.randint(0, 1))),
        live={r: rng.choice((5, 5, 4)) for r in range(size) if r not in failed and rng.random() < 0.8},
        slots=tuple(slots(rng, ranks, nodes)),
        parity=tuple(parity(rng, ranks)),
        disk=tuple(disk(rng, ranks)),
        standbys={n: rng.randint(0, 2) for n in nodes if rng.random() < 0.7},
        cold={n: rng.randint(0, 2) for n in nodes if rng.random() < 0.3},
        replicated=rng.random() < 0.8,
        costs=MachineCosts(spawn_cold_s=rng.uniform(0.1, 10.0), net_Bps=10 ** rng.uniform(6, 11)),
    )


def slots(rng: random.Random, ranks: tuple[RankPlacement, ...], nodes: str) -> Iterator[HeldSlot]:
    """Most lie at home and most epochs are common, else nothing would ever be feasible; some lie anywhere."""
    for epoch in rng.sample(range(6), rng.randint(0, 3)):
        yield from (HeldSlot(node=p.node, rank=p.rank, epoch=epoch) for p in ranks if rng.random() < 0.9)
    for _ in range(rng.randint(0, 4)):
        place, verified = rng.choice(ranks), rng.random() < 0.5
        yield HeldSlot(node=rng.choice(nodes), rank=place.rank, epoch=rng.randint(0, 5), verified=verified)


def parity(rng: random.Random, ranks: tuple[RankPlacement, ...]) -> Iterator[HeldParity]:
    for _ in range(rng.randint(0, 3) if len(ranks) > 1 else 0):
        group = tuple(rng.sample(range(len(ranks)), rng.randint(2, min(3, len(ranks)))))
        for epoch in rng.sample(range(6), rng.randint(1, 3)):
            yield from (HeldParity(node=ranks[r].node, epoch=epoch, ranks=group) for r in group if rng.random() < 0.9)


def disk(rng: random.Random, ranks: tuple[RankPlacement, ...]) -> Iterator[HeldCheckpoint]:
    shared = rng.random() < 0.5
    for epoch in rng.sample(range(6), rng.randint(0, 2)):
        for p in ranks:
            if rng.random() < 0.95:
                yield HeldCheckpoint(rank=p.rank, epoch=epoch, node=None if shared else p.node)


def situations() -> st.SearchStrategy[PlannerInput]:
    return st.integers(0, 2**32 - 1).map(make)


# What the rules of the base module mean, said once more in the plainest way: by looking, epoch by epoch, rank by rank.


def has_slot(s: PlannerInput, rank: int, epoch: int, node: str) -> bool:
    return node not in s.lost_nodes and any(
        slot.verified and (slot.rank, slot.epoch, slot.node) == (rank, epoch, node) for slot in s.slots
    )


def has_peer(s: PlannerInput, rank: int, epoch: int, home: str) -> bool:
    me = s.ranks[rank]
    same = [p.rank for p in s.ranks if (p.pp, p.tp) == (me.pp, me.tp) and (s.replicated or p.rank == rank)]
    return any(has_slot(s, peer, epoch, n) for peer in same for n in NODES if (peer, n) != (rank, home))


def has_parity(s: PlannerInput, rank: int, epoch: int) -> bool:
    for ranks in {row.ranks for row in s.parity}:
        holders = {r.node for r in s.parity if r.ranks == ranks and r.epoch == epoch and r.node not in s.lost_nodes}
        others = [other for other in ranks if other != rank]
        if rank not in ranks or not others:
            continue
        free, good = set(holders), True
        for other in others:  # each member needs a node of its own with its slot and a row
            node = next((n for n in sorted(free) if has_slot(s, other, epoch, n)), None)
            good &= node is not None
            free.discard(node or "")
        if good:
            return True
    return False


def has_disk(s: PlannerInput, rank: int, epoch: int, home: str) -> bool:
    return any(
        (d.rank, d.epoch) == (rank, epoch) and (d.node is None or (d.node == home and d.node not in s.lost_nodes))
        for d in s.disk
    )


def oracle_epoch(name: RestoreStrategyName, s: PlannerInput) -> int | None:
    """The newest epoch at which the strategy can bring everybody together, by trying all."""
    case = FailureCase(s)
    if case.unplaced is not None or (
        not case.failed and name not in (RestoreStrategyName.LOCAL_SLOT, RestoreStrategyName.DISK_RESTART)
    ):
        return None
    for epoch in range(10, -1, -1):
        uses_own, everybody = False, True
        for rank in range(len(s.ranks)):
            home, gone = case.node[rank], rank in case.failed
            memory = has_slot(s, rank, epoch, home) or (not gone and s.live.get(rank) == epoch)
            own = {
                RestoreStrategyName.LOCAL_SLOT: gone and has_slot(s, rank, epoch, home),
                RestoreStrategyName.PEER_COPY: gone and has_peer(s, rank, epoch, home),
                RestoreStrategyName.PARITY_REBUILD: gone and has_parity(s, rank, epoch),
                RestoreStrategyName.DISK_RESTART: has_disk(s, rank, epoch, home) and (gone or not memory),
            }[name]
            memory &= not (gone and name is RestoreStrategyName.DISK_RESTART)
            uses_own |= own
            everybody &= own or memory
        if everybody and (uses_own or (name is RestoreStrategyName.LOCAL_SLOT and not case.failed)):
            return epoch
    return None


CHECK = settings(max_examples=400, deadline=None, derandomize=True)


@EVERY
@CHECK
@given(situation=situations())
def test_the_epoch_is_the_newest_that_is_possible(strategy: RestoreStrategy, situation: PlannerInput) -> None:
    alternative = strategy.price(FailureCase(situation))
    assert alternative.epoch == oracle_epoch(strategy.name, situation)
    assert alternative.feasible == (alternative.epoch is not None)


@EVERY
@CHECK
@given(situation=situations())
def test_infeasible_has_a_reason_and_no_price(strategy: RestoreStrategy, situation: PlannerInput) -> None:
    alternative = strategy.price(FailureCase(situation))
    assert alternative.strategy is strategy.name
    assert alternative.reason.endswith(".")
    assert "  " not in alternative.reason
    nothing = Alternative(strategy=strategy.name, feasible=False, reason=alternative.reason)
    assert alternative.feasible or alternative == nothing


@EVERY
@CHECK
@given(situation=situations())
def test_feasible_covers_every_rank_once_with_sources_that_exist(
    strategy: RestoreStrategy, situation: PlannerInput
) -> None:
    alternative, case = strategy.price(FailureCase(situation)), FailureCase(situation)
    if not alternative.feasible:
        return
    assert alternative.epoch is not None
    assert [r.rank for r in alternative.restores] == list(range(len(situation.ranks)))
    for restore in alternative.restores:
        assert restore.node not in situation.lost_nodes
        assert set(restore.from_nodes).isdisjoint(situation.lost_nodes)
        assert restore.node == situation.ranks[restore.rank].node or restore.rank in case.failed
        if restore.source is S.LIVE:
            assert restore.rank in case.survivors
            assert situation.live[restore.rank] == alternative.epoch
        elif restore.source is S.LOCAL_SLOT:
            assert has_slot(situation, restore.rank, alternative.epoch, restore.node)
        elif restore.source is S.PEER_COPY:
            assert restore.from_rank is not None
            assert has_slot(situation, restore.from_rank, alternative.epoch, restore.from_nodes[0])
            me, peer = situation.ranks[restore.rank], situation.ranks[restore.from_rank]
            assert (me.pp, me.tp) == (peer.pp, peer.tp)
        elif restore.source is S.PARITY:
            assert len(set(restore.from_nodes)) == len(restore.from_nodes) >= 1
            assert has_parity(situation, restore.rank, alternative.epoch)
        else:
            assert has_disk(situation, restore.rank, alternative.epoch, restore.node)
    used = {r.source for r in alternative.restores if r.rank in case.failed}
    assert not used or OWN[strategy.name] in used
    assert {r.source for r in alternative.restores} <= {S.LIVE, S.LOCAL_SLOT, OWN[strategy.name]}


@EVERY
@CHECK
@given(situation=situations())
def test_the_price_adds_up(strategy: RestoreStrategy, situation: PlannerInput) -> None:
    alternative, case = strategy.price(FailureCase(situation)), FailureCase(situation)
    if not alternative.feasible:
        return
    assert alternative.epoch is not None
    assert alternative.seconds is not None
    assert alternative.seconds == pytest.approx(sum(alternative.parts.values()))
    assert all(seconds > 0.0 for seconds in alternative.parts.values())
    assert alternative.steps_lost == max(0, case.newest - alternative.epoch)
    assert alternative.cost_seconds == pytest.approx(
        alternative.seconds + alternative.steps_lost * situation.step_seconds
    )
    assert ("fence" in alternative.parts) == ("spawn" in alternative.parts) == bool(case.failed)


@EVERY
@CHECK
@given(situation=situations(), more=st.integers(0, 10**10), rank=st.integers(0, 5))
def test_more_bytes_never_cost_less(strategy: RestoreStrategy, situation: PlannerInput, more: int, rank: int) -> None:
    sizes = list(situation.state_bytes)
    sizes[rank % len(sizes)] += more
    less = strategy.price(FailureCase(situation)).cost_seconds
    heavier = strategy.price(FailureCase(replace(situation, state_bytes=tuple(sizes)))).cost_seconds
    assert (less is None) == (heavier is None)
    assert less is None or heavier is None or heavier >= less


@CHECK
@given(situation=situations())
def test_the_plan_is_deterministic_sorted_and_takes_the_cheapest(situation: PlannerInput) -> None:
    made = plan_recovery(situation)
    assert plan_recovery(situation) == made
    assert {a.strategy for a in made.alternatives} == set(RestoreStrategyName)
    costs = [a.cost_seconds for a in made.alternatives if a.cost_seconds is not None]
    assert costs == sorted(costs)
    assert [a.feasible for a in made.alternatives] == sorted((a.feasible for a in made.alternatives), reverse=True)
    assert made.chosen is (made.alternatives[0].strategy if costs else None)
    order = list(reversed(situation.slots))
    assert replace(plan_recovery(replace(situation, slots=tuple(order))), id="") == replace(made, id="")


@settings(CHECK, max_examples=150)
@given(situation=situations())
def test_a_loss_told_in_other_words_gets_the_same_plan(situation: PlannerInput) -> None:
    """Ranks of lost nodes are gone, named or not, and tensors that only they held count for no rank."""
    for key in (*range(len(situation.ranks)), *sorted({place.node for place in situation.ranks})):
        gone = {place.rank for place in situation.ranks if key in (place.rank, place.node)}
        left = {rank: epoch for rank, epoch in situation.live.items() if rank not in gone}
        nodes, ranks = ((key,), ()) if isinstance(key, str) else ((), (key,))
        made = plan_recovery(replace(situation, failed_ranks=ranks, lost_nodes=nodes))
        assert made == plan_recovery(replace(situation, failed_ranks=tuple(sorted(gone)), lost_nodes=nodes, live=left))


def test_the_made_up_situations_are_worth_trying() -> None:
    """Each strategy must be feasible often enough, or the properties above would hold of nothing."""
    seen = Counter(a.strategy for seed in range(400) for a in plan_recovery(make(seed)).alternatives if a.feasible)
    assert min(seen[name] for name in RestoreStrategyName) >= 20, seen
