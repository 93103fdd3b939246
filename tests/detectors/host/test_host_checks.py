"""What is wrong with a host, and that hosts that boot, restart services or are built otherwise are left alone."""

from __future__ import annotations

import numpy as np
import pytest

from mainstay.detectors.base import Samples
from mainstay.detectors.finding import Entity, Finding, FindingKind
from mainstay.detectors.host.checks import CHECKS, HostDetector
from mainstay.probes.core_types import HOST_DEVICE, Severity

HEALTHY = {
    "disk_used_ratio": 0.4, "inodes_used_ratio": 0.1, "shm_used_ratio": 0.2, "oom_kills_total": 0.0,
    "memory_used_ratio": 0.3, "clock_error_seconds": 1e-4, "clock_synchronized": 1.0, "fabric_manager_up": 1.0,
    "processes_stuck": 0.0, "filesystems_read_only": 0.0, "dram_corrected_total": 0.0, "dram_uncorrected_total": 0.0,
    "uptime_seconds": 86_400.0,
}  # fmt: skip
SIGNALS = tuple(HEALTHY)
SLOW = {"inodes_used_ratio", "clock_error_seconds", "clock_synchronized", "fabric_manager_up", "processes_stuck",
        "filesystems_read_only", "dram_corrected_total", "dram_uncorrected_total"}  # fmt: skip
T0 = 1.7e9
K = FindingKind


def hosts(seed: int = 0, *, count: int = 6, ticks: int = 300, step: float = 1.0) -> Samples:
    rng = np.random.default_rng(seed)
    x = np.empty((ticks, len(SIGNALS), count), np.float32)
    for s, value in enumerate(HEALTHY.values()):
        x[:, s] = value
    x[:, _at("uptime_seconds")] += (step * np.arange(ticks))[:, None]
    x[:, _at("disk_used_ratio")] += rng.uniform(-0.01, 0.01, (ticks, count))
    for name in SLOW:
        x[(np.arange(ticks) * step) % 10 != 0, _at(name)] = np.nan
    return Samples(
        entities=tuple(Entity(node=f"n{n}", device=HOST_DEVICE) for n in range(count)),
        groups=("gpu/EPYC",) * count,
        signals=SIGNALS,
        t=T0 + step * np.arange(ticks, dtype=np.float64),
        x=x,
    )


def _at(name: str) -> int:
    return SIGNALS.index(name)


def put(data: Samples, name: str, start: int, stop: int | None, value: float, *, host: int = 2) -> Samples:
    column = data.x[start:stop, _at(name), host]
    column[np.isfinite(column)] = value
    return data


def example(seed: int) -> Samples:
    data = hosts(seed, ticks=400)
    put(data, "disk_used_ratio", 20, 200, 0.98)
    put(data, "fabric_manager_up", 50, 200, 0.0, host=1)
    return put(data, "filesystems_read_only", 100, None, 1.0)


def findings_of(data: Samples) -> list[Finding]:
    return HostDetector().update(data)


def statements_of(data: Samples) -> list[tuple[FindingKind, Severity, float]]:
    return [(f.kind, f.severity, f.time - T0) for f in findings_of(data) if f.active]


def test_a_disk_that_fills_up_is_told_by_degrees_and_when_there_is_room_again() -> None:
    data = hosts(ticks=800)
    put(data, "disk_used_ratio", 100, 200, 0.92)
    put(data, "disk_used_ratio", 200, 400, 0.98)
    found = findings_of(data)
    assert [(f.severity, f.time - T0) for f in found if f.active] == [(Severity.INFO, 130), (Severity.WARNING, 230)]
    assert {f.kind for f in found} == {K.DISK_FULL}
    assert found[1].evidence.summary == "Host n2 has 98.0% of its root file system in use."
    assert found[1].evidence.series[0].threshold == 0.97
    assert not found[-1].active
    assert len(found) == 3, "both checks end in one breath"


def test_a_disk_at_its_limit_does_not_flap() -> None:
    data = hosts(ticks=600)
    data.x[:, _at("disk_used_ratio"), 2] = 0.97 + 0.01 * np.sin(np.arange(600) / 20)
    assert [f.active for f in findings_of(data)].count(False) == 0


def test_files_may_run_out_before_bytes() -> None:
    assert statements_of(put(hosts(), "inodes_used_ratio", 50, None, 0.99)) == [
        (K.DISK_FULL, Severity.INFO, 80), (K.DISK_FULL, Severity.WARNING, 80),
    ][1:]  # fmt: skip


def test_a_kill_within_a_group_is_information_and_a_host_without_memory_a_warning() -> None:
    assert statements_of(put(hosts(), "oom_kills_total", 50, 51, 1.0)) == [(K.OUT_OF_MEMORY, Severity.INFO, 50)]
    data = put(put(hosts(), "memory_used_ratio", 30, 50, 0.97), "oom_kills_total", 50, 51, 1.0)
    assert statements_of(data) == [(K.OUT_OF_MEMORY, Severity.WARNING, 50)], "the kill itself has freed the memory"


def test_a_kill_is_over_after_ten_minutes() -> None:
    begins, ends = findings_of(put(hosts(ticks=1200), "oom_kills_total", 50, 51, 1.0))
    assert (ends.active, ends.time - begins.time) == (False, 601)


def test_a_dead_fabric_manager_is_critical_and_drains_nobody() -> None:
    (finding,) = findings_of(put(hosts(), "fabric_manager_up", 50, None, 0.0))
    assert (finding.kind, finding.severity, finding.recommended_action.evicts) == (
        K.FABRIC_DOWN,
        Severity.CRITICAL,
        False,
    )
    assert finding.time - T0 <= 80
    assert finding.entity == Entity(node="n2", device=HOST_DEVICE)


def test_a_fabric_manager_that_is_restarted_is_no_news() -> None:
    assert findings_of(put(hosts(), "fabric_manager_up", 50, 70, 0.0)) == []


def test_a_fabric_manager_that_nobody_can_see_from_here_is_information() -> None:
    data = hosts(ticks=600)
    for host in range(6):
        put(data, "fabric_manager_up", 0, None, 0.0, host=host)
    assert {severity for _, severity, _ in statements_of(data)} == {Severity.INFO}
    never = put(hosts(ticks=600), "fabric_manager_up", 0, None, 0.0)
    assert statements_of(never)[-1][:2] == (K.FABRIC_DOWN, Severity.CRITICAL), "its peers show that one should be there"


def test_where_no_fabric_manager_is_needed_none_is_missed() -> None:
    data = hosts()
    data.x[:, _at("fabric_manager_up")] = np.nan
    assert findings_of(data) == []


def test_a_clock_that_goes_wrong() -> None:
    data = put(hosts(ticks=500), "clock_error_seconds", 100, 200, 0.2)
    put(data, "clock_error_seconds", 200, None, 0.7)
    assert statements_of(data) == [(K.CLOCK_SKEW, Severity.INFO, 160), (K.CLOCK_SKEW, Severity.WARNING, 260)]


def test_a_lost_time_source_matters_after_half_an_hour_and_a_site_without_one_never() -> None:
    lost = put(hosts(ticks=2200), "clock_synchronized", 100, None, 0.0)
    assert statements_of(lost) == [(K.CLOCK_SKEW, Severity.INFO, 1900)]
    assert findings_of(put(hosts(ticks=2200), "clock_synchronized", 0, None, 0.0)) == []


def test_stuck_processes_are_a_warning_when_they_stay() -> None:
    assert statements_of(put(hosts(ticks=900), "processes_stuck", 100, None, 3.0)) == [
        (K.KERNEL_FAULT, Severity.INFO, 160), (K.KERNEL_FAULT, Severity.WARNING, 700),
    ]  # fmt: skip


def test_two_troubles_of_one_kind_end_together() -> None:
    data = put(hosts(ticks=600), "processes_stuck", 100, 300, 3.0)
    put(data, "filesystems_read_only", 100, 400, 1.0)
    found = findings_of(data)
    assert [f.active for f in found] == [True, False]
    assert found[0].severity is Severity.WARNING
    assert found[-1].time - T0 == 460


def test_memory_that_fails() -> None:
    some = put(hosts(ticks=7200, step=10.0), "dram_corrected_total", 0, None, 10 / 3600)
    assert findings_of(some) == [], "ten an hour are the life of memory"
    many = put(hosts(ticks=720, step=10.0), "dram_corrected_total", 100, None, 5.0)
    assert [(kind, severity) for kind, severity, _ in statements_of(many)] == [
        (K.ECC_CORRECTED, Severity.INFO), (K.ECC_CORRECTED, Severity.WARNING),
    ]  # fmt: skip
    (finding,) = findings_of(put(hosts(), "dram_uncorrected_total", 100, 101, 0.1))
    assert (finding.kind, finding.severity) == (K.ECC_UNCORRECTABLE, Severity.WARNING)


def test_a_boot_says_nothing() -> None:
    data = hosts(ticks=900)
    data.x[:, _at("uptime_seconds"), 2] = 30.0 + np.arange(900)
    for name, value in (("fabric_manager_up", 0.0), ("processes_stuck", 2.0), ("clock_error_seconds", 5.0)):
        put(data, name, 0, 500, value)
    assert findings_of(data) == []


@pytest.mark.parametrize("name", [n for n in HEALTHY if n != "uptime_seconds"])
def test_a_signal_that_was_never_delivered_is_not_judged(name: str) -> None:
    data = hosts(ticks=100)
    data.x[:, _at(name)] = np.nan
    assert findings_of(data) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_healthy_day_has_no_alarm(seed: int) -> None:
    data = hosts(seed, count=50, ticks=8640, step=10.0)
    rng = np.random.default_rng(seed)
    data.x[:, _at("memory_used_ratio")] = rng.uniform(0.1, 0.8, (8640, 50))
    data.x[:, _at("dram_corrected_total")] = rng.poisson(0.01, (8640, 50)) / 10
    data.x[:, _at("clock_error_seconds")] = rng.lognormal(-9.0, 1.0, (8640, 50))
    for host in range(0, 50, 5):
        boot = int(rng.integers(100, 8000))
        data.x[boot : boot + 12, :, host] = np.nan
        data.x[boot + 12 :, _at("uptime_seconds"), host] = 10.0 * np.arange(1, 8640 - boot - 11)
        put(data, "fabric_manager_up", boot + 12, boot + 30, 0.0, host=host)
        put(data, "processes_stuck", boot - 50, boot - 46, 1.0, host=host)
    assert [f.evidence.summary for f in findings_of(data)] == []


def test_every_check_reads_a_declared_signal_or_a_derived_one() -> None:
    from mainstay.probes.signals import SIGNALS as DECLARED

    assert set(HostDetector.signals) <= DECLARED.keys()
    assert all(check.off <= check.on for check in CHECKS)


@pytest.mark.parametrize(
    ("name", "value", "severity"),
    [
        ("disk_used_ratio", 0.89, None), ("disk_used_ratio", 0.91, Severity.INFO),
        ("disk_used_ratio", 0.96, Severity.INFO), ("disk_used_ratio", 0.98, Severity.WARNING),
        ("inodes_used_ratio", 0.89, None), ("inodes_used_ratio", 0.91, Severity.INFO),
        ("inodes_used_ratio", 0.96, Severity.INFO), ("inodes_used_ratio", 0.98, Severity.WARNING),
        ("shm_used_ratio", 0.98, None), ("shm_used_ratio", 0.995, Severity.INFO),
        ("clock_error_seconds", 0.09, None), ("clock_error_seconds", 0.11, Severity.INFO),
        ("clock_error_seconds", 0.49, Severity.INFO), ("clock_error_seconds", 0.51, Severity.WARNING),
        ("processes_stuck", 0.9, None), ("processes_stuck", 1.0, Severity.INFO),
        ("filesystems_read_only", 0.9, None), ("filesystems_read_only", 1.0, Severity.WARNING),
        ("fabric_manager_up", 0.0, Severity.CRITICAL), ("dram_uncorrected_total", 0.01, Severity.WARNING),
    ],
)  # fmt: skip
def test_from_which_value_each_check_reports_and_how_severe_it_is(
    name: str, value: float, severity: Severity | None
) -> None:
    found = statements_of(put(hosts(ticks=180, count=2), name, 20, None, value, host=1))
    assert [grade for _, grade, _ in found][-1:] == ([] if severity is None else [severity])
