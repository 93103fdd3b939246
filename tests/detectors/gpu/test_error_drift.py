"""Trends of corrected errors are found a day ahead, bursts at once; bursts, differences and job starts are neither."""

from __future__ import annotations

import numpy as np
import pytest

from mainstay.detectors.base import Samples
from mainstay.detectors.finding import Entity, Finding, FindingKind
from mainstay.detectors.gpu.context import UTILIZATION
from mainstay.detectors.gpu.error_drift import COUNTERS, DriftDetector
from mainstay.detectors.statistics.poisson_cusum import Counter
from mainstay.probes.core_types import Severity

ECC, REPLAY, RECOVERY = "gpu_ecc_corrected_total", "gpu_pcie_replay_total", "gpu_pcie_recoveries_total"
SIGNALS = (*(c.name for c in COUNTERS), UTILIZATION)
STEP = 60.0  # what the detector sums up anyway
HOUR = 3600.0


def fleet(seed: int, hours: float, gpus: int = 32, per_hour: float = 0.05) -> Samples:
    """Readings each minute of GPUs at work, whose corrected errors come alone, ``per_hour`` each."""
    rng = np.random.default_rng(seed)
    t = 1.7e9 + np.arange(0, hours * HOUR, STEP)
    x = np.zeros((len(t), len(SIGNALS), gpus), np.float32)
    x[:, 0] = rng.poisson(per_hour * STEP / HOUR, (len(t), gpus)) / STEP
    x[:, -1] = 0.97
    return Samples(
        entities=tuple(Entity(node=f"n{i // 8}", device=f"GPU-{i}") for i in range(gpus)),
        groups=("pod/H100",) * gpus,
        signals=SIGNALS,
        t=t,
        x=x,
    )


def put(data: Samples, name: str, row: int, per_hour: np.ndarray | float, seed: int = 7) -> Samples:
    """Events of a Poisson process with the given rate."""
    rate = np.broadcast_to(np.asarray(per_hour, float), data.t.shape)
    data.x[:, data.signals.index(name), row] = np.random.default_rng(seed).poisson(rate * STEP / HOUR) / STEP
    return data


def findings_of(data: Samples) -> list[Finding]:
    return DriftDetector().update(data)


def side_by_side(*parts: Samples) -> Samples:
    """Fleets at the same times, each a cohort of its own: one detector judges them in one pass. Where one ends before
    the longest, nothing is read any more."""
    longest = max(parts, key=lambda part: len(part.t))
    shapes = [(len(longest.t) - len(part.t), len(SIGNALS), part.x.shape[2]) for part in parts]
    xs = [
        np.concatenate([part.x, np.full(shape, np.nan, np.float32)]) for part, shape in zip(parts, shapes, strict=True)
    ]
    return Samples(
        entities=tuple(Entity(node=f"{n}-{e.node}", device=e.device) for n, p in enumerate(parts) for e in p.entities),
        groups=tuple(f"{n}-{group}" for n, part in enumerate(parts) for group in part.groups),
        signals=SIGNALS,
        t=longest.t,
        x=np.concatenate(xs, axis=2),
    )


def since(data: Samples) -> np.ndarray:
    return (data.t - data.t[0]) / HOUR


def example(seed: int) -> Samples:
    data = fleet(seed, 5.0)
    data.x[100:, 0, 5] = 9000.0
    data.x[150:, SIGNALS.index(REPLAY), 3] = 4.0
    return data


def ramp(seed: int) -> Samples:
    """Doubling every eight hours from one error in 20 h; after 80 h it is 51 an hour, and then the card fails."""
    data = fleet(seed, 80)
    return put(data, ECC, 5, 0.05 * 2 ** (since(data) / 8), seed)


def test_a_ramp_is_found_more_than_a_day_before_it_ends() -> None:
    parts = [ramp(seed) for seed in range(3)]
    data = side_by_side(*parts)
    found = findings_of(data)
    assert sorted(f.entity.key for f in found) == [data.entities[n * 32 + 5].key for n in range(3)]
    for finding in found:
        assert finding.kind is FindingKind.ECC_CORRECTED
        assert (finding.severity, finding.recommended_action.evicts) == (Severity.WARNING, False)
        assert finding.time <= data.t[-1] - 24 * HOUR
        assert "come more often" in finding.evidence.summary
        assert finding.evidence.series[0].y


def test_a_burst_is_found_in_two_readings() -> None:
    data = fleet(0, 4.0)
    data.x[100:, 0, 5] = 4600.0
    (finding,) = findings_of(data)
    assert finding.time == data.t[101]
    assert "4600 corrected memory errors a second" in finding.evidence.summary


def test_pcie_errors_that_set_in_are_found_within_hours() -> None:
    parts = [fleet(0, 24) for _ in range(3)]
    for data, name in zip(parts, (REPLAY, "gpu_pcie_correctable_errors_total", RECOVERY), strict=True):
        put(data, name, 5, np.where(since(data) > 12, 40.0, 0.0))
    data = side_by_side(*parts)
    found = findings_of(data)
    assert sorted(f.entity.key for f in found) == [data.entities[n * 32 + 5].key for n in range(3)]
    for finding in found:
        assert finding.kind is FindingKind.PCIE_DEGRADED
        assert 12 * HOUR <= finding.time - data.t[0] <= 14 * HOUR


def cards_that_always_differ() -> Samples:
    """Rates from nothing to 20 an hour, a heavy tail: one is not another's standard."""
    data = fleet(0, 48, gpus=64)
    rates = np.random.default_rng(3).gamma(0.1, 2.0, 64)
    rates[:2] = 20.0
    for row, rate in enumerate(rates):
        put(data, ECC, row, rate, seed=row)
    return data


def single_bursts() -> Samples:
    """Three readings of each card hold up to 40 events."""
    data = fleet(0, 48, per_hour=0.0)
    rng = np.random.default_rng(1)
    for row in range(32):
        for at in rng.choice(len(data.t), 3, replace=False):
            data.x[at, 0, row] = rng.integers(1, 40)
    return data


def test_links_that_retrain_when_jobs_come_and_go_are_not_counted() -> None:
    data = fleet(0, 12)
    at_work = (np.arange(len(data.t)) // 20) % 2 == 0  # work and rest change every 20 minutes
    data.x[:, -1] = at_work[:, None] * 0.97
    data.x[:, SIGNALS.index(RECOVERY)] = np.where(at_work ^ np.roll(at_work, 1), 0.5, 0.0)[:, None]
    assert findings_of(data) == []


def test_missing_readings_and_a_counter_that_begins_anew_are_no_events() -> None:
    data = fleet(0, 24)
    data.x[200:500, :, :8] = np.nan
    data.x[np.random.default_rng(0).random(data.x.shape) < 0.05] = np.nan
    assert findings_of(data) == []


@pytest.mark.slow
def test_differences_are_learned_a_burst_is_one_event_and_a_finding_ends_when_the_rate_is_usual_again() -> None:
    data = fleet(0, 84)
    put(data, ECC, 5, np.where((since(data) > 12) & (since(data) < 20), 30.0, 0.05))
    found = findings_of(side_by_side(data, cards_that_always_differ(), single_bursts()))
    begins, ends = found
    assert begins.entity == ends.entity == Entity(node="0-n0", device="GPU-5")
    assert (begins.active, ends.active) == (True, False)
    assert "usual rate" in ends.evidence.summary


@pytest.mark.slow
def test_the_budget_of_false_alarms_is_kept() -> None:
    """10,000 cards for a day of ordinary Poisson errors: not one alarm."""
    detector, rng, found = DriftDetector(), np.random.default_rng(5), []
    data = fleet(0, 0.1, gpus=10_000)
    rates = rng.gamma(0.2, 0.3, 10_000)
    for k in range(1440):  # a minute a time: the bins are minutes
        x = np.zeros((1, len(SIGNALS), 10_000), np.float32)
        x[0, 0] = rng.poisson(rates / 60) / 60
        x[0, 3] = rng.poisson(rates[::-1] / 60) / 60
        x[0, -1] = 0.97
        part = Samples(entities=data.entities, groups=data.groups, signals=SIGNALS, t=np.array([1.7e9 + 60.0 * k]), x=x)
        found += detector.update(part)
    assert found == []


def test_what_happens_at_work_is_watched_from_fifteen_seconds_of_it_on() -> None:
    """Of the seconds 0 to 20 that end at second 20: fifteen to twenty of uninterrupted work, one to twenty of all."""
    seconds = np.arange(21.0)
    x = np.zeros((21, len(SIGNALS), 3), np.float32)
    x[:, -1] = 0.5
    x[3, -1, 1], x[3, -1, 2] = 0.49, np.nan
    data = Samples(
        entities=tuple(Entity(node="n0", device=f"GPU-{i}") for i in range(3)),
        groups=("pod/H100",) * 3,
        signals=SIGNALS,
        t=1.7e9 + 15.0 + seconds,  # no minute of either counter ends in between
        x=x,
    )
    detector = DriftDetector()
    assert detector.update(data) == []
    watched = detector.rows["bin_seconds"]
    assert watched[SIGNALS.index(RECOVERY)].tolist() == [6.0, 2.0, 2.0]
    assert watched[SIGNALS.index(ECC)].tolist() == [20.0] * 3


@pytest.mark.parametrize("counter", COUNTERS, ids=lambda counter: counter.name)
def test_two_of_three_readings_at_the_rate_of_a_burst(counter: Counter) -> None:
    for rates, told in (((1.0, 0.0, 1.0), True), ((1.0, 0.0, 0.0, 1.0), False), ((0.99, 0.99, 0.99), False)):
        data = fleet(0, 2.0, per_hour=0.0)
        column = data.x[:, SIGNALS.index(counter.name), 3]
        column[10 : 10 + len(rates)] = counter.burst * np.array(rates)
        found = [f for f in findings_of(data.part(0, 14)) if f.active]
        assert [f.entity for f in found] == [data.entities[3]] * told
        if told:
            memory = counter.name.startswith(("gpu_ecc", "gpu_remapped"))
            assert found[0].kind is (FindingKind.ECC_CORRECTED if memory else FindingKind.PCIE_DEGRADED)
            assert list(found[0].evidence.numbers.values()) == [counter.burst]
            assert f"n0 GPU-3: {counter.burst:.4g} " in found[0].evidence.summary
            assert " a second." in found[0].evidence.summary


def test_a_burst_is_over_after_sixty_calm_readings() -> None:
    data = fleet(0, 2.0, per_hour=0.0)
    data.x[10:14, 0, 3] = 60.0
    begins, ends = findings_of(data)[:2]
    assert (begins.time, ends.time, ends.active) == (data.t[11], data.t[13 + 60], False)
    assert ends.evidence.summary == "Ecc corrected of n0 GPU-3: back at the usual rate."
