"""Which rank is where: rank = (dp_index * pp + pp_index) * tp + tp_index, and back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from recovery.shape import Shape

sizes = st.integers(1, 5)


@given(sizes, sizes, sizes, st.data())
def test_there_and_back(dp: int, pp: int, tp: int, data: st.DataObject) -> None:
    shape = Shape(dp=dp, pp=pp, tp=tp)
    rank = data.draw(st.integers(0, shape.world_size - 1))
    d, p, t = shape.place(rank)
    assert (d < dp, p < pp, t < tp) == (True, True, True)
    assert shape.rank_of(dp=d, pp=p, tp=t) == rank
    for peers, size in ((shape.dp_peers(rank), dp), (shape.pp_peers(rank), pp), (shape.tp_peers(rank), tp)):
        assert rank in peers
        assert len(set(peers)) == size


def test_two_by_two() -> None:
    shape = Shape(dp=2, pp=2)
    assert [shape.dp_peers(rank) for rank in range(4)] == [[0, 2], [1, 3], [0, 2], [1, 3]]
    assert [shape.pp_peers(rank) for rank in range(4)] == [[0, 1], [0, 1], [2, 3], [2, 3]]
