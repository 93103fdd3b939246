"""Restores of one small job, with the seconds and the sentences that a pencil gives."""

from __future__ import annotations

from typing import Any

import pytest

from mainstay.recovery.planner_input import (
    FailureCase,
    HeldCheckpoint,
    HeldParity,
    HeldSlot,
    MachineCosts,
    PlannerInput,
    RankPlacement,
)
from mainstay.recovery.recovery_plan import Alternative
from mainstay.recovery.strategies import STRATEGIES
from mainstay.recovery.strategies.restore_options import RestoreOption, disk_offers, survivor_options

COSTS = MachineCosts(fence_s=1.0, spawn_warm_s=2.0, spawn_cold_s=30.0, regroup_s=3.0, copy_Bps=100.0, net_Bps=10.0,
              xor_Bps=50.0, disk_Bps=5.0)  # fmt: skip
EVERYWHERE = tuple(HeldSlot(node="abcd"[r], rank=r, epoch=8) for r in range(4))


def rows(parity: int = 1, epoch: int = 8) -> tuple[HeldParity, ...]:
    """Of each member on its node."""
    group = (0, 1, 2, 3)
    return tuple(HeldParity(node="abcd"[r], epoch=epoch, ranks=group, place=r, parity=parity) for r in group)


def job(**over: Any) -> PlannerInput:
    """Four replicas of 100 bytes on four nodes, snapshots of step 8 of 10, 2 s a step; b is lost, e has a standby."""
    made: dict[str, Any] = {
        "job": "j", "generation": 1, "step": 10, "step_seconds": 2.0, "state_bytes": (100,) * 4, "lost_nodes": ("b",),
        "ranks": tuple(RankPlacement(rank=r, dp=r, pp=0, node="abcd"[r]) for r in range(4)),
        "slots": EVERYWHERE, "standbys": {"e": 1}, "costs": COSTS,
    }  # fmt: skip
    return PlannerInput(**(made | over))


def price(name: str, **over: Any) -> Alternative:
    return next(s for s in STRATEGIES if s.name.value == name).price(FailureCase(job(**over)))


DISK = tuple(HeldCheckpoint(rank=r, epoch=5) for r in range(4))


@pytest.mark.parametrize(
    ("name", "over", "parts", "lost"),
    [
        ("peer_copy", {}, {"fence": 1, "spawn": 2, "fetch": 10, "load": 1, "regroup": 3}, 2),
        ("peer_copy", {"standbys": {}, "cold": {"e": 1}},
         {"fence": 1, "spawn": 30, "fetch": 10, "load": 1, "regroup": 3}, 2),
        # beside the peer on its node: handed over within it, and two states to load there
        ("peer_copy", {"standbys": {"a": 1}}, {"fence": 1, "spawn": 2, "fetch": 1, "load": 2, "regroup": 3}, 2),
        # thirds of 34 bytes: the newcomer takes three, a helper sends three, and each decodes three
        ("parity_rebuild", {"parity": rows()},
         {"fence": 1, "spawn": 2, "fetch": 10.2, "decode": 2.04, "load": 1, "regroup": 3}, 2),
        # two rows of parity: halves from two of the helpers
        ("parity_rebuild", {"parity": rows(2)},
         {"fence": 1, "spawn": 2, "fetch": 10, "decode": 2, "load": 1, "regroup": 3}, 2),
        # at home beside a helper: two others send it a third each, and all three decode
        ("parity_rebuild", {"parity": rows(), "standbys": {"a": 1}},
         {"fence": 1, "spawn": 2, "fetch": 13.6, "decode": 2.04, "load": 2, "regroup": 3}, 2),
        # saved in parts: each node gets the parts of the three others
        ("local_slot", {"lost_nodes": (), "failed_ranks": (1,), "sharded": True, "replicated": False},
         {"fence": 1, "spawn": 30, "fetch": 30, "load": 4, "regroup": 3}, 2),
        ("disk_restart", {"disk": DISK}, {"fence": 1, "spawn": 2, "read": 20, "load": 1, "regroup": 3}, 5),
        ("local_slot", {"lost_nodes": (), "failed_ranks": (1,)}, {"fence": 1, "spawn": 30, "load": 1, "regroup": 3}, 2),
        ("local_slot", {"lost_nodes": (), "failed_ranks": (1,), "standbys": {"b": 1}},
         {"fence": 1, "spawn": 2, "load": 1, "regroup": 3}, 2),
        ("local_slot", {"lost_nodes": ()}, {"load": 1, "regroup": 3}, 2),
    ],
)  # fmt: skip
def test_seconds_of_each_phase(name: str, over: dict[str, Any], parts: dict[str, float], lost: int) -> None:
    found = price(name, **over)
    assert found.parts == pytest.approx(parts)
    assert found.seconds == pytest.approx(sum(parts.values()))
    assert (found.steps_lost, found.epoch) == (lost, 10 - lost)
    assert found.cost_seconds == pytest.approx(sum(parts.values()) + 2.0 * lost)


def without(*ranks: int) -> tuple[HeldSlot, ...]:
    return tuple(slot for slot in EVERYWHERE if slot.rank not in ranks)


@pytest.mark.parametrize(
    ("name", "over", "sentence"),
    [
        ("peer_copy", {}, "A replica of step 8 is in memory on another node: rank 1 from rank 0 on a."),
        ("peer_copy", {"slots": (*EVERYWHERE, HeldSlot(node="d", rank=1, epoch=8)), "replicated": False},
         "A replica of step 8 is in memory on another node: rank 1 from its own copy on d."),
        ("peer_copy", {"lost_nodes": ()}, "No rank is gone, so there is nothing to copy."),
        ("peer_copy", {"standbys": {}}, "Node b is lost and no other node has a free standby or room for rank 1."),
        ("peer_copy", {"replicated": False},
         "This job shards its state among data-parallel peers: what rank 1 held, no other node holds."),
        ("peer_copy", {"slots": without(0, 2, 3)},
         "No living node holds a verified snapshot of a data-parallel peer of rank 1."),
        ("peer_copy", {"ranks": tuple(RankPlacement(rank=r, dp=0, pp=r, node="abcd"[r]) for r in range(4))},
         "No other node holds the state of rank 1: no data-parallel peer, no copy of its own."),
        ("peer_copy", {"slots": without(3)},
         "Rank 3 has no whole state in memory and no verified snapshot on its node."),
        ("peer_copy", {"slots": without(2), "live": {2: 9}},
         "No step is held by all ranks: rank 0 has step 8, rank 2 step 9."),
        ("parity_rebuild", {"parity": rows()}, "Parity of step 8 is complete on the other nodes of the group."),
        ("parity_rebuild", {"parity": rows(), "lost_nodes": ()}, "No rank is gone, so there is nothing to rebuild."),
        ("parity_rebuild", {}, "No parity is kept on any living node."),
        ("parity_rebuild", {"parity": tuple(row for row in rows() if row.node == "b")},
         "No parity is kept on any living node."),
        ("parity_rebuild", {"parity": rows(), "slots": without(2)},
         "The parity group of rank 1 also misses the snapshots of rank 2: it covers one loss."),
        ("parity_rebuild", {"parity": rows(2), "slots": without(2, 3)},
         "The parity group of rank 1 also misses the snapshots of rank 2 and 3: it covers 2 losses."),
        ("parity_rebuild", {"parity": rows(epoch=7)},
         "No step has the parity rows and snapshots of enough members of rank 1's group."),
        ("parity_rebuild", {"parity": (HeldParity(node="c", epoch=8, ranks=(2, 3)),)},
         "Rank 1 belongs to no parity group with a row on a living node."),
        ("local_slot", {}, "Node b is lost, and with it the snapshots of rank 1 in its memory."),
        ("local_slot", {"lost_nodes": (), "failed_ranks": (1,), "slots": without(1)},
         "Node b holds no verified snapshot of rank 1."),
        ("local_slot", {"lost_nodes": (), "failed_ranks": (1, 3)},
         "The snapshot of step 8 that failed rank 1, 3 left in its node's memory is whole."),
        ("local_slot", {"lost_nodes": ()}, "No rank is gone: all ranks meet at step 8 from their own memory."),
        ("disk_restart", {"disk": DISK}, "A checkpoint of step 5 is on disk for every rank."),
        ("disk_restart", {"disk": (HeldCheckpoint(rank=1, epoch=5, node="b"),)},
         "No checkpoint of rank 1 is on a disk that e can read."),
    ],
)  # fmt: skip
def test_sentences(name: str, over: dict[str, Any], sentence: str) -> None:
    found = price(name, **over)
    assert found.reason == sentence
    assert found.feasible is (found.epoch is not None)


@pytest.mark.parametrize(("copies", "more"), [(4, ""), (5, " and 1 more"), (9, " and 5 more")])
def test_many_copies_are_counted_and_not_listed(copies: int, more: str) -> None:
    ranks = tuple(RankPlacement(rank=r, dp=r, pp=0, node="b" if r else "a") for r in range(copies + 1))
    found = price("peer_copy", ranks=ranks, state_bytes=(1,) * (copies + 1), standbys={"e": 9},
                  slots=(HeldSlot(node="a", rank=0, epoch=8),))  # fmt: skip
    assert found.reason.endswith(f": {', '.join(f'rank {r} from rank 0 on a' for r in range(1, 5))}{more}.")


def test_what_ranks_have_of_their_own() -> None:
    case = FailureCase(job(live={0: 9}, sharded=True, slots=(*EVERYWHERE, HeldSlot(node="a", rank=0, epoch=7)),
                           disk=(HeldCheckpoint(rank=0, epoch=5, node="a"), HeldCheckpoint(rank=0, epoch=5),
                                 HeldCheckpoint(rank=0, epoch=4, node="c"))))  # fmt: skip
    assert sorted(survivor_options(case).offers(0)) == [7, 8], "a part of the state is no use without its slot"
    assert sorted(survivor_options(FailureCase(job(live={0: 9}))).offers(0)) == [8, 9]
    assert sorted(survivor_options(FailureCase(job(live={0: 8}, sharded=True))).offers(0)) == [8]
    assert disk_offers(case, 0) == {5: RestoreOption("disk")}, "the copy that all can read"
