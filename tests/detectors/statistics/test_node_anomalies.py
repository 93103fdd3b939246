"""Rare for the node and for the fleet: one restless node does not deafen others, and a change that stays is learned."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mainstay.detectors.entity_state import EntityState
from mainstay.detectors.finding import Entity
from mainstay.detectors.statistics.node_anomalies import NodeAnomalies, NodeAnomalyConfig

SIGNALS, DAY, LENGTH = 5, 100, 3000
CONFIG = NodeAnomalyConfig(learned=50, memory=10 * DAY, rate=0.5 / DAY, usual=2.0, calm=3, accepted=2 * DAY)


def run(x: np.ndarray, config: NodeAnomalyConfig = CONFIG) -> np.ndarray:
    """[T, E] whether an anomaly of a node stands."""
    anomalies, rows = NodeAnomalies(np.full(SIGNALS, 1e-3), config), EntityState()
    anomalies.declare(rows).align(tuple(Entity(node=f"n{n}") for n in range(x.shape[2])))
    stands = np.zeros((len(x), x.shape[2]), np.bool_)
    for at, sample in enumerate(x):
        anomalies.step(rows, sample)
        stands[at] = anomalies.latch.on(rows)
    return stands


def signals(seed: int, nodes: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(LENGTH, SIGNALS, nodes))


def begun(stands: np.ndarray) -> np.ndarray:
    """[E] how many anomalies begin."""
    return np.asarray((np.diff(stands.astype(np.int8), axis=0) > 0).sum(axis=0))


def test_a_restless_node_does_not_deafen_the_others() -> None:
    x = signals(0, 8)
    bursts = np.random.default_rng(1).random(LENGTH) < 0.02
    x[bursts, :, 0] *= 6.0  # single samples, so that nothing of them is ever said
    x[-40:-20, 0, 5] += 7.0
    stands = run(x)
    assert stands[-40:-20, 5].any()
    assert begun(stands).sum() <= 0.5 * LENGTH / DAY


def test_anomalies_of_the_fleet_keep_to_the_budget() -> None:
    x = signals(2, 8)
    wild = np.arange(LENGTH) > LENGTH // 2
    x[wild] *= 3.0
    asked = CONFIG.rate * LENGTH
    assert asked / 4 <= begun(run(x)).sum() <= asked + 12  # what is left when the threshold was never asked for


def test_a_change_that_stays_ends_sooner_than_one_that_is_never_accepted() -> None:
    x = signals(3, 4)
    x[1200:, 0, 2] += 6.0
    accepted, never = (run(x, config)[:, 2] for config in (CONFIG, replace(CONFIG, accepted=LENGTH)))
    assert accepted[1200 : 1200 + CONFIG.accepted].mean() > 0.9
    assert accepted[-5 * DAY :].mean() < 0.1
    assert never.sum() > 1.25 * accepted.sum()
