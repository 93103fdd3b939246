"""What the driver says is found, believed after a second look, and held until it is healthy again."""

from __future__ import annotations

import numpy as np
import pytest

from mainstay.detectors.base import Samples
from mainstay.detectors.finding import Finding, FindingKind
from mainstay.detectors.gpu.device_state import DeviceStateDetector
from mainstay.probes.core_types import RecommendedAction, Severity
from tests.detectors.healthy import HEALTHY_MASK, HealthyFleet, healthy_chunks

K = FindingKind


def quiet(seed: int, gpus: int = 16, seconds: int = 120) -> Samples:
    fleet = HealthyFleet(gpus, seed)
    fleet.work[:], fleet.left[:], fleet.every[:], fleet.uptime[:] = 2, 1e9, 1e9, 1e6
    return fleet.next(seconds)


def put(data: Samples, name: str, where: object, value: float, *, start: int = 30, stop: int | None = None) -> Samples:
    """Only where a reading stands: the slow tier keeps its gaps."""
    part = data.x[start:stop, data.signals.index(name), where]
    data.x[start:stop, data.signals.index(name), where] = np.where(np.isnan(part), np.nan, value)
    return data


def findings_of(data: Samples) -> list[Finding]:
    return DeviceStateDetector().update(data)


def example(seed: int) -> Samples:
    data = put(put(quiet(seed), "gpu_recovery_action", 3, 1.0), "gpu_remap_failed", 4, 1.0, start=45)
    return put(data, "gpu_ecc_uncorrected_total", 5, 1.0, start=50, stop=51)


@pytest.mark.parametrize(
    ("action", "recommended_action"),
    [(a, RecommendedAction.RESET_GPU) for a in (1, 4, 6)] + [(a, RecommendedAction.REBOOT_NODE) for a in (2, 7)],
)
def test_what_the_driver_asks_for_is_a_warning_and_at_the_second_reading_an_order(
    action: int, recommended_action: RecommendedAction
) -> None:
    data = put(quiet(0), "gpu_recovery_action", 3, action)
    first, second = findings_of(data)
    assert (first.kind, first.severity, first.recommended_action) == (
        K.GPU_RECOVERY_ACTION,
        Severity.WARNING,
        RecommendedAction.MONITOR,
    )
    assert (second.severity, second.recommended_action, second.time - first.time) == (
        Severity.CRITICAL,
        recommended_action,
        10,
    )
    assert first.key == second.key


def test_one_odd_reading_takes_no_node_out_and_two_healthy_ones_end_it() -> None:
    data = put(quiet(0), "gpu_recovery_action", 3, 1.0, start=30, stop=40)
    begins, ends = findings_of(data)
    assert (begins.severity, ends.active, ends.time - begins.time) == (Severity.WARNING, False, 20)


def test_an_idle_imex_domain_is_information_and_one_under_load_a_warning() -> None:
    idle = put(put(quiet(0), "gpu_recovery_action", 3, 5.0), "gpu_utilization_ratio", slice(None), 0.0)
    assert [f.severity for f in findings_of(idle)] == [Severity.INFO]
    busy = put(quiet(0), "gpu_recovery_action", 3, 5.0)
    assert [f.severity for f in findings_of(busy)] == [Severity.INFO, Severity.WARNING]


def test_draining_peer_traffic_and_unknown_actions_evict_nobody() -> None:
    (finding,) = findings_of(put(quiet(0), "gpu_recovery_action", 3, 3.0))
    assert (finding.severity, finding.recommended_action) == (Severity.WARNING, RecommendedAction.RESTART_JOB)
    assert findings_of(put(quiet(0), "gpu_recovery_action", 3, 99.0)) == []


def test_an_uncorrectable_error_is_found_in_the_same_sample() -> None:
    data = put(quiet(0), "gpu_ecc_uncorrected_total", 3, 1.0, start=50, stop=51)
    (finding,) = findings_of(data)
    assert (finding.kind, finding.time) == (K.ECC_UNCORRECTABLE, data.t[50])
    assert (finding.severity, finding.recommended_action) == (Severity.WARNING, RecommendedAction.RESTART_JOB), (
        "the recovery action leads"
    )


def test_without_a_recovery_action_the_old_rule_resets() -> None:
    data = put(quiet(0), "gpu_ecc_uncorrected_total", 3, 1.0, start=50, stop=51)
    data.x[:, data.signals.index("gpu_recovery_action")] = np.nan
    (finding,) = findings_of(data)
    assert (finding.severity, finding.recommended_action) == (Severity.CRITICAL, RecommendedAction.RESET_GPU)


def test_an_error_is_news_for_an_hour_or_until_the_reboot() -> None:
    hour = put(quiet(0, gpus=8, seconds=3700), "gpu_ecc_uncorrected_total", 3, 1.0, start=50, stop=51)
    begins, ends = findings_of(hour)
    assert (ends.active, ends.time - begins.time) == (False, 3600)
    booted = put(quiet(0), "gpu_ecc_uncorrected_total", 3, 1.0, start=50, stop=51)
    booted.x[80:, booted.signals.index("uptime_seconds")] = np.arange(40)[:, None]
    assert [(f.active, f.time - booted.t[0]) for f in findings_of(booted)] == [(True, 50), (False, 80)]


def test_a_counter_that_begins_anew_is_no_error() -> None:
    data = quiet(0)
    for name in ("gpu_ecc_uncorrected_total", "gpu_ecc_uncorrected_aggregate_total"):
        data.x[40:70, data.signals.index(name)] = np.nan
    assert findings_of(data) == []


@pytest.mark.parametrize(
    ("name", "kind"), [("gpu_remap_failed", K.ROW_REMAP), ("gpu_sram_threshold_exceeded", K.ECC_UNCORRECTABLE)]
)
def test_what_calls_for_a_new_card_is_certain_at_the_second_reading(name: str, kind: FindingKind) -> None:
    data = put(quiet(0), name, 3, 1.0)
    (finding,) = findings_of(data)
    assert (finding.kind, finding.severity, finding.recommended_action) == (
        kind,
        Severity.CRITICAL,
        RecommendedAction.REPLACE,
    )
    assert finding.time <= data.t[0] + 30 + 20
    assert findings_of(put(quiet(0), name, 3, 1.0, start=30, stop=40)) == []


def test_rows_that_wait_are_watched_until_they_are_remapped() -> None:
    begins, ends = findings_of(put(quiet(0), "gpu_remap_pending", 3, 1.0, stop=70))
    assert (begins.kind, begins.severity, begins.recommended_action) == (
        K.ROW_REMAP,
        Severity.WARNING,
        RecommendedAction.MONITOR,
    )
    assert not ends.active


def test_a_pending_row_that_then_cannot_be_remapped_becomes_more_severe() -> None:
    data = put(put(quiet(0), "gpu_remap_pending", 3, 1.0), "gpu_remap_failed", 3, 1.0, start=60)
    assert [(f.severity, f.recommended_action) for f in findings_of(data)] == [
        (Severity.WARNING, RecommendedAction.MONITOR), (Severity.CRITICAL, RecommendedAction.REPLACE)
    ]  # fmt: skip


def test_a_fabric_that_trains_after_boot_is_fine_and_one_that_never_ends_is_not() -> None:
    boot = put(quiet(0, seconds=300), "gpu_fabric_state", slice(None), 2.0, start=0)
    boot.x[:, boot.signals.index("uptime_seconds")] = np.arange(60, 360)[:, None]
    assert findings_of(boot) == []
    stuck = put(quiet(0, seconds=300), "gpu_fabric_state", 3, 2.0)
    (finding,) = findings_of(stuck)
    assert (finding.kind, finding.severity) == (K.FABRIC_DOWN, Severity.WARNING)
    assert "has not finished joining" in finding.evidence.summary


def test_cards_without_a_fabric_miss_nothing() -> None:
    assert findings_of(put(quiet(0, seconds=300), "gpu_fabric_state", slice(None), 0.0, start=0)) == []
    assert findings_of(put(quiet(0, seconds=300), "gpu_fabric_state", slice(None), 1.0, start=0)) == []


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        ((HEALTHY_MASK & ~3) | 1, "bandwidth"),
        ((HEALTHY_MASK & ~(3 << 4)) | 1 << 4, "route"),
        (5 << 8 | 0xAA, "misconfigured"),
    ],
)
def test_a_fabric_that_says_it_is_unwell(mask: int, words: str) -> None:
    (finding,) = findings_of(put(quiet(0), "gpu_fabric_health_mask", 3, float(mask)))
    assert (finding.kind, finding.severity) == (K.FABRIC_DOWN, Severity.WARNING)
    assert words in finding.evidence.summary
    assert findings_of(put(quiet(0), "gpu_fabric_health_mask", slice(None), 0.0)) == [], "not supported is no fault"


def test_a_healthy_fleet_with_reboots_is_quiet() -> None:
    fleet, detector = HealthyFleet(160, 1), DeviceStateDetector()
    found = detector.update(fleet.next(100))
    for node in range(5):
        fleet.reboot(node)
    fleet.reload_driver(7)
    found += detector.update(fleet.next(900))
    found += [f for part in healthy_chunks(800, 1200, 2) for f in detector.update(part)]
    assert [f for f in found if f.severity is not Severity.INFO and f.active] == []
