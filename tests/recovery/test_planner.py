"""What the planner chooses, why, and that it always says the same about the same situation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

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
from mainstay.recovery.recovery_plan import (
    Alternative,
    RecoveryPlan,
    RestoreSource,
    RestoreStrategyName,
    summarize_plan,
)

N = RestoreStrategyName
S = RestoreSource


def running(**over: Any) -> PlannerInput:
    """dp 2 x pp 2 on two nodes; everybody committed step 41 and holds slots 40 and 41."""
    ranks = tuple(RankPlacement(rank=r, dp=r // 2, pp=r % 2, node="ab"[r // 2]) for r in range(4))
    given_ = {
        "job": "demo",
        "generation": 3,
        "step": 41,
        "step_seconds": 1.0,
        "ranks": ranks,
        "state_bytes": (1_000_000_000,) * 4,
        "live": dict.fromkeys(range(4), 41),
        "slots": tuple(HeldSlot(node=p.node, rank=p.rank, epoch=e) for p in ranks for e in (40, 41)),
        "standbys": {"a": 2, "b": 1},
    }
    return PlannerInput(**(given_ | over))


def killed(rank: int, **over: Any) -> PlannerInput:
    live = {r: 41 for r in range(4) if r != rank}
    return running(**({"failed_ranks": (rank,), "live": live} | over))


def lost(node: str, **over: Any) -> PlannerInput:
    return running(lost_nodes=(node,), live={r: 41 for r in range(4) if "ab"[r // 2] != node}, **over)


def priced(made: RecoveryPlan, name: RestoreStrategyName) -> Alternative:
    return next(a for a in made.alternatives if a.strategy is name)


def test_a_killed_process_comes_back_from_its_own_nodes_memory() -> None:
    made = plan_recovery(killed(3))
    best = made.alternative()
    assert (made.chosen, made.generation, made.failed_ranks) == (N.LOCAL_SLOT, 4, (3,))
    assert (best.epoch, best.steps_lost) == (41, 0)
    assert [(r.source, r.node) for r in best.restores] == [
        (S.LIVE, "a"),
        (S.LIVE, "a"),
        (S.LIVE, "b"),
        (S.LOCAL_SLOT, "b"),
    ]
    assert made.explanation.startswith("local_slot: The snapshot of step 41 that failed rank 3")
    assert "Next best: peer_copy" in made.explanation


def test_the_price_is_the_sum_of_its_phases_by_the_stated_constants() -> None:
    costs = MachineCosts(fence_s=1.0, spawn_warm_s=2.0, spawn_cold_s=50.0, regroup_s=4.0, copy_Bps=1e9, net_Bps=0.5e9)
    made = plan_recovery(killed(3, costs=costs))
    assert priced(made, N.LOCAL_SLOT).parts == {"fence": 1.0, "spawn": 2.0, "load": 1.0, "regroup": 4.0}
    assert priced(made, N.PEER_COPY).parts == {"fence": 1.0, "spawn": 2.0, "fetch": 2.0, "load": 1.0, "regroup": 4.0}
    cold = plan_recovery(killed(3, costs=costs, standbys={"a": 2}))
    assert cold.alternative().parts["spawn"] == 50.0, "no standby on its node: a cold start there"


def test_a_lost_node_is_replaced_by_standbys_and_copies_of_peers() -> None:
    made = plan_recovery(lost("b"))
    best = made.alternative()
    assert (made.chosen, made.failed_ranks) == (N.PEER_COPY, (2, 3))
    assert [(r.rank, r.node, r.source, r.from_rank, r.from_nodes) for r in best.restores if r.rank >= 2] == [
        (2, "a", S.PEER_COPY, 0, ("a",)),
        (3, "a", S.PEER_COPY, 1, ("a",)),
    ]
    assert priced(made, N.LOCAL_SLOT).reason == "Node b is lost, and with it the snapshots of rank 2 in its memory."


def test_without_replicas_parity_rebuilds_and_without_parity_the_disk_serves() -> None:
    rows = tuple(HeldParity(node=n, epoch=40, ranks=group) for group in ((0, 2), (1, 3)) for n in "ab")
    disk = tuple(HeldCheckpoint(rank=r, epoch=30) for r in range(4))
    made = plan_recovery(lost("b", parity=rows, disk=disk, replicated=False))
    assert [a.strategy for a in made.alternatives if a.feasible] == [N.PARITY_REBUILD, N.DISK_RESTART]
    best = made.alternative()
    assert (best.epoch, best.steps_lost) == (40, 1)
    assert [r.source for r in best.restores] == [S.LOCAL_SLOT, S.LOCAL_SLOT, S.PARITY, S.PARITY], "survivors roll back"
    assert "shards its state" in priced(made, N.PEER_COPY).reason
    only_disk = plan_recovery(lost("b", disk=disk, replicated=False))
    assert (only_disk.chosen, only_disk.alternative().steps_lost) == (N.DISK_RESTART, 11)
    assert {r.source for r in only_disk.alternative().restores} == {S.DISK}


def four_nodes(lost: tuple[str, ...], **changed: object) -> PlannerInput:
    """One rank a node, no replicas; all hold steps 40 and 41; nodes a to d, then e with standbys."""
    ranks = tuple(RankPlacement(rank=r, dp=0, pp=r, node="abcd"[r]) for r in range(4))
    made: dict[str, object] = {
        "job": "j", "generation": 1, "step": 41, "step_seconds": 1.0, "ranks": ranks, "state_bytes": (10**9,) * 4,
        "lost_nodes": lost, "standbys": {"e": 4},
        "slots": tuple(HeldSlot(node="abcd"[r], rank=r, epoch=e) for r in range(4) for e in (40, 41)),
    }  # fmt: skip
    return PlannerInput(**made | changed)


def parity_of_four(parity: int) -> tuple[HeldParity, ...]:
    return tuple(
        HeldParity(node="abcd"[place], epoch=40, ranks=(0, 1, 2, 3), place=place, parity=parity) for place in range(4)
    )


def test_a_scheme_is_counted_on_as_far_as_it_goes() -> None:
    two = plan_recovery(four_nodes(("b", "c"), parity=parity_of_four(2)))
    assert two.chosen is N.PARITY_REBUILD
    best = two.alternative()
    assert [(r.source, r.from_nodes) for r in best.restores] == [
        (S.LOCAL_SLOT, ()), (S.PARITY, ("a", "d")), (S.PARITY, ("a", "d")), (S.LOCAL_SLOT, ())
    ]  # fmt: skip
    three = plan_recovery(four_nodes(("b", "c", "d"), parity=parity_of_four(2)))
    assert three.chosen is None
    reason = "The parity group of rank 1 also misses the snapshots of rank 2 and 3: it covers 2 losses."
    assert priced(three, N.PARITY_REBUILD).reason == reason
    assert plan_recovery(four_nodes(("b", "c"), parity=parity_of_four(1))).chosen is None


def test_rows_that_are_not_all_made_yet_count_if_there_are_enough() -> None:
    rows = tuple(row for row in parity_of_four(2) if row.place != 3)
    assert plan_recovery(four_nodes(("b",), parity=rows)).chosen is N.PARITY_REBUILD
    assert plan_recovery(four_nodes(("a", "b"), parity=rows)).chosen is None


def test_a_copy_of_a_ranks_own_is_fetched_and_at_home_it_is_a_slot() -> None:
    copies = tuple(HeldSlot(node="abcd"[(r + 1) % 4], rank=r, epoch=40) for r in range(4))
    made = plan_recovery(four_nodes(("b",), slots=(*four_nodes(()).slots, *copies)))
    assert made.chosen is N.PEER_COPY
    restore = made.alternative().restores[1]
    assert (restore.source, restore.from_rank, restore.from_nodes, restore.node) == (S.PEER_COPY, 1, ("c",), "e")
    assert "rank 1 from its own copy on c" in made.explanation
    home = plan_recovery(four_nodes(("b",), slots=(*four_nodes(()).slots, *copies), standbys={"c": 1}))
    assert home.chosen is N.LOCAL_SLOT
    gone = plan_recovery(four_nodes(("b", "c"), slots=(*four_nodes(()).slots, *copies)))
    assert gone.chosen is None
    assert priced(gone, N.PEER_COPY).reason.startswith("No other node holds the state of rank 1")


def test_a_survivor_one_step_ahead_goes_back_to_its_slot() -> None:
    made = plan_recovery(killed(3, live={0: 42, 1: 42, 2: 42}))
    best = made.alternative()
    assert (best.epoch, best.steps_lost) == (41, 1)
    assert [r.source for r in best.restores] == [S.LOCAL_SLOT] * 4


def test_an_unverified_slot_is_worth_nothing() -> None:
    slots = tuple(msgspec.structs.replace(s, verified=not (s.rank == 3 and s.epoch == 41)) for s in running().slots)
    assert priced(plan_recovery(killed(3, slots=slots)), N.LOCAL_SLOT).feasible is True
    assert priced(plan_recovery(killed(3, slots=slots)), N.LOCAL_SLOT).epoch is not None
    assert priced(plan_recovery(killed(3, slots=slots)), N.LOCAL_SLOT).epoch == 40
    assert plan_recovery(killed(3, slots=slots)).chosen is N.PEER_COPY, (
        "a copy is dearer in seconds but repeats no step"
    )


def test_steps_lost_weigh_by_the_step_time() -> None:
    slots = tuple(s for s in running().slots if not (s.rank == 3 and s.epoch == 41))
    assert plan_recovery(killed(3, slots=slots, step_seconds=1e-3)).chosen is N.LOCAL_SLOT
    assert plan_recovery(killed(3, slots=slots, step_seconds=60.0)).chosen is N.PEER_COPY


def test_when_nothing_is_feasible_a_human_is_told_every_reason() -> None:
    made = plan_recovery(lost("b", standbys={}))
    assert made.chosen is None
    assert made.explanation.startswith("Nothing brings the job back automatically")
    assert all("no other node has a free standby or room for rank 2" in a.reason for a in made.alternatives)
    with pytest.raises(ValueError, match="no feasible alternative"):
        made.alternative()


def test_nobody_gone_is_a_mere_regroup() -> None:
    made = plan_recovery(running())
    assert (made.chosen, made.failed_ranks) == (N.LOCAL_SLOT, ())
    assert made.alternative().parts == {"regroup": MachineCosts().regroup_s}
    assert {r.source for r in made.alternative().restores} == {S.LIVE}


def test_everybody_gone_comes_back_from_memory_while_the_nodes_live() -> None:
    made = plan_recovery(running(failed_ranks=(0, 1, 2, 3), live={}))
    assert (made.chosen, made.alternative().epoch) == (N.LOCAL_SLOT, 41)


def test_a_dead_peers_slot_still_serves_if_its_node_lives() -> None:
    slots = tuple(s for s in running().slots if s.rank != 3)
    made = plan_recovery(running(failed_ranks=(1, 3), live={0: 41, 2: 41}, slots=slots))
    assert made.chosen is N.PEER_COPY
    assert [(r.rank, r.source, r.from_rank) for r in made.alternative().restores if r.source is not S.LIVE] == [
        (1, S.LOCAL_SLOT, None),
        (3, S.PEER_COPY, 1),
    ]


def test_new_homes_keep_replicas_apart_and_never_overfill() -> None:
    ranks = tuple(RankPlacement(rank=r, dp=r // 2, pp=r % 2, node="ab"[r // 2]) for r in range(4))
    case = FailureCase(running(ranks=ranks, lost_nodes=("b",), live={0: 41, 1: 41}, standbys={"a": 5, "c": 1, "d": 1}))
    assert [case.node[r] for r in (2, 3)] == ["c", "d"]
    full = FailureCase(running(lost_nodes=("b",), live={0: 41, 1: 41}, standbys={"c": 1}))
    assert full.unplaced == 3
    mixed = FailureCase(running(lost_nodes=("b",), live={0: 41, 1: 41}, standbys={"c": 1}, cold={"d": 1}))
    assert [mixed.node[r] for r in (2, 3)] == ["c", "d"]
    assert mixed.warm == {2}


def test_a_rank_leaves_a_node_that_is_not_trusted_only_for_one_that_is() -> None:
    killed_on = {"failed_ranks": (3,), "live": {0: 41, 1: 41, 2: 41}}
    elsewhere = FailureCase(running(**killed_on, last_resort={"b": 1}, standbys={"a": 1}))
    assert (elsewhere.node[3], elsewhere.warm) == ("a", {3})
    nowhere = FailureCase(running(**killed_on, last_resort={"b": 0, "c": 5}, standbys={}))
    assert (nowhere.node[3], nowhere.warm, nowhere.unplaced) == ("b", set(), None)
    closed = FailureCase(running(**killed_on, last_resort={"c": 1}, cordoned=("b",), standbys={"b": 1}))
    assert (closed.node[3], closed.unplaced) == ("c", None)
    shut = FailureCase(running(**killed_on, cordoned=("b",), standbys={"b": 1}))
    assert shut.unplaced == 3
    assert shut.slots[3], "its memory still serves"
    (reason,) = {a.reason for a in plan_recovery(shut.situation).alternatives}
    assert reason == "Node b takes no rank and no other node has a free standby or room for rank 3."


def test_ranks_that_have_to_leave_go_before_those_that_may_stay() -> None:
    both = FailureCase(
        running(failed_ranks=(1, 3), live={0: 41, 2: 41}, last_resort={"a": 0}, cordoned=("b",), standbys={"c": 1})
    )
    assert [both.node[rank] for rank in (1, 3)] == ["a", "c"]


def test_a_lost_node_takes_its_ranks_named_or_not() -> None:
    assert plan_recovery(lost("a")).failed_ranks == (0, 1)
    made = plan_recovery(lost("b"))
    assert made.failed_ranks == (2, 3)
    assert plan_recovery(replace(lost("b"), failed_ranks=(3,))) == made


def test_of_a_large_job_an_event_lists_those_that_move(monkeypatch: pytest.MonkeyPatch) -> None:
    made = plan_recovery(killed(3))
    assert summarize_plan(made) == made
    monkeypatch.setattr("mainstay.recovery.recovery_plan.LISTED", 3)
    told = summarize_plan(made)
    assert [r.rank for r in told.alternative().restores] == [3]
    assert [a.left_out for a in told.alternatives if a.feasible] == [3, 4]
    assert not any(a.restores for a in told.alternatives if a.strategy is not told.chosen)
    assert replace(told, alternatives=()) == replace(made, alternatives=())


def test_who_is_away_is_nobodys_loss() -> None:
    some = running(away=(2, 3), live={0: 41, 1: 41})
    ranks = [plan_recovery(replace(some, failed_ranks=(rank,))) for rank in (0, 2)]
    nodes = [plan_recovery(replace(some, lost_nodes=(node,))) for node in "ab"]
    assert [made.failed_ranks for made in ranks + nodes] == [(0,), (), (0, 1), ()]
    assert [r.rank for r in ranks[0].alternative().restores] == [0, 1]


def test_a_code_that_says_it_bears_the_loss_of_all_still_needs_somebody() -> None:
    made = plan_recovery(four_nodes(("b",), parity=parity_of_four(4)))
    assert made.alternative().restores[1].from_nodes == ("a",)


def test_the_same_situation_gives_the_same_plan_and_another_gives_another_id() -> None:
    one = plan_recovery(killed(3))
    turned = replace(killed(3), standbys={"b": 1, "a": 2})
    assert plan_recovery(turned) == one
    assert plan_recovery(killed(2)).id != one.id


def test_a_plan_travels_as_json() -> None:
    made = plan_recovery(lost("b"))
    assert msgspec.json.decode(msgspec.json.encode(made), type=RecoveryPlan) == made


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"failed_ranks": (4,)}, "failed_ranks names 4"),
        ({"lost_nodes": ("z",)}, "lost_nodes names 'z'"),
        ({"state_bytes": (1,)}, "1 entries for 4 ranks"),
        ({"ranks": ()}, "at least one rank"),
        ({"step_seconds": float("nan")}, "must not be negative"),
        ({"slots": (HeldSlot(node="a", rank=9, epoch=1),)}, "slots names 9"),
    ],
)
def test_a_situation_that_makes_no_sense_is_refused_by_name(over: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        running(**over)


def test_a_constant_that_is_not_positive_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="net_Bps must be positive"):
        MachineCosts(net_Bps=0.0)
