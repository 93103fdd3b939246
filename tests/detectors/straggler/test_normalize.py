"""Order statistics among others, and the three ways to say what a rank's compute should have been."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.lib_mesh import regular
from mainstay.detectors.base import Floats
from mainstay.detectors.straggler.normalize import Normalizer, PeerLayout, PeerTable, layout_of, scale_of

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
