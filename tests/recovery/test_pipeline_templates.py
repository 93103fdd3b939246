"""Which pipelines are formed of the ranks that are left."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstay.recovery.mesh_shape import MeshShape
from mainstay.recovery.pipeline_templates import best_shape, least_stages


@pytest.mark.parametrize(
    ("dp", "pp", "places", "best"),
    [
        (2, 3, 6, (3, 3)), (2, 3, 5, (3, 2)), (2, 3, 4, (2, 2)), (2, 3, 3, (3,)), (2, 3, 2, (2,)), (2, 3, 1, None),
        (2, 4, 5, (4,)), (4, 1, 3, (1, 1, 1)), (3, 2, 5, (2, 2, 1)), (2, 3, 9, (3, 3)),
    ],
)  # fmt: skip
def test_of_six_nodes_and_others(dp: int, pp: int, places: int, best: tuple[int, ...] | None) -> None:
    found = best_shape(MeshShape(dp=dp, pp=pp), places)
    assert (None if found is None else found.stages) == best


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 40))
def test_a_shape_fits_and_trusts_no_rank_with_more_than_one_stage_fewer_leaves(dp: int, pp: int, places: int) -> None:
    home = MeshShape(dp=dp, pp=pp)
    found = best_shape(home, places)
    if found is None:
        assert places < least_stages(home)
        return
    assert found.world_size <= max(places, 0)
    assert all(least_stages(home) <= stages <= pp for stages in found.stages)
    assert list(found.stages) == sorted(found.stages, reverse=True)


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(1, 4))
def test_slices_stay_together(dp: int, pp: int) -> None:
    home = MeshShape(dp=dp, pp=pp, tp=2)
    for places in range(home.world_size):
        found = best_shape(home, places)
        assert found is None or (found.tp == 2 and found.world_size <= places and not found.depths)
