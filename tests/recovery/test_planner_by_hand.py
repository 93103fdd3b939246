"""Parts of plans by hand: runs of ranks, ids, sentences, orders, and what a case knows."""

from __future__ import annotations

import uuid
from dataclasses import astuple, fields
from typing import Any

import pytest

from mainstay.recovery.planner import _order, _price, plan_recovery
from mainstay.recovery.planner_input import (
    FailureCase,
    HeldCheckpoint,
    HeldParity,
    HeldSlot,
    MachineCosts,
    RankPlacement,
)
from mainstay.recovery.recovery_plan import Alternative, RestoreStrategyName
from tests.recovery.test_planner import killed, running

N = RestoreStrategyName


def test_a_plans_id_is_a_uuid_of_version_eight() -> None:
    made = [uuid.UUID(plan_recovery(killed(rank)).id) for rank in range(4)]
    assert {(one.version, one.variant) for one in made} == {(8, uuid.RFC_4122)}
    assert len(set(made)) == 4
    assert plan_recovery(killed(3, live={0: 41, 1: 41})).id != plan_recovery(killed(3)).id


@pytest.mark.parametrize(
    ("seconds", "steps", "said"),
    [(1.005, 0, "about 1.00 s and 0 steps to repeat"), (61.5, 1, "about 61.50 s and 1 step to repeat"),
     (0.126, 2, "about 0.13 s and 2 steps to repeat")],
)  # fmt: skip
def test_the_price_of_a_way_is_printed(seconds: float, steps: int, said: str) -> None:
    one = Alternative(strategy=N.LOCAL_SLOT, feasible=True, reason="", seconds=seconds, steps_lost=steps)
    assert _price(one) == said


def test_the_choice_in_words() -> None:
    assert plan_recovery(killed(3)).explanation == (
        "local_slot: The snapshot of step 41 that failed rank 3 left in its node's memory is whole. It takes about 0.72"
        " s and 0 steps to repeat; 3 of 4 ranks keep what they hold. Next best: peer_copy, about 1.83 s and 0 steps to"
        " repeat."
    )
    assert plan_recovery(running()).explanation.endswith(
        "4 of 4 ranks keep what they hold. No other strategy is possible here."
    )


def test_of_equal_cost_the_way_that_repeats_less_goes_first_then_the_first_by_name() -> None:
    def priced(name: RestoreStrategyName, cost: float | None, steps: int | None) -> Alternative:
        return Alternative(strategy=name, feasible=cost is not None, reason="", cost_seconds=cost, steps_lost=steps)

    order = [
        priced(N.PEER_COPY, 0.0, 9),
        priced(N.PARITY_REBUILD, 5.0, 1),
        priced(N.DISK_RESTART, 5.0, 2),
        priced(N.LOCAL_SLOT, 5.0, 2),
        priced(N.DISK_RESTART, None, None),
        priced(N.LOCAL_SLOT, None, None),
    ]
    turned = order[::-1]
    assert sorted(turned, key=_order) == order


@pytest.mark.parametrize("name", [field.name for field in fields(MachineCosts)])
def test_every_constant_of_a_machine_is_above_zero(name: str) -> None:
    for value in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match=f"cost {name} must be positive, not {value}"):
            MachineCosts(**{name: value})
    assert getattr(MachineCosts(**{name: 0.5}), name) == 0.5


def test_a_machine_that_was_not_measured_is_like_ours() -> None:
    """Two CPU cores over loopback; a network of 10 Gb/s, a SATA SSD."""
    assert astuple(MachineCosts()) == (0.06, 0.1, 3.1, 0.06, 2e9, 0.9e9, 5e9, 0.5e9)


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"live": {4: 1}}, "live names 4"),
        ({"away": (-1,)}, "away names -1"),
        ({"parity": (HeldParity(node="a", epoch=1, ranks=(0, 5)),)}, "parity names 5"),
        ({"disk": (HeldCheckpoint(rank=4, epoch=1),)}, "disk names 4, which the job does not have"),
        ({"step_seconds": -0.5}, "must not be negative"),
        ({"state_bytes": (1, 1, 1, -1)}, "must not be negative"),
        ({"state_bytes": (1,) * 5}, "state_bytes has 5 entries for 4 ranks"),
        ({"ranks": tuple(RankPlacement(rank=r, dp=0, pp=0, node="a") for r in (0, 2, 1, 3))}, r"ranks\[1\] is rank 2:"),
    ],
)
def test_other_situations_that_make_no_sense(over: dict[str, Any], words: str) -> None:
    assert running(step_seconds=0.0, state_bytes=(0,) * 4, cold={"z": 1}).nodes == {"a", "b", "z"}
    with pytest.raises(ValueError, match=words):
        running(**over)


def test_a_case_knows_who_holds_what() -> None:
    """Node b is lost: its slots and rows are gone, and rank 3, which is away, is not lost."""
    rows = tuple(HeldParity(node=n, epoch=40, ranks=(0, 2)) for n in "ab")
    disk = (
        HeldCheckpoint(rank=0, epoch=30, node="b"),
        HeldCheckpoint(rank=0, epoch=20),
        HeldCheckpoint(rank=1, epoch=10),
    )
    slots = (
        *running().slots,
        HeldSlot(node="b", rank=0, epoch=39),
        HeldSlot(node="a", rank=0, epoch=38, verified=False),
    )
    case = FailureCase(running(lost_nodes=("b",), away=(3,), parity=rows, disk=disk, slots=slots, live={0: 43, 2: 50}))
    assert (case.failed, case.survivors, case.newest) == ((2,), (0, 1), 43)
    assert [(slot.epoch, slot.node) for slot in case.slots[0]] == [(40, "a"), (41, "a")]
    assert not case.slots[2]
    assert case.peers(2) == [0, 2]
    assert case.rows(2) == {(0, 2): {40: [rows[0]]}}
    assert case.has_parity
    assert [(held.epoch, held.node) for held in case.disk[0]] == [(20, None)]
    assert (case.node[2], case.warm, case.unplaced) == ("a", {2}, None)
    assert not FailureCase(running(lost_nodes=("b",), parity=rows[1:])).has_parity


def test_a_process_that_died_takes_the_standby_of_its_node() -> None:
    case = FailureCase(running(failed_ranks=(0, 1, 2), live={3: 41}, standbys={"a": 1, "b": 1}))
    assert (case.node, case.warm) == (["a", "a", "b", "b"], {0, 2})
    crowded = FailureCase(running(lost_nodes=("b",), live={}, standbys={"c": 1, "d": 3, "e": 0}))
    assert [crowded.node[rank] for rank in (2, 3)] == ["d", "d"], "where most is free"
