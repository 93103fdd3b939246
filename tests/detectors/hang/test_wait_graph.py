"""Counters at a standstill: a rank that others wait for and that waits for no rank."""

from __future__ import annotations

import numpy as np
import pytest

from bench.lib_hangs import Fault, Shape, Simulator, standstill
from mainstay.detectors.hang.wait_graph import GroupProgress, HangLocalization, StallKind, localize_hang

NAN = float("nan")


def table(
    *entries: tuple[int, int, float, float], pairwise: tuple[int, ...] = (), depth: tuple[int, ...] = ()
) -> GroupProgress:
    """From (rank, group, entered, completed); groups are 0 .. n-1, innermost first unless told otherwise."""
    rank, group, entered, completed = (np.array(column) for column in zip(*entries, strict=True))
    size = int(group.max()) + 1
    return GroupProgress(
        rank=rank.astype(np.int64),
        group=group.astype(np.int64),
        enqueued=entered.astype(np.float64),
        completed=completed.astype(np.float64),
        kinds=tuple(f"g{n}" for n in range(size)),
        pairwise=np.isin(np.arange(size), pairwise),
        depth=np.array(depth or range(size), np.int64),
    )


def blamed(place: HangLocalization) -> list[int]:
    return sorted(c.rank for c in place.culprits)


def test_who_did_not_enter_is_the_culprit() -> None:
    place = localize_hang(table((0, 0, 5, 4), (1, 0, 4, 4), (2, 0, 5, 4)))
    assert (blamed(place), place.stall) == ([1], StallKind.BEHIND)
    assert (place.culprits[0].waiting, place.culprits[0].behind_entered) == (2, 1.0)


def test_who_is_late_in_an_outer_group_only_because_it_waits_in_an_inner_one_is_no_culprit() -> None:
    inner = [(0, 0, 5, 4), (1, 0, 4, 4)]
    outer = [(0, 1, 7, 7), (2, 1, 8, 7)]  # 2 waits for 0, which waits for 1
    assert blamed(localize_hang(table(*inner, *outer))) == [1]


def test_who_is_late_in_an_inner_group_only_because_it_waits_in_an_outer_one_is_no_culprit() -> None:
    inner = [(0, 0, 5, 4), (1, 0, 4, 4)]  # 0 continued into the next inner call; 1 still waits outside for 3
    outer = [(1, 1, 8, 7), (3, 1, 7, 7)]
    assert blamed(localize_hang(table(*inner, *outer))) == [3]


def test_two_culprits_are_both_named() -> None:
    first = [(0, 0, 5, 4), (1, 0, 4, 4)]
    second = [(2, 1, 9, 8), (3, 1, 8, 8)]
    assert blamed(localize_hang(table(*first, *second))) == [1, 3]


def test_everybody_inside_is_a_communication_hang_of_the_group_that_waits_for_nobody() -> None:
    inside = [(r, 0, 5, 4) for r in range(4)]
    around = [(0, 1, 7, 7), (4, 1, 8, 7)]
    place = localize_hang(table(*inside, *around), inside=np.arange(5))
    assert (place.stall, place.groups, place.culprits) == (StallKind.TRANSPORT, (0,), ())


def test_a_silent_rank_among_speaking_ones_is_the_culprit() -> None:
    place = localize_hang(table(*((r, 0, 5, 4) for r in range(4))), silent=np.array([2]))
    assert (blamed(place), place.stall) == ([2], StallKind.SILENT)


def test_a_rank_of_which_nothing_is_known_is_blamed_only_where_nobody_else_explains_it() -> None:
    nobody = localize_hang(table((0, 0, 5, 4), (1, 0, NAN, NAN), (2, 0, 5, 4)))
    assert blamed(nobody) == [1]
    assert not nobody.culprits[0].sure
    somebody = localize_hang(table((0, 0, 5, 4), (1, 0, NAN, NAN), (2, 0, 4, 4)))
    assert blamed(somebody) == [2]


def test_a_group_of_one_waits_for_nobody() -> None:
    place = localize_hang(table((0, 0, 5, 4), (0, 1, 3, 3), (1, 1, 4, 3)))
    assert blamed(place) == [0]


def test_transfers_are_compared_by_who_is_inside_and_not_by_counts() -> None:
    pipeline = [(0, 0, 10, 10), (1, 0, 21, 20), (2, 0, 11, 10)]
    assert blamed(localize_hang(table(*pipeline, pairwise=(0,)))) == [0]


def test_a_circle_blames_nobody() -> None:
    first = [(0, 0, 5, 4), (1, 0, 4, 4)]  # 0 waits for 1 here
    second = [(0, 1, 7, 7), (1, 1, 8, 7)]  # and 1 for 0 there
    place = localize_hang(table(*first, *second), inside=np.array([0, 1]))
    assert (place.stall, place.culprits) == (StallKind.CIRCLE, ())


def test_calls_that_run_ahead_are_judged_by_their_lag() -> None:
    """All entered the open call; who stopped issuing long before its peers is the likelier culprit, and said so."""
    place = localize_hang(table((0, 0, 90, 70), (1, 0, 71, 70), (2, 0, 88, 70)))
    assert blamed(place) == [1]
    assert not place.culprits[0].sure


def test_nothing_open_says_nothing() -> None:
    assert localize_hang(table((0, 0, 5, 5), (1, 0, 5, 5))).stall is StallKind.UNCLEAR
    empty = GroupProgress(
        rank=np.empty(0, np.int64),
        group=np.empty(0, np.int64),
        enqueued=np.empty(0),
        completed=np.empty(0),
        kinds=(),
        pairwise=np.empty(0, np.bool_),
        depth=np.empty(0, np.int64),
    )
    assert localize_hang(empty).stall is StallKind.UNCLEAR


def test_order_of_entries_does_not_matter() -> None:
    progress, silent, inside = standstill(Simulator(SHAPE, 3).run(2, (Fault(step=1, call=4, ranks=(9,)),)))
    order = np.random.default_rng(1).permutation(len(progress.rank))
    turned = GroupProgress(
        rank=progress.rank[order],
        group=progress.group[order],
        enqueued=progress.enqueued[order],
        completed=progress.completed[order],
        kinds=progress.kinds,
        pairwise=progress.pairwise,
        depth=progress.depth,
        role=None if progress.role is None else progress.role[order],
    )
    assert localize_hang(turned, silent, inside) == localize_hang(progress, silent, inside)


SHAPE = Shape(dp=2, pp=4, tp=4, microbatches=3)


@pytest.mark.parametrize("call", range(20))
def test_every_place_of_a_step_names_the_rank_that_stopped_there(call: int) -> None:
    line = Simulator(SHAPE, call).run(2, (Fault(step=1, call=call % 13, ranks=(call,)),))
    assert blamed(localize_hang(*standstill(line))) == sorted(line.happened)


def test_a_thing_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="length"):
        GroupProgress(
            rank=np.zeros(2, np.int64),
            group=np.zeros(1, np.int64),
            enqueued=np.zeros(2),
            completed=np.zeros(2),
            kinds=("g",),
            pairwise=np.zeros(1, np.bool_),
            depth=np.zeros(1, np.int64),
        )
    for kinds, pairwise, depth in ((2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 1), (1, 2, 2)):
        with pytest.raises(ValueError, match="differ in length"):
            GroupProgress(
                rank=np.zeros(1, np.int64),
                group=np.zeros(1, np.int64),
                enqueued=np.zeros(1),
                completed=np.zeros(1),
                kinds=("g",) * kinds,
                pairwise=np.zeros(pairwise, np.bool_),
                depth=np.zeros(depth, np.int64),
            )
    with pytest.raises(ValueError, match="out of range"):
        GroupProgress(
            rank=np.zeros(1, np.int64),
            group=np.array([3]),
            enqueued=np.zeros(1),
            completed=np.zeros(1),
            kinds=("g",),
            pairwise=np.zeros(1, np.bool_),
            depth=np.zeros(1, np.int64),
        )
