"""Order statistics among others, and the three ways to say what a rank's compute should have been."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstay.detectors.base import Floats
from mainstay.detectors.job.mesh import regular
from mainstay.detectors.straggler.normalize import (
    Normalizer,
    PeerLayout,
    PeerTable,
    _against_others,
    _inliers,
    _shared,
    _slope,
    _some,
    fit_cost,
    layout_of,
    scale_of,
)

VALUES = st.lists(st.one_of(st.just(float("nan")), st.floats(-5, 5)), min_size=1, max_size=24)


@settings(max_examples=200, deadline=None)
@given(VALUES, st.integers(1, 4), st.randoms(use_true_random=False))
def test_median_and_mean_of_others_are_what_they_say(values: list[float], groups: int, random: object) -> None:
    x = np.array(values)
    label = np.array([random.randrange(groups) for _ in values])  # type: ignore[attr-defined]
    peers = PeerTable([np.flatnonzero(label == g) for g in range(groups)], len(x))
    middle, count = peers.median_of_others(x)
    mean = peers.mean_of_others(x)
    for row, value in enumerate(x):
        others = [v for i, v in enumerate(x) if i != row and label[i] == label[row] and np.isfinite(v)]
        assert count[row] == len(others)
        if np.isnan(value) or not others:
            assert np.isnan(middle[row])
            assert np.isnan(mean[row])
        else:
            assert middle[row] == pytest.approx(np.median(others))
            assert mean[row] == pytest.approx(np.mean(others), abs=1e-9)


def test_many_steps_at_once_are_the_same_as_one_by_one() -> None:
    rng = np.random.default_rng(0)
    x = np.where(rng.random((6, 13)) < 0.2, np.nan, rng.normal(size=(6, 13)))
    peers = PeerTable([np.arange(0, 8), np.arange(8, 12)], 13)  # row 12 is in no group
    middle, _ = peers.median_of_others(x)
    np.testing.assert_array_equal(middle, np.stack([peers.median_of_others(line)[0] for line in x]))
    assert np.isnan(middle[:, 12]).all()


@pytest.mark.parametrize("size", [2, 3, 4, 8, 33])
def test_the_scale_makes_roles_of_all_sizes_alike(size: int) -> None:
    rng = np.random.default_rng(size)
    x = rng.normal(size=(20000, size))
    residual = x - PeerTable([np.arange(size)], size).median_of_others(x)[0]
    assert (residual / scale_of(np.full(size, size))).std() == pytest.approx(1.0, abs=0.06)


def lengths_job(seed: int, steps: int = 12, dp: int = 16) -> tuple[PeerLayout, Floats, Floats, Floats]:
    """Two stages, the second with a head; log seconds [T, E], work [2, T, E], own noise [T, E]."""
    rng = np.random.default_rng(seed)
    mesh = regular("demo", dp=dp, pp=2)
    squares = np.exp(rng.normal(0, 0.3, (steps, dp)))[:, mesh.on("dp")]
    tokens = np.exp(rng.normal(0, 0.02, (steps, dp)))[:, mesh.on("dp")]
    noise = rng.normal(0, 0.003, squares.shape)
    seconds = (0.5 * tokens + 0.5 * squares + np.where(mesh.on("pp") == 1, 0.6, 0.0)) * np.exp(noise)
    members = [np.flatnonzero(mesh.on("pp") == stage) for stage in (0, 1)]
    return layout_of(members, mesh.ranks, mesh), np.log(seconds), np.stack((tokens, squares)), noise


@pytest.mark.parametrize("seed", range(3))
def test_each_way_takes_out_what_it_can(seed: int) -> None:
    layout, x, work, _ = lengths_job(seed)
    normalizer = Normalizer()
    normalizer.fit(layout, x, work, np.ones(x.shape[1], np.bool_))
    role, cross, covariate = (np.std(r) for r in normalizer.residuals(layout, x, work))
    assert role > 0.1
    assert cross < 0.03, "tokens are another part of the work: one relation cannot take out both"
    assert covariate == pytest.approx(0.003, rel=0.2)


def test_a_fit_survives_a_sick_rank_among_its_teachers() -> None:
    layout, x, work, _ = lengths_job(0)
    x[:, 5] += np.log(1.5)
    normalizer = Normalizer()
    normalizer.fit(layout, x, work, np.ones(x.shape[1], np.bool_))
    residual = normalizer.residuals(layout, x, work)[2] * layout.scale
    assert np.median(residual[:, 5]) == pytest.approx(np.log(1.5), abs=0.02)
    assert np.abs(np.median(np.delete(residual, 5, axis=1), axis=0)).max() < 0.01


def test_a_fit_says_nothing_of_more_work_than_it_has_seen() -> None:
    layout, x, work, _ = lengths_job(3)
    normalizer = Normalizer()
    normalizer.fit(layout, x, work, np.ones(x.shape[1], np.bool_))
    assert np.isfinite(normalizer.residuals(layout, x, work)[2]).all()
    more = work.copy()
    more[1, -1] *= np.where(np.arange(x.shape[1]) == 5, 4.0, 1.0)
    unknown = np.flatnonzero(np.isnan(normalizer.residuals(layout, x[-1], more[:, -1])[2]))
    assert unknown.tolist() == [5]


def test_without_axes_or_work_only_the_role_speaks() -> None:
    layout, x, work, _ = lengths_job(0)
    bare = layout_of([np.arange(0, 32, 2), np.arange(1, 32, 2)], np.arange(32), None)
    normalizer = Normalizer()
    normalizer.fit(bare, x, np.full_like(work, np.nan), np.ones(32, np.bool_))
    residual = normalizer.residuals(bare, x[0], np.full_like(work[:, 0], np.nan))
    assert np.isfinite(residual[0]).all()
    assert np.isnan(residual[1:]).all()
    assert layout.replicas is not None
    assert bare.replicas is None


NAN = float("nan")


@pytest.mark.parametrize(
    ("members", "spread"), [(1, np.sqrt(2)), (2, np.sqrt(2)), (3, np.sqrt(1 + 1 / (1 + 2 / np.pi)))]
)
def test_how_much_a_residual_against_few_others_spreads(members: int, spread: float) -> None:
    assert scale_of(np.array([members]))[0] == pytest.approx(spread)


@pytest.mark.parametrize(
    ("x", "residual"),
    [
        ([1.0, 3.0], [-2.0, 2.0]),
        ([1.0, 3.0, 4.0], [-2.5, 0.5, 2.0]),
        ([1.0, 3.0, NAN], [NAN] * 3),  # of three, two others must have reported
        ([1.0, 3.0, 4.0, NAN], [-2.5, 0.5, 2.0, NAN]),
        ([1.0, NAN], [NAN, NAN]),
    ],
)
def test_against_the_others_of_a_role(x: list[float], residual: list[float]) -> None:
    roles = PeerTable([np.arange(len(x))], len(x))
    assert _against_others(roles, np.array(x)).tolist() == pytest.approx(residual, nan_ok=True)


def test_of_four_others_the_mean_counts_and_of_five_the_median() -> None:
    role = np.log1p(np.array([0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]))
    replicas = PeerTable([np.arange(5), np.arange(5, 11)], 11)
    assert _shared(replicas, role).tolist() == pytest.approx([0.25] * 4 + [0.0] * 7)


@pytest.mark.parametrize(
    ("b", "count", "slope"),
    [(0.5, 16, 0.5), (0.5, 15, None), (-1.0, 16, 0.0), (3.5, 16, 3.5), (5.0, 16, 4.0), (0.0, 16, 0.0)],
)
def test_the_slope_of_a_stage_against_the_others(b: float, count: int, slope: float | None) -> None:
    u = np.linspace(-1.0, 1.0, count)
    found = _slope(b * u, u)
    assert found == (None if slope is None else pytest.approx(slope))
    assert _slope(u, 0.0 * u) == (None if slope is None else 0.0)


def test_what_lies_beyond_three_deviations_is_left_out() -> None:
    residual = np.array([1.0, -1.0] * 10 + [4.4, -4.4, 4.5, -4.5])  # the deviation is 1.4826
    assert _inliers(residual).tolist() == [True] * 22 + [False] * 2
    assert _inliers(residual + 100.0).all(), "less than half would be left"
    half = np.array([0.0, 0.0, 9.0, 9.0])  # the middle and the deviation from it are 4.5
    assert _inliers(half + 11.0).tolist() == [True] * 4, "the limit is 20.0"
    assert _inliers(half + 11.1).tolist() == [True, True, False, False], "half is enough"


@pytest.mark.parametrize("count", [15, 16])
def test_seconds_fixed_a_token_and_a_square(count: int) -> None:
    rng = np.random.default_rng(0)
    work = rng.uniform(1.0, 2.0, (2, count))
    found = fit_cost(1.0 + 2.0 * work[0] + 3.0 * work[1], work)
    assert (found is None) is (count == 15)
    if found is not None:
        assert found.tolist() == pytest.approx([1.0, 2.0, 3.0], rel=0.01)


@pytest.mark.parametrize(("size", "kept", "last"), [(4096, 4096, 4095), (4097, 2049, 4096), (8193, 2731, 8190)])
def test_rank_steps_are_thinned_evenly(size: int, kept: int, last: int) -> None:
    columns = np.stack((np.arange(size, dtype=float), np.ones(size)))[:, None, :]
    found = _some(columns)
    assert (found.shape, found[0, -1]) == ((2, kept), last)
    columns[1, 0, 0] = NAN
    assert _some(columns)[0, 0] == 1.0, "only what is complete"


def test_who_shares_a_replica_and_who_stands_outside_the_mesh() -> None:
    mesh = regular("demo", dp=2, pp=2)  # rank = 2 dp + pp
    ranks = np.array([3, 2, 1, 0, 9, 8])
    layout = layout_of([np.array([0, 2, 4]), np.array([1, 3, 5])], ranks, mesh)
    assert [rows.tolist() for rows in layout.roles.lines] == [[2, 0, 4], [3, 1, 5]], "in order of rank numbers"
    assert layout.replicas is not None
    assert [ranks[rows].tolist() for rows in layout.replicas.lines] == [[0, 1], [2, 3]]
    assert layout.replicas.count.tolist() == [2, 2, 2, 2, 0, 0]
    assert layout.scale.tolist() == pytest.approx([np.sqrt(1 + 1 / (1 + 2 / np.pi))] * 6)
    alone = layout_of([np.arange(2)], np.arange(2), regular("demo", dp=2))
    assert alone.replicas is None
    pipe = layout_of([np.array([0]), np.array([1])], np.arange(2), regular("demo", pp=2))
    assert pipe.replicas is not None


def test_a_fit_looks_at_the_newest_steps_of_calm_ranks() -> None:
    """Of 32,768 ranks the newest five steps, since two of them are 65,536 rank-steps; of 8,192 ranks eight."""
    for ranks, steps in ((32_768, 5), (8_192, 8)):
        layout = layout_of([np.arange(ranks)], np.arange(ranks), None)
        x = np.zeros((9, ranks))
        x[: 9 - steps] = np.log(100.0)  # older steps took a hundred times as long
        x[:, 0] = np.log(1e6)
        calm = np.arange(ranks) > 0
        normalizer = Normalizer()
        normalizer.fit(layout, x, np.zeros((2, 9, ranks)), calm)
        assert normalizer.costs[0][0] == pytest.approx(1.0, rel=1e-3)
        assert (normalizer.ways, normalizer.slopes) == (2, {})


def test_the_other_ways_are_residuals_of_one_rank_as_well() -> None:
    layout, x, work, _ = lengths_job(0, dp=4)
    normalizer = Normalizer()
    assert normalizer.ways == 1
    normalizer.most = dict.fromkeys((0, 1), np.full(2, np.inf))
    normalizer.slopes, normalizer.costs = {0: 0.5, 1: 2.0}, {0: np.array([0.1, 0.2, 0.3]), 1: np.array([0.3, 0.2, 0.1])}
    assert normalizer.ways == 3
    role, cross, covariate = normalizer.residuals(layout, x[0], work[:, 0]) * layout.scale
    row, others = 2, [0, 4, 6]  # of stage 0; rank 3 is the other of its replica

    def against(values: Floats) -> float:
        return float(values[row] - np.median(values[others]))

    y = np.expm1(role)
    expected = np.log(0.1 + 0.2 * work[0, 0] + 0.3 * work[1, 0])
    shared = np.log1p(0.5 * y[[r + 1 for r in range(0, 8, 2)]])
    told = dict(zip(range(0, 8, 2), role[::2] - shared, strict=True))
    assert role[row] == pytest.approx(against(x[0]))
    assert covariate[row] == pytest.approx(against(x[0] - expected))
    assert cross[row] == pytest.approx(told[row] - float(np.median([told[r] for r in others])))
