"""Who computes which micro-batch: each is computed once, for any absent positions and speeds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstay.recovery.work_assignment import WorkAssignment


@given(data=st.data(), dp=st.integers(1, 9), of_each=st.integers(1, 8))
def test_every_micro_batch_is_computed_once(data: st.DataObject, dp: int, of_each: int) -> None:
    here = data.draw(st.sets(st.integers(0, dp - 1), min_size=1))
    shares = data.draw(st.lists(st.floats(1e-3, 1e3), min_size=len(here), max_size=len(here)) | st.just([]))
    total = dp * of_each
    assigned = WorkAssignment(replicas=tuple(sorted(here)), shares=tuple(shares)).micro_batches(total, dp)
    assert assigned.keys() == here
    assert sorted(number for ids in assigned.values() for number in ids) == list(range(total))
    assert all(ids and list(ids) == sorted(ids) for ids in assigned.values())
    ideal = dict(
        zip(sorted(here), [total * s / sum(shares) for s in shares] or [total / len(here)] * len(here), strict=True)
    )
    assert all(len(ids) <= ideal[replica] + 1 or len(ids) == 1 for replica, ids in assigned.items())


@settings(deadline=None)
@given(data=st.data(), dp=st.integers(1, 7), pp=st.integers(1, 5), of_each=st.integers(1, 6))
def test_each_stage_of_every_micro_batch_is_computed_once_whatever_is_away(
    data: st.DataObject, dp: int, pp: int, of_each: int
) -> None:
    kept = [data.draw(st.sets(st.integers(0, dp - 1), min_size=1)) for _ in range(pp)]
    here = set[int]().union(*kept)
    gaps = tuple((d, s) for d in sorted(here) for s in range(pp) if d not in kept[s])
    assignment, total = WorkAssignment(replicas=tuple(sorted(here)), absent_positions=gaps), dp * of_each
    homes = assignment.micro_batches(total, dp)
    for stage in range(pp):
        assigned = assignment.micro_batches(total, dp, stage)
        assert assigned.keys() == kept[stage]
        assert sorted(number for ids in assigned.values() for number in ids) == list(range(total))
        assert all(set(homes[d]) <= set(ids) for d, ids in assigned.items()), "a mesh position keeps its pipeline's"
        counts = [len(ids) for ids in assigned.values()]
        assert max(counts) - min(counts) <= 1


def test_one_stage_of_a_replica_is_assigned_to_the_others_in_turns() -> None:
    assignment = WorkAssignment(replicas=(0, 1, 2), absent_positions=((1, 1),))
    assert assignment.micro_batches(12, 3, 1) == {0: (0, 1, 2, 3, 4, 6), 2: (5, 7, 8, 9, 10, 11)}
    assert (
        assignment.micro_batches(12, 3, 0)
        == assignment.micro_batches(12, 3)
        == WorkAssignment(replicas=(0, 1, 2)).micro_batches(12, 3)
    )
    assert assignment.occupied(1) == (0, 2)
    assert not assignment.whole(3)


def test_all_there_compute_their_own() -> None:
    assert WorkAssignment(replicas=(0, 1, 2)).micro_batches(12, 3) == {
        0: (0, 1, 2, 3),
        1: (4, 5, 6, 7),
        2: (8, 9, 10, 11),
    }


def test_who_stays_keeps_its_own_and_shares_the_rest() -> None:
    assigned = WorkAssignment(replicas=(0, 2)).micro_batches(12, 3)
    assert assigned == {0: (0, 1, 2, 3, 4, 5), 2: (6, 7, 8, 9, 10, 11)}


def test_a_slow_replica_has_less_and_never_nothing() -> None:
    assert WorkAssignment(replicas=(0, 1), shares=(3.0, 1.0)).micro_batches(8, 2) == {0: (0, 1, 2, 3, 6, 7), 1: (4, 5)}
    assert WorkAssignment(replicas=(0, 1), shares=(1.0, 1e-9)).micro_batches(8, 2)[1] == (4,)


def test_what_is_no_assignment_is_named() -> None:
    with pytest.raises(ValueError, match="cannot assign 2 micro-batches to 3 replicas"):
        WorkAssignment(replicas=(0, 1, 2)).micro_batches(2, 3)
    for gaps in (((2, 0),), ((1, -1),), ((1, 1), (0, 1)), ((1, 0), (1, 0))):
        with pytest.raises(ValueError, match="must be rising and of replicas"):
            WorkAssignment(replicas=(0, 1), absent_positions=gaps)
    with pytest.raises(ValueError, match="no replica has a mesh position at stage 1"):
        WorkAssignment(replicas=(0, 1), absent_positions=((0, 1), (1, 1))).micro_batches(4, 2, 1)
    for replicas, shares, what in (((), (), "at least one"), ((1, 0), (), "rising"), ((0,), (1.0, 2.0), "2 shares"),
                                   ((0, 1), (1.0, 0.0), "positive"), ((0,), (float("nan"),), "positive")):  # fmt: skip
        with pytest.raises(ValueError, match=what):
            WorkAssignment(replicas=replicas, shares=shares)
