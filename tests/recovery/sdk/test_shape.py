"""Which rank is where: pipeline after pipeline, stage after stage, slice after slice, and back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstay.recovery.mesh_shape import MeshShape

sizes = st.integers(1, 5)
pipelines = st.lists(sizes, min_size=1, max_size=6)


@settings(deadline=None)
@given(sizes, sizes, sizes, st.data())
def test_there_and_back(dp: int, pp: int, tp: int, data: st.DataObject) -> None:
    shape = MeshShape(dp=dp, pp=pp, tp=tp)
    rank = data.draw(st.integers(0, shape.world_size - 1))
    d, p, t = shape.place(rank)
    assert (d < dp, p < pp, t < tp) == (True, True, True)
    assert shape.rank_of(dp=d, pp=p, tp=t) == rank
    for peers, size in ((shape.dp_peers(rank), dp), (shape.pp_peers(rank), pp), (shape.tp_peers(rank), tp)):
        assert rank in peers
        assert len(set(peers)) == size


def test_two_by_two() -> None:
    shape = MeshShape(dp=2, pp=2)
    assert [shape.dp_peers(rank) for rank in range(4)] == [[0, 2], [1, 3], [0, 2], [1, 3]]
    assert [shape.pp_peers(rank) for rank in range(4)] == [[0, 1], [0, 1], [2, 3], [2, 3]]


def test_three_stages_beside_two() -> None:
    shape = MeshShape.from_stages([3, 2])
    assert (shape.dp, shape.pp, shape.world_size, str(shape)) == (2, 3, 5, "stages=3,2")
    assert [shape.place(rank) for rank in range(5)] == [(0, 0, 0), (0, 1, 0), (0, 2, 0), (1, 0, 0), (1, 1, 0)]
    assert [shape.dp_peers(rank) for rank in range(5)] == [[rank] for rank in range(5)], "no rank is cut alike"
    assert shape.pp_peers(4) == [3, 4]
    assert shape.models() == [[[0], [1], [2]], [[3], [4]]]
    assert [shape.covered(ranks) for ranks in ([0, 1, 2], [3, 4], [0, 1, 3], [1, 2, 4])] == [True, True, False, False]


@settings(deadline=None)
@given(pipelines)
def test_unlike_pipelines_fill_the_ranks_without_gaps(stages: list[int]) -> None:
    shape = MeshShape.from_stages(stages)
    assert shape.stages == tuple(stages)
    assert [shape.rank_of(dp=d, pp=p) for d, depth in enumerate(stages) for p in range(depth)] == list(
        range(shape.world_size)
    )
    for rank in range(shape.world_size):
        dp, pp, _ = shape.place(rank)
        assert shape.rank_of(dp=dp, pp=pp) == rank
        assert shape.cut(rank) == (stages[dp], pp, 0)
        assert {shape.cut(peer) for peer in shape.dp_peers(rank)} == {shape.cut(rank)}
        assert [shape.place(peer)[1] for peer in shape.pp_peers(rank)] == list(range(stages[dp]))
    assert sorted(rank for peers in shape.parts() for rank in peers) == list(range(shape.world_size))


@settings(deadline=None)
@given(pipelines, st.data())
def test_who_covers_the_model_has_every_part_of_one_depth(stages: list[int], data: st.DataObject) -> None:
    shape = MeshShape.from_stages(stages)
    ranks = data.draw(st.sets(st.integers(0, shape.world_size - 1)))
    cuts = {shape.cut(rank) for rank in ranks}
    assert shape.covered(ranks) == any({(depth, stage, 0) for stage in range(depth)} <= cuts for depth in set(stages))


@settings(deadline=None)
@given(sizes, sizes, sizes)
def test_alike_pipelines_are_the_plain_shape(dp: int, pp: int, tp: int) -> None:
    shape = MeshShape(dp=dp, pp=pp, tp=tp)
    assert MeshShape.from_stages([pp] * dp, tp) == shape
    assert shape.parts() == [shape.dp_peers(rank) for rank in range(pp * tp)]


@pytest.mark.parametrize(
    ("stages", "tp", "words"),
    [
        ([], 1, "at least one pipeline"),
        ([2, 0], 1, "each of at least one stage"),
        ([3, 2], 2, "pipelines of unlike depth need tp=1, not tp=2"),
    ],
)
def test_what_is_no_shape_is_refused(stages: list[int], tp: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        MeshShape.from_stages(stages, tp)


@pytest.mark.parametrize("depths", [(3,), (3, 3), (2, 1), (3, 0)])
def test_depths_that_contradict_the_rest_are_refused(depths: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="stages"):
        MeshShape(dp=2, pp=3, depths=depths)
