"""Cards that spin in a collective are noticed together; light work, idle cards and new jobs are not."""

from __future__ import annotations

import numpy as np

from mainstay.detectors.base import Samples
from mainstay.detectors.finding import Entity, Finding, FindingKind
from mainstay.detectors.hang.stalled_collective import StalledCollectiveDetector
from mainstay.probes.core_types import Severity
from tests.detectors.healthy import healthy_chunks

SIGNALS = ("gpu_utilization_ratio", "gpu_power_watts", "gpu_power_limit_watts", "gpu_memory_used_bytes")
UTIL, POWER, LIMIT, MEMORY = range(4)


def fleet(seed: int, gpus: int = 16, seconds: int = 400, watts: float = 620.0) -> Samples:
    """Nodes of eight that train: full, with a dip a step, and fluctuating power."""
    rng = np.random.default_rng(seed)
    x = np.empty((seconds, 4, gpus), np.float32)
    x[:, UTIL] = np.clip(0.985 + 0.02 * rng.standard_normal((seconds, gpus)), 0, 1)
    x[:, POWER] = watts + 30 * rng.standard_normal((seconds, gpus))
    x[:, LIMIT] = np.where(np.arange(seconds) % 10 == 3, 700.0, np.nan)[:, None]
    x[:, MEMORY] = 7e10
    return Samples(
        entities=tuple(Entity(node=f"n{i // 8}", device=f"GPU-{i}") for i in range(gpus)),
        groups=("pod/H100",) * gpus,
        signals=SIGNALS,
        t=1.7e9 + np.arange(seconds, dtype=np.float64),
        x=x,
    )


def stall(data: Samples, where: slice, *, start: int = 200, stop: int | None = None, watts: float = 190.0) -> Samples:
    data.x[start:stop, UTIL, where] = 1.0
    noise = np.random.default_rng(1).standard_normal(data.x[start:stop, POWER, where].shape)
    data.x[start:stop, POWER, where] = watts + 2 * noise
    return data


def findings_of(data: Samples) -> list[Finding]:
    return StalledCollectiveDetector().update(data)


def example(seed: int) -> Samples:
    return stall(fleet(seed), slice(0, 8))


def others() -> list[Samples]:
    return [stall(fleet(0, seconds=700), slice(0, 8)), stall(fleet(1), slice(0, 8), stop=300)]


def test_a_hung_collective_is_noticed_after_a_minute_once_for_its_node() -> None:
    data = example(0)
    (finding,) = findings_of(data)
    assert (finding.kind, finding.severity) == (FindingKind.STALLED_COLLECTIVE, Severity.INFO)
    assert finding.entity.node == "n0"
    assert 255 <= finding.time - data.t[0] <= 285
    assert finding.evidence.numbers["waiting"] == 8
    assert not finding.recommended_action.evicts


def test_after_five_minutes_it_is_a_warning() -> None:
    found = findings_of(stall(fleet(0, seconds=700), slice(0, 8)))
    assert [f.severity for f in found] == [Severity.INFO, Severity.WARNING]
    assert found[0].key == found[1].key


def test_it_ends_when_work_goes_on_and_when_the_job_is_killed() -> None:
    assert [f.active for f in findings_of(stall(fleet(0), slice(0, 8), stop=300))] == [True, False]
    killed = stall(fleet(0), slice(0, 8), stop=300)
    killed.x[300:, UTIL], killed.x[300:, POWER], killed.x[300:, MEMORY] = 0.0, 80.0, 5e8
    assert [f.active for f in findings_of(killed)] == [True, False]


def test_one_card_alone_proves_nothing() -> None:
    assert findings_of(stall(fleet(0), slice(3, 4))) == []


def test_light_work_from_the_start_is_light_work() -> None:
    assert findings_of(stall(fleet(0), slice(None), start=0)) == []


def test_a_lighter_job_that_comes_next_is_not_a_hang() -> None:
    data = fleet(0, seconds=900)
    data.x[200:260, UTIL], data.x[200:260, POWER], data.x[200:260, MEMORY] = 0.0, 80.0, 5e8
    assert findings_of(stall(data, slice(None), start=260)) == []
    quick = fleet(0, seconds=900)  # the next process starts at once, but memory was given back
    quick.x[200:203, MEMORY] = 5e8
    quick.x[200:203, UTIL] = 0.0
    assert findings_of(stall(quick, slice(None), start=203)) == []


def test_small_kernels_with_changing_power_are_work() -> None:
    data = stall(fleet(0), slice(0, 8))
    data.x[200:, POWER, :8] += 60 * (np.arange(200) % 2)[:, None]
    assert findings_of(data) == []


def test_idle_cards_and_checkpoints_are_quiet() -> None:
    data = fleet(0)
    for start in range(150, 400, 60):
        data.x[start : start + 20, UTIL], data.x[start : start + 20, POWER] = 0.0, 90.0
    assert findings_of(data) == []


def test_a_healthy_fleet_is_quiet() -> None:
    detector = StalledCollectiveDetector()
    assert [f for part in healthy_chunks(800, 5400, 3) for f in detector.update(part)] == []
