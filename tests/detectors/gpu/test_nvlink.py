"""Links that went down and links whose errors speed up are found; boots, reloads and cards without links are quiet."""

from __future__ import annotations

import numpy as np
import pytest

from mainstay.detectors.base import Samples
from mainstay.detectors.finding import Entity, Finding, FindingKind
from mainstay.detectors.gpu.nvlink import COUNTERS, NvlinkDetector
from mainstay.probes.core_types import RecommendedAction, Severity
from tests.detectors.healthy import HealthyFleet, healthy_chunks

ACTIVE, SUPPORTED, WORST = "gpu_nvlinks_active", "gpu_nvlinks_supported", "gpu_nvlink_worst_link"
RECOVERIES, WORST_RATE = "gpu_nvlink_recoveries_total", "gpu_nvlink_worst_link_errors_per_second"
SIGNALS = (ACTIVE, SUPPORTED, WORST, *(c.name for c in COUNTERS), "uptime_seconds")


def fleet(gpus: int = 32, minutes: float = 30, step: float = 10.0, up: float = 18) -> Samples:
    """One reading each ``step`` seconds; all links up, no errors."""
    t = 1.7e9 + np.arange(0, minutes * 60, step)
    x = np.zeros((len(t), len(SIGNALS), gpus), np.float32)
    x[:, 0], x[:, 1], x[:, -1] = up, 18, 1e6
    return Samples(
        entities=tuple(Entity(node=f"n{i // 8}", device=f"GPU-{i}") for i in range(gpus)),
        groups=("pod/H100",) * gpus,
        signals=SIGNALS,
        t=t,
        x=x,
    )


def put(data: Samples, name: str, where: object, value: object, *, start: int = 60, stop: int | None = None) -> Samples:
    data.x[start:stop, data.signals.index(name), where] = value
    return data


def findings_of(data: Samples) -> list[Finding]:
    return NvlinkDetector().update(data)


def example(seed: int) -> Samples:
    data = put(fleet(), ACTIVE, 5, 17)
    return put(put(data, WORST_RATE, 9, 40.0 + seed, start=90), WORST, 9, 3, start=90)


def test_a_link_that_went_down_is_found_in_three_readings() -> None:
    data = put(fleet(), ACTIVE, 5, 17)
    (finding,) = findings_of(data)
    assert (finding.kind, finding.severity, finding.recommended_action) == (
        K,
        Severity.WARNING,
        RecommendedAction.MONITOR,
    )
    assert (finding.entity, finding.time) == (data.entities[5], data.t[62])
    assert "17 up, of 18 before" in finding.evidence.summary


K = FindingKind.NVLINK_ERRORS


def test_a_card_that_lost_all_its_links_is_taken_out_after_five_minutes() -> None:
    first, second = findings_of(put(fleet(), ACTIVE, 5, 0))
    assert (first.severity, second.severity, second.recommended_action) == (
        Severity.WARNING,
        Severity.CRITICAL,
        RecommendedAction.RESET_GPU,
    )
    assert second.time - first.time == 300


def test_down_from_the_start_shows_against_the_peers() -> None:
    """gpud called a GPU with all links inactive healthy (gpud#1085)."""
    (finding,) = findings_of(put(fleet(), ACTIVE, 5, 0, start=0))
    assert finding.severity is Severity.WARNING, "it never had one: whether a reset helps is not known"
    assert "at nearly all peers" in finding.evidence.summary


def test_cards_without_a_bridge_miss_nothing() -> None:
    assert findings_of(fleet(up=0)) == []
    mixed = fleet()
    mixed.x[:, 0, 16:] = 0  # half of the cohort has bridges
    assert findings_of(mixed) == []
    assert findings_of(fleet(up=12)) == [], "12 of 18 is how this machine is built"
    never = fleet()
    never.x[:, 1] = np.nan
    never.x[:, 0] = np.nan
    assert findings_of(never) == []


def test_it_ends_when_all_are_up_again() -> None:
    begins, ends = findings_of(put(fleet(), ACTIVE, 5, 17, stop=100))
    assert (begins.active, ends.active, ends.time - begins.time) == (True, False, (100 + 2 - 62) * 10)


def test_after_a_boot_links_may_train() -> None:
    data = put(fleet(), ACTIVE, slice(0, 8), np.arange(18)[:, None], start=60, stop=78)
    data.x[60:, -1, :8] = (60 + 10 * np.arange(120))[:, None]
    assert findings_of(data) == []


def test_a_reloaded_driver_finds_links_down_for_two_readings() -> None:
    assert findings_of(put(fleet(), ACTIVE, slice(0, 8), 0, stop=62)) == []


def test_one_link_that_recovers_again_and_again_is_named_days_before() -> None:
    """505 recoveries in five days on one link, none anywhere else."""
    data = fleet(minutes=2 * 24 * 60, step=60.0)
    rng = np.random.default_rng(0)
    events = rng.poisson(101 / 24 / 60, len(data.t)) / 60.0
    put(data, WORST_RATE, 5, events, start=0)
    put(data, RECOVERIES, 5, events, start=0)
    put(data, WORST, 5, 7, start=0)
    found = findings_of(data)
    assert {f.entity for f in found} == {data.entities[5]}
    assert found[0].time - data.t[0] < 12 * 3600, "four and a half days before the end"
    assert "the worst is link 7" in found[0].evidence.summary


def test_a_burst_of_errors_is_found_in_two_readings() -> None:
    data = put(fleet(), WORST_RATE, 5, 400.0)
    (finding,) = findings_of(data)
    assert finding.time == data.t[61]
    assert "400 errors of the worst link a second" in finding.evidence.summary


def test_few_errors_everywhere_are_how_links_are() -> None:
    data = fleet(minutes=24 * 60, step=60.0)
    rng = np.random.default_rng(0)
    put(data, "gpu_nvlink_crc_errors_total", slice(None), rng.poisson(2 / 60, (len(data.t), 32)) / 60.0, start=0)
    assert findings_of(data) == []


@pytest.mark.parametrize("seed", range(2))
def test_a_healthy_fleet_with_reboots_is_quiet(seed: int) -> None:
    fleet, detector = HealthyFleet(160, seed), NvlinkDetector()
    found = detector.update(fleet.next(100))
    for node in range(5):
        fleet.reboot(node)
    fleet.reload_driver(7)
    found += detector.update(fleet.next(900))
    found += [f for part in healthy_chunks(400, 1200, seed) for f in detector.update(part)]
    assert found == []
