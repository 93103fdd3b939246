"""Each limit of a host's checks, how long it must hold, and its message, from the values of their table."""

from __future__ import annotations

import numpy as np
import pytest

from mainstay.detectors.finding import Entity
from mainstay.detectors.host.checks import HostDetector
from mainstay.probes.core_types import HOST_DEVICE, Severity
from tests.detectors.host.test_host_checks import HEALTHY, T0, K, findings_of, hosts, put, statements_of
from tests.detectors.host.test_host_checks import _at as at

INFO, WARNING, CRITICAL = Severity.INFO, Severity.WARNING, Severity.CRITICAL
FABRIC, SYNC, UNCORRECTED = "fabric_manager_up", "clock_synchronized", "dram_uncorrected_total"


def changes_of(
    readings: dict[float, float], name: str, *, healthy: float | None = None, count: int = 1
) -> list[tuple[Severity | None, float]]:
    """Severity and time of each finding about n0 after ten healthy seconds and these readings; None: it is over."""
    times = [*np.arange(10.0), *readings]
    data = hosts(count=count, ticks=len(times))
    for signal, value in HEALTHY.items():
        data.x[:, at(signal)] = value
    if healthy is not None:
        data.x[:10, at(name)] = healthy
    data.x[10:, at(name), 0] = [*readings.values()]
    data.t[:] = T0 + np.array(times)
    return [(f.severity if f.active else None, f.time - T0) for f in findings_of(data) if f.entity.node == "n0"]


@pytest.mark.parametrize(
    ("name", "values", "levels", "quiet"),
    [
        ("disk_used_ratio", (0.905, 0.875, 0.865), {INFO: 30}, 60),
        ("disk_used_ratio", (0.975, 0.945, 0.865), {WARNING: 30}, 60),
        ("inodes_used_ratio", (0.905, 0.875, 0.865), {INFO: 30}, 60),
        ("inodes_used_ratio", (0.975, 0.945, 0.865), {WARNING: 30}, 60),
        ("shm_used_ratio", (0.995, 0.965, 0.955), {INFO: 30}, 60),
        ("clock_error_seconds", (0.105, 0.055, 0.045), {INFO: 60}, 60),
        ("clock_error_seconds", (0.505, 0.255, 0.045), {WARNING: 60}, 60),
        (SYNC, (0.0, 0.0, 1.0), {INFO: 1800}, 60),
        (FABRIC, (0.0, 0.0, 1.0), {CRITICAL: 20}, 20),
        ("processes_stuck", (1.0, 1.0, 0.9), {INFO: 60, WARNING: 600}, 60),
        ("filesystems_read_only", (1.0, 1.0, 0.9), {WARNING: 10}, 60),
        ("oom_kills_total", (0.5, 0.5, 0.0), {INFO: 0}, 600),
        (UNCORRECTED, (1e-6, 1e-6, 0.0), {WARNING: 0}, 21_600),
    ],
)  # fmt: skip
def test_how_long_each_check_must_hold_and_how_long_calm_ends_it(
    name: str, values: tuple[float, float, float], levels: dict[Severity, float], quiet: float
) -> None:
    bad, between, calm = values
    readings = {100.0: bad}
    for hold in levels.values():
        readings |= {100.0 + hold - 0.5: bad} if hold else {}
        readings |= {100.0 + hold: bad}
    readings |= {40_000.0: between, 79_000.0: between, 80_000.0: calm, 80_000.0 + quiet - 0.5: calm}
    readings |= {80_000.0 + quiet: calm}
    expected = [(level, 100.0 + hold) for level, hold in levels.items()]
    assert changes_of(readings, name) == [*expected, (None, 80_000.0 + quiet)]


def test_one_reading_may_be_a_misreading() -> None:
    assert changes_of({100.0: 0.98, 140.0: 0.5, 150.0: 0.98, 300.0: 0.5}, "disk_used_ratio") == []
    assert changes_of({100.0: 0.98, 130.0: 0.98}, "disk_used_ratio") == [(WARNING, 130.0)]


@pytest.mark.parametrize(
    ("healthy", "count", "expected"),
    [
        (1.0, 1, [(CRITICAL, 120.0)]),  # it ran here
        (0.0, 1, [(INFO, 300.0), (None, 420.0)]),  # it was never seen
        (0.0, 3, [(INFO, 300.0), (None, 420.0)]),  # two of three show one: too few hosts to tell
        (0.0, 4, [(CRITICAL, 20.0), (None, 420.0)]),  # three of four do
    ],
)
def test_a_fabric_manager_is_missed_where_it_ran_or_where_most_of_four_peers_show_one(
    healthy: float, count: int, expected: list[tuple[Severity | None, float]]
) -> None:
    times = {100.0: 0.0, 120.0: 0.0, 299.0: 0.0, 300.0: 0.0, 400.0: 1.0, 420.0: 1.0}
    readings = {20.0: 0.0, **times} if healthy == 0.0 and count == 4 else times
    if healthy:
        readings = {100.0: 0.0, 120.0: 0.0}
    data = hosts(count=count, ticks=10 + len(readings))
    data.x[:, at(FABRIC)] = 1.0
    data.x[:10, at(FABRIC), 0], data.x[10:, at(FABRIC), 0] = healthy, [*readings.values()]
    data.t[:] = T0 + np.array([*np.arange(10.0), *readings])
    assert [(f.severity if f.active else None, f.time - T0) for f in findings_of(data)] == expected


def test_half_of_the_peers_are_not_most() -> None:
    data = hosts(count=4, ticks=400)
    data.x[:, at(FABRIC), :2], data.x[:, at(FABRIC), 2:] = 0.0, 1.0
    assert {(f.entity.node, f.severity) for f in findings_of(data)} == {("n0", INFO), ("n1", INFO)}


@pytest.mark.parametrize(("readings", "told"), [(5, False), (6, True)])
def test_a_time_source_is_missed_after_six_readings_with_one(readings: int, told: bool) -> None:
    found = changes_of({100.0: 0.0, 1900.0: 0.0}, SYNC, healthy=np.nan)
    assert found == []
    data = hosts(count=1, ticks=readings + 2)
    data.x[:, at(SYNC), 0] = [*[1.0] * readings, 0.0, 0.0]
    data.t[:] = T0 + np.array([*range(readings), 100.0, 1900.0])
    assert statements_of(data) == [(K.CLOCK_SKEW, INFO, 1900.0)] * told


@pytest.mark.parametrize(("uptime", "told"), [(599.0, False), (600.0, True)])
def test_ten_minutes_after_the_boot_it_judges(uptime: float, told: bool) -> None:
    data = put(hosts(count=1, ticks=1), UNCORRECTED, 0, None, 1.0, host=0)
    data.x[:, at("uptime_seconds")] = uptime
    assert bool(findings_of(data)) is told


@pytest.mark.parametrize(
    ("used", "before", "severity"),
    [(0.905, 60.0, WARNING), (0.905, 60.5, INFO), (0.895, 10.0, INFO)],
)
def test_a_kill_is_the_hosts_want_where_memory_was_nine_tenths_full_within_a_minute(
    used: float, before: float, severity: Severity
) -> None:
    data = hosts(count=1, ticks=2)
    data.t[1] = T0 + before
    data.x[0, at("memory_used_ratio")], data.x[1, at("oom_kills_total")] = used, 1.0
    assert [f.severity for f in findings_of(data)] == [severity]


def test_corrected_memory_errors_are_averaged_over_ten_minutes() -> None:
    detector = HostDetector()
    detector.rows.align((Entity(node="n0", device=HOST_DEVICE),))
    told = [float(detector._corrected(np.array([1.0]), T0 + second)[0]) for second in (0.0, 600.0, 1200.0)]
    # 3600 an hour, of which an average over 600 s shows 1 - 1/e after 600 s and 1 - 1/e² after 1200 s.
    assert told == pytest.approx([0.0, 3600 * (1 - np.exp(-1)), 3600 * (1 - np.exp(-2))])
    assert np.isnan(detector._corrected(np.array([np.nan]), T0 + 1300.0)[0])
    # What was not read is no reading of zero: the next one stands for the time since the last.
    assert detector._corrected(np.array([0.0]), T0 + 1800.0)[0] == pytest.approx(told[-1] * np.exp(-1))


@pytest.mark.parametrize(
    ("an_hour", "levels"),
    [(99.0, []), (101.0, [INFO]), (3599.0, [INFO]), (3601.0, [WARNING])],
)
def test_from_how_many_corrected_errors_an_hour_it_speaks(an_hour: float, levels: list[Severity]) -> None:
    seconds = 12_000.0 * np.arange(1, 5)  # so rarely that each reading is its own average
    assert [level for level, _ in changes_of(dict.fromkeys(seconds, an_hour / 3600), "dram_corrected_total")] == levels


@pytest.mark.parametrize(
    ("an_hour", "back", "end"),
    [(101.0, 21.0, None), (101.0, 19.0, 63_600.0)],
)
def test_corrected_errors_end_below_twenty_an_hour_for_an_hour(an_hour: float, back: float, end: float | None) -> None:
    times = {20_000.0: an_hour, 40_000.0: an_hour, 60_000.0: back, 63_599.0: back, 63_600.0: back}
    told = changes_of({at: value / 3600 for at, value in times.items()}, "dram_corrected_total")
    assert told == [(INFO, 40_000.0), *([(None, end)] if end else [])]


def test_the_evidence_draws_the_last_reading_of_each_ten_seconds_for_the_last_320() -> None:
    data = hosts(count=1, ticks=401)
    data.x[:, at("disk_used_ratio"), 0] = 0.5 + np.arange(401) / 1000
    found = findings_of(data)
    assert [f.time - T0 for f in found] == []
    data.x[300:, at("disk_used_ratio"), 0] = 0.95
    (finding,) = findings_of(data)
    assert finding.time - T0 == 330.0
    (series,) = finding.evidence.series
    assert (series.name, series.unit, series.threshold) == ("disk_used_ratio", "1", 0.90)
    assert series.x == tuple(T0 + 10.0 * n for n in range(2, 34)), "the 32 newest slots"
    assert series.y == pytest.approx([0.509 + n / 100 for n in range(2, 30)] + [0.95] * 4)
    assert finding.evidence.numbers == pytest.approx({"value": 0.95, "limit": 0.90})
    assert finding.confidence == 0.95


@pytest.mark.parametrize(
    ("name", "value", "words", "advice"),
    [
        ("inodes_used_ratio", 0.92, "has 92.0% of its inodes in use", "monitor"),
        ("clock_error_seconds", 0.12345, "has a clock that may be wrong by 0.123 s", "monitor"),
        ("processes_stuck", 2.0, "has 2 process(es) that wait in the kernel and cannot be killed", "monitor"),
        ("filesystems_read_only", 3.0, "has 3 local file system(s) that turned read-only", "monitor"),
        ("oom_kills_total", 1.0, "killed a process that reached its group's memory limit", "restart_job"),
        (UNCORRECTED, 1.0, "had a memory error that could not be corrected", "monitor"),
    ],
)
def test_what_is_told_of_a_host(name: str, value: float, words: str, advice: str) -> None:
    found = findings_of(put(hosts(ticks=100, count=1), name, 20, None, value, host=0))
    assert (found[-1].evidence.summary, str(found[-1].recommended_action)) == (f"Host n0 {words}.", advice)
