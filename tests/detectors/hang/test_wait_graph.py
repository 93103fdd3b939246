"""Counters at a standstill: a rank that others wait for and that waits for no rank."""

from __future__ import annotations

from dataclasses import replace

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


def test_from_half_of_the_largest_lag_on_a_rank_lags_too_and_the_worst_stands_first() -> None:
    """All entered the open call 71, so that none waits; behind the furthest, at 90, they are by 19, 10 and 9."""
    place = localize_hang(table((0, 0, 90, 70), (3, 0, 81, 70), (2, 0, 80, 70), (1, 0, 71, 70)))
    assert [(c.rank, c.behind_entered, c.waiting, c.sure) for c in place.culprits] == [
        (1, 19.0, 0, False), (2, 10.0, 0, False),
    ]  # fmt: skip
    equal = localize_hang(table((0, 0, 90, 70), (2, 0, 80, 70), (1, 0, 80, 70)))
    assert [c.rank for c in equal.culprits] == [1, 2], "then by number"


def test_the_innermost_group_that_lags_decides() -> None:
    inner = [(0, 1, 90, 70), (1, 1, 80, 70)]
    outer = [(2, 0, 50, 30), (0, 0, 45, 30), (3, 0, 31, 30)]
    place = localize_hang(table(*inner, *outer, depth=(5, 2)))
    assert [(c.rank, c.group) for c in place.culprits] == [(1, 1)]
    assert place.groups == (1, 0), "both are inside a call"


@pytest.mark.parametrize(
    ("since", "depth", "groups"),
    [
        ([NAN] * 6, (1, 2, 3), (0, 1, 2)),
        ([NAN] * 6, (3, 2, 1), (2, 1, 0)),
        ([NAN] * 6, (1, 1, 1), (0, 1, 2)),
        ([9.0, 8.0, 5.0, 7.0, 6.0, 6.0], (1, 2, 3), (1, 2, 0)),  # the oldest call of any member, at 8, 5 and 6
        ([9.0, NAN, 5.0, 7.0, NAN, NAN], (3, 2, 1), (1, 0, 2)),
    ],
)
def test_groups_inside_a_call_the_oldest_first_then_the_innermost(
    since: list[float], depth: tuple[int, ...], groups: tuple[int, ...]
) -> None:
    progress = table(*((rank, rank // 2, 5, 4) for rank in range(6)), depth=depth)
    place = localize_hang(replace(progress, since=np.array(since)), inside=np.arange(6))
    assert (place.stall, place.groups) == (StallKind.TRANSPORT, groups)


@pytest.mark.parametrize(
    ("role", "stall", "groups"),
    [
        ((0, 1, 0, 1, 0, 1), StallKind.TRANSPORT, (0,)),  # its mates received nine: it waits for the fifth
        ((0, 1, 2, 3, 4, 5), StallKind.CIRCLE, ()),
        (None, StallKind.CIRCLE, ()),
    ],
)
def test_in_a_circle_of_transfers_who_is_behind_its_mates_names_the_link(
    role: tuple[int, ...] | None, stall: StallKind, groups: tuple[int, ...]
) -> None:
    entries = [(0, 0, 5, 4), (1, 0, 4, 4), (0, 1, 7, 7), (1, 1, 8, 7), (2, 2, 9, 9), (3, 2, 9, 9)]
    progress = table(*entries, pairwise=(0, 1, 2))
    place = localize_hang(replace(progress, role=None if role is None else np.array(role)), inside=np.arange(4))
    assert (place.stall, place.groups) == (stall, groups)


def test_who_is_waited_for_by_most_stands_first() -> None:
    first = [(0, 0, 5, 4), (1, 0, 4, 4)]
    second = [(2, 1, 9, 8), (3, 1, 8, 8), (4, 1, 9, 8), (5, 1, 9, 8)]
    place = localize_hang(table(*first, *second))
    assert [(c.rank, c.waiting, c.group) for c in place.culprits] == [(3, 3, 1), (1, 1, 0)]


def test_a_rank_whose_peers_completed_what_it_did_not_is_the_culprit() -> None:
    """Rank 1 is inside a transfer beside it, and its group completed the fifth call without its report."""
    entries = [(0, 0, 6, 5), (1, 0, 4, 4), (1, 1, 3, 2), (2, 1, 3, 2)]
    assert blamed(localize_hang(table(*entries, pairwise=(1,)))) == [1]
    level = [(0, 0, 5, 4), *entries[1:]]
    assert localize_hang(table(*level, pairwise=(1,))).stall is StallKind.TRANSPORT


def test_groups_may_have_any_number_that_has_a_kind() -> None:
    one = {"rank": np.zeros(1, np.int64), "enqueued": np.zeros(1), "completed": np.zeros(1)}
    two = {"kinds": ("g", "h"), "pairwise": np.zeros(2, np.bool_), "depth": np.zeros(2, np.int64)}
    GroupProgress(group=np.array([1]), **one, **two)  # type: ignore[arg-type]
    for number in (-1, 2):
        with pytest.raises(ValueError, match="out of range"):
            GroupProgress(group=np.array([number]), **one, **two)  # type: ignore[arg-type]


def test_one_call_behind_is_a_lag() -> None:
    assert blamed(localize_hang(table((0, 0, 72, 70), (1, 0, 71, 70)))) == [1]
