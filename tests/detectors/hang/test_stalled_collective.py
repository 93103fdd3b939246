"""Cards that spin in a collective are noticed together; light work, idle cards and new jobs are not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

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


@pytest.mark.slow
def test_a_healthy_fleet_is_quiet() -> None:
    detector = StalledCollectiveDetector()
    assert [f for part in healthy_chunks(800, 5400, 3) for f in detector.update(part)] == []


def even(*parts: tuple[int, float], limit: float = 700.0, gpus: int = 2) -> Samples:
    """One node whose cards are full all the time and draw so many watts for so many seconds, without noise."""
    watts = np.concatenate([np.full(seconds, float(draw), np.float32) for seconds, draw in parts])
    data = fleet(0, gpus=gpus, seconds=len(watts))
    data.x[:, UTIL], data.x[:, POWER], data.x[:, LIMIT] = 1.0, watts[:, None], limit
    return data


def seconds_of(data: Samples, detector: StalledCollectiveDetector | None = None) -> list[tuple[float, bool]]:
    return [(f.time - 1.7e9, f.active) for f in (detector or StalledCollectiveDetector()).update(data)]


def test_when_it_is_told_and_when_it_is_over() -> None:
    """A fall by 410 W leaves a mean change of 41 W, which a tenth a second brings below 15 W in ten seconds.

    The finding comes after 60 s of that, is severe after 300 s, and ends with the fifth second of work.
    """
    data = even((120, 600), (320, 190), (20, 600))
    assert seconds_of(data) == [(120 + 10 + 59, True), (120 + 10 + 299, True), (440 + 4, False)]
    told, grave, _ = findings_of(data)
    assert told.evidence.numbers == {"waiting": 2, "busy": 2, "watts": 190, "busy_watts": 600, "seconds": 60}
    assert told.evidence.summary == (
        "2 of 2 busy GPUs of n0 are fully used at 190 W instead of 600 W for 60 s: their job waits for another rank."
    )
    assert told.evidence.series[0].threshold == pytest.approx(0.55 * 600)
    assert (told.severity, grave.severity, grave.evidence.numbers["seconds"]) == (Severity.INFO, Severity.WARNING, 300)


@pytest.mark.parametrize(
    ("learned", "watts", "stalled", "limit", "told"),
    [
        (120, 600, 190, 700, True),
        (119, 600, 190, 700, False),  # two minutes of work make a card's busy power known
        (120, 600, 325, 700, True),
        (120, 600, 335, 700, False),  # 55 % of its busy power
        (120, 360, 100, 700, True),
        (120, 340, 100, 700, False),  # work below half of the limit is too light
        (120, 340, 100, 680, True),
        (120, 600, 190, np.nan, False),
    ],
)
def test_what_is_known_to_wait(learned: int, watts: float, stalled: float, limit: float, told: bool) -> None:
    assert bool(seconds_of(even((learned, watts), (110, stalled), limit=limit))) is told


@pytest.mark.parametrize(("full", "told"), [(0.98, True), (0.97, False)])
def test_a_card_that_is_not_full_works(full: float, told: bool) -> None:
    data = even((120, 600), (100, 190))
    data.x[120:, UTIL] = full
    assert bool(seconds_of(data)) is told


@pytest.mark.parametrize(("change", "told"), [(14.0, True), (16.0, False)])
def test_a_power_that_changes_from_second_to_second_is_work(change: float, told: bool) -> None:
    data = even((120, 600), (200, 190))
    data.x[120:, POWER] += change * (np.arange(200) % 2)[:, None]
    assert bool(seconds_of(data)) is told


@pytest.mark.parametrize(
    ("signal", "value", "seconds", "over"),
    [
        (UTIL, 0.0, 30, True),  # rest of half a minute belongs to the end of a job
        (UTIL, 0.049, 30, True),
        (UTIL, 0.051, 30, False),
        (UTIL, 0.0, 29, False),
        (UTIL, np.nan, 40, False),
        (MEMORY, 1.3e10, 1, True),  # so is memory given back: less than a fifth of the most
        (MEMORY, 1.5e10, 1, False),
        (MEMORY, np.nan, 1, False),
    ],
)
def test_what_ends_a_run_of_work(signal: int, value: float, seconds: int, over: bool) -> None:
    """After it the new job's busy power is unknown, and what follows tells nothing."""
    data = even((120, 600), (seconds, 600), (120, 190))
    data.x[120 : 120 + seconds, signal] = value
    assert bool(seconds_of(data)) is not over


def test_the_next_job_is_learned_for_as_long_as_the_first() -> None:
    for work in (119, 120):
        data = even((150, 600), (30, 600), (work, 500), (110, 190))
        data.x[150:180, UTIL] = 0.0
        assert len(seconds_of(data)) == work - 119


def test_what_a_card_waited_in_an_earlier_job_counts_no_more() -> None:
    config = StalledCollectiveDetector.Config(learning_seconds=1.0, steady_watts=1e9, info_seconds=60.0)
    data = even((1, 600), (50, 190), (1, 600), (70, 190))
    data.x[51, MEMORY] = 1e9
    # The first job waited for 50 s. The second has its one second of work at 51 and waits from then on.
    assert seconds_of(data, StalledCollectiveDetector(config)) == [(51 + 60, True)]


@pytest.mark.parametrize(
    ("waiting", "cards", "told"),
    [(1, 1, False), (1, 2, False), (2, 2, True), (2, 4, True), (2, 5, False), (3, 6, True), (3, 7, False)],
)
def test_half_of_the_busy_cards_must_wait_and_at_least_two(waiting: int, cards: int, told: bool) -> None:
    data = even((120, 600), (100, 600), gpus=cards)
    data.x[120:, POWER, :waiting] = 190.0
    assert bool(seconds_of(data)) is told


def test_when_the_card_that_speaks_leaves_the_next_one_speaks() -> None:
    data, detector = even((120, 600), (100, 190), gpus=3), StalledCollectiveDetector()
    (held,) = detector.update(data)
    assert held.confidence == 0.8
    silent = data.part(219, 220)
    rest = replace(silent, entities=silent.entities[1:], groups=silent.groups[1:], x=silent.x[:, :, 1:])
    assert [(f.entity.device, f.active) for f in detector.update(rest)] == [("GPU-0", False), ("GPU-1", True)]
