"""The healthy fleet is the measure of false alarms: it must be repeatable, plausible, and not too calm."""

from __future__ import annotations

import numpy as np

from mainstay.probes.signals import SIGNALS as DECLARED
from tests.detectors.healthy import ROW, SIGNALS, SLOW, HealthyFleet, healthy_chunks


def test_the_same_seed_gives_the_same_bytes_in_whatever_chunks() -> None:
    whole = next(iter(healthy_chunks(64, 120, 5, chunk=120)))
    parts = list(healthy_chunks(64, 120, 5, chunk=7))
    assert np.concatenate([p.x for p in parts]).tobytes() == whole.x.tobytes()
    assert np.concatenate([p.t for p in parts]).tobytes() == whole.t.tobytes()
    assert next(iter(healthy_chunks(64, 120, 6, chunk=120))).x.tobytes() != whole.x.tobytes()


def test_every_value_is_of_a_declared_signal_and_in_its_range() -> None:
    for part in healthy_chunks(256, 600, 1, chunk=300):
        for row, name in enumerate(SIGNALS):
            values = part.x[:, row][np.isfinite(part.x[:, row])]
            assert len(values), name
            assert values.min() >= DECLARED[name].low, name
            assert values.max() <= DECLARED[name].high, name


def test_slow_signals_stand_in_every_tenth_second() -> None:
    """A first reading of a counter has no rate."""
    part = HealthyFleet(64, 1).next(100)
    for name in SLOW:
        assert np.isfinite(part.x[:, ROW[name]]).sum(axis=0).max() in {9, 10}, name


def test_jobs_come_and_go_and_nodes_boot() -> None:
    fleet = HealthyFleet(256, 1)
    fleet.reboot(3, 60.0)
    part = fleet.next(3600)
    node = slice(3 * 8, 4 * 8)
    assert np.isnan(part.x[:50, :, node]).all(), "it is away"
    assert np.nanmin(part.x[60:, ROW["uptime_seconds"], node]) < 120, "and comes back as a young one"
    load = part.x[:, ROW["gpu_utilization_ratio"]]
    assert 0.3 < np.nanmean(load > 0.5) < 0.99
    changes = np.abs(np.diff(load > 0.5, axis=0)).sum(axis=0)
    assert (changes > 0).mean() > 0.5, "most cards saw a job begin, end or write a checkpoint"
