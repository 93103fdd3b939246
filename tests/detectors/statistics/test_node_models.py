"""Models of many nodes at once: scikit-learn's shrinkage, each node's own past, and nothing from gaps."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.covariance import OAS

from mainstay.detectors.entity_state import EntityState
from mainstay.detectors.finding import Entity
from mainstay.detectors.statistics.node_models import REFRESH, NodeModels

SIGNALS, NODES = 5, 3


def model(learned: int = 50) -> tuple[NodeModels, EntityState]:
    models = NodeModels(np.full(SIGNALS, 1e-3), memory=1e6, learned=learned)
    rows = models.declare(EntityState())
    rows.align(tuple(Entity(node=f"n{n}") for n in range(NODES)))
    return models, rows


def signals(seed: int, length: int) -> np.ndarray:
    """[T, S, E], of two common factors."""
    rng = np.random.default_rng(seed)
    mix = np.random.default_rng(9).normal(size=(SIGNALS, 2))
    noise = 0.3 * rng.normal(size=(length, SIGNALS, NODES))
    return np.asarray(np.einsum("sf,tfe->tse", mix, rng.normal(size=(length, 2, NODES))) + noise)


def test_the_shrunk_inverse_is_that_of_scikit_learn() -> None:
    models, rows = model()
    z = signals(0, 200)
    rows["correlation"] = np.einsum("tie,tje->ije", z, z) / len(z)
    rows["age"] = np.full(NODES, len(z))
    rows["before"] = z[-1]
    models._invert(rows, np.arange(NODES))
    for node in range(NODES):
        expected = OAS(assume_centered=True).fit(z[:, :, node]).precision_
        np.testing.assert_allclose(rows["precision"][:, :, node], expected, rtol=1e-3, atol=1e-4)


def test_scores_are_standard_for_healthy_samples_and_high_for_another_mix() -> None:
    models, rows = model()
    x = signals(1, 1500)
    scores = np.array([models.update(rows, sample) for sample in x])
    assert np.isnan(scores[:50]).all()
    later = scores[500:]
    np.testing.assert_allclose(later.mean(axis=0), 0.0, atol=0.4)
    np.testing.assert_allclose(later.std(axis=0), 1.0, atol=0.25)
    odd = x[-1].copy()
    odd[:, 1] = x[-200:, :, 1].std(axis=0) * np.array([1.5, -1.5, 1.5, 1.5, -1.5])
    level = models.update(rows, odd)[0]
    assert level[1] > 4.0
    assert np.abs(level[[0, 2]]).max() < 4.0


def test_signals_that_move_more_are_unrest_and_a_new_level_comes_to_rest() -> None:
    models, rows = model()
    x = np.concatenate([signals(2, 600), 6.0 + signals(3, 60)])
    x[630:, 3, 0] += np.random.default_rng(4).normal(0.0, 8.0, 30)
    scores = np.array([models.update(rows, sample) for sample in x])
    assert scores[600:603, 1].min() > 2.0
    assert np.abs(scores[625:, 1, 1:]).max() < 2.0
    assert np.median(scores[640:, 1, 0]) > 2.0
    assert models.culprits(rows, x[-1, :, 0], 0).argmax() == 3


@pytest.mark.parametrize("gap", [1, 7])
def test_what_is_missing_teaches_nothing_and_is_not_judged(gap: int) -> None:
    models, rows = model()
    for sample in signals(5, 20 * REFRESH):
        models.update(rows, sample)
    before = {name: rows[name].copy() for name in ("mean", "variance", "correlation", "age", "log_mean")}
    for _ in range(gap):
        assert np.isnan(models.update(rows, np.full((SIGNALS, NODES), np.nan))).all()
    for name, value in before.items():
        np.testing.assert_array_equal(rows[name], value)


def test_a_change_that_stays_is_unusual_for_days_and_then_usual() -> None:
    models = NodeModels(np.full(SIGNALS, 1e-3), memory=1000, learned=50)  # ten days of 100 samples
    rows = models.declare(EntityState())
    rows.align((Entity(node="n"),))
    x = signals(6, 3000)[:, :, :1]
    x[1200:, 0] += 8.0
    scores = np.array([models.update(rows, sample) for sample in x])
    unusual = (scores.max(axis=1)[:, 0] > 3.0).reshape(-1, 100).mean(axis=1)
    assert unusual[12] > 0.9
    assert unusual[-5:].max() < 0.1


def test_anomalies_that_come_again_are_hardly_learned() -> None:
    models = NodeModels(np.full(SIGNALS, 1e-3), memory=1000, learned=50)
    rows = models.declare(EntityState())
    rows.align(tuple(Entity(node=f"n{n}") for n in range(NODES)))
    x = signals(7, 3000)
    again = np.arange(len(x)) % 200 < 20
    x[again & (np.arange(len(x)) > 1000), 0] += 8.0
    scores = np.array([models.update(rows, sample) for sample in x])[:, 0]
    assert (scores[2600:][again[2600:]] > 3.0).mean() > 0.9
