"""Memory that leaks is reported with the time that is left; jobs that come, grow, breathe and go are not."""

from __future__ import annotations

import numpy as np
import pytest

from mainstay.detectors.base import Samples
from mainstay.detectors.finding import Entity, Finding, FindingKind
from mainstay.detectors.host.memory_leak import MemoryDetector, _span
from mainstay.probes.core_types import HOST_DEVICE, RecommendedAction, Severity

T0 = 1.7e9 // 600 * 600
TOTAL = 2.0 * 2**40
GIB = 2.0**30
SIGNALS = ("memory_used_bytes", "memory_used_ratio", "uptime_seconds")


def hosts(used: np.ndarray, step: float = 10.0) -> Samples:
    """``used``: [time, host] bytes."""
    ticks, count = used.shape
    x = np.empty((ticks, 3, count), np.float32)
    x[:, 0], x[:, 1] = used, used / TOTAL
    x[:, 2] = 86_400.0 + (step * np.arange(ticks))[:, None]
    return Samples(
        entities=tuple(Entity(node=f"n{n}", device=HOST_DEVICE) for n in range(count)),
        groups=("gpu/EPYC",) * count,
        signals=SIGNALS,
        t=T0 + step * np.arange(ticks, dtype=np.float64),
        x=x,
    )


def noisy(seed: int, hours: float, *, count: int = 6, step: float = 10.0) -> np.ndarray:
    """A steady job with some gigabytes of coming and going."""
    rng = np.random.default_rng(seed)
    ticks = int(hours * 3600 / step)
    return 400 * GIB + GIB * rng.normal(0.0, 2.0, (ticks, count)) + GIB * rng.uniform(0, 50, count)


def leak(used: np.ndarray, per_hour: float, *, host: int = 2, start: float = 0.0, step: float = 10.0) -> np.ndarray:
    hours = np.arange(len(used)) * step / 3600
    used[:, host] += per_hour * GIB * np.maximum(hours - start, 0.0)
    return used


def example(seed: int) -> Samples:
    used = leak(noisy(seed, 4.0, step=30.0), 550.0, step=30.0)
    used[350:, 2] = 400 * GIB  # the job ends
    return hosts(used, 30.0)


def findings_of(used: np.ndarray, step: float = 10.0) -> list[Finding]:
    return MemoryDetector().update(hosts(used, step))


@pytest.mark.parametrize("seed", range(3))
def test_a_slow_leak_is_information_with_the_time_that_is_left(seed: int) -> None:
    (finding,) = findings_of(leak(noisy(seed, 12.0), 30.0))
    assert (finding.kind, finding.severity) == (FindingKind.MEMORY_LEAK, Severity.INFO)
    assert finding.entity.node == "n2"
    assert finding.time - T0 <= 8 * 3600
    assert finding.evidence.numbers["bytes_per_second"] * 3600 / GIB == pytest.approx(30.0, rel=0.3)
    assert "none is left in" in finding.evidence.summary


def test_a_fast_leak_is_a_warning_before_it_ends_the_job() -> None:
    used = leak(noisy(0, 4.0), 450.0)
    found = findings_of(used[: np.argmax(used[:, 2] > 0.99 * TOTAL) or None])
    assert [f.severity for f in found] == [Severity.WARNING]
    assert found[-1].recommended_action is RecommendedAction.RESTART_JOB
    assert 600 < found[-1].evidence.numbers["seconds_left"] <= 3600
    assert found[-1].evidence.series[0].threshold == pytest.approx(TOTAL)


def test_it_is_over_when_the_job_is() -> None:
    begins, ends = findings_of(np.vstack([leak(noisy(0, 7.0), 100.0), noisy(1, 8.0)]))[:2]
    assert (begins.active, ends.active) == (True, False)


def test_jobs_that_start_and_stop_are_no_leak() -> None:
    used = noisy(0, 24.0)
    rng = np.random.default_rng(1)
    for host in range(used.shape[1]):
        for start in rng.integers(0, len(used), 8):
            used[start : start + int(rng.integers(200, 4000)), host] += rng.uniform(50, 400) * GIB
    assert findings_of(used) == []


def test_ever_larger_jobs_are_no_leak() -> None:
    used = noisy(0, 12.0)
    used += 60 * GIB * (np.arange(len(used)) // 900)[:, None]  # every two and a half hours
    assert findings_of(used) == []


@pytest.mark.parametrize("period", [120.0, 900.0, 3600.0, 7200.0, 14_400.0])
def test_a_sawtooth_is_no_leak(period: float) -> None:
    used = noisy(0, 24.0)
    phase = (np.arange(len(used)) * 10.0 % period / period)[:, None]
    found = [f for f in findings_of(used + 300 * GIB * phase) if f.active]
    assert found == []


def test_a_data_set_that_is_read_into_memory_is_no_warning() -> None:
    used = noisy(0, 6.0)
    used[:, 3] += np.minimum(np.arange(len(used)) * 0.8, 1000.0) * GIB
    assert {f.severity for f in findings_of(used) if f.active} <= {Severity.INFO}


def test_what_was_not_measured_proves_nothing() -> None:
    used = leak(noisy(0, 12.0), 30.0)
    used[len(used) // 4 : len(used) // 2] = np.nan
    assert {f.entity.node for f in findings_of(used)} <= {"n2"}
    assert findings_of(np.full_like(used, np.nan)) == []


def test_a_boot_is_not_judged() -> None:
    data = hosts(leak(noisy(0, 1.0), 400.0))
    data.x[:, 2] = np.minimum(data.x[:, 2] - 86_400.0, 500.0)
    assert MemoryDetector().update(data) == []


@pytest.mark.parametrize("seed", range(3))
def test_a_healthy_day_has_no_alarm(seed: int) -> None:
    rng = np.random.default_rng(seed)
    used = noisy(seed, 24.0, count=100, step=30.0)
    used += GIB * np.cumsum(rng.normal(0.0, 0.3, used.shape), axis=0)  # it wanders by 16 GiB in a day
    for host in range(100):
        for start in rng.integers(0, len(used), 4):
            used[start : start + int(rng.integers(60, 800)), host] += rng.uniform(50, 600) * GIB
    assert [f.evidence.summary for f in findings_of(used, 30.0)] == []


def line(per_hour: float, hours: float, *, base: float = 400.0, step: float = 30.0) -> np.ndarray:
    """One host whose memory grows by so many GiB an hour, without noise."""
    return GIB * (base + per_hour * np.arange(int(hours * 3600 / step)) * step / 3600)[:, None]


@pytest.mark.parametrize(
    ("per_hour", "told"),
    [
        (30.0, True),
        (3.6, True),  # 35 steps of ten minutes are 21 GiB: a hundredth of 2 TiB is 20.5
        (3.4, False),
        (0.0, False),
        (-30.0, False),
    ],
)
def test_a_leak_is_told_when_thirty_of_thirty_five_steps_of_ten_minutes_are_known(per_hour: float, told: bool) -> None:
    found = findings_of(line(per_hour, 6.0), 30.0)
    assert [f.time - T0 for f in found] == [31 * 600.0] * told
    if told:
        assert found[0].evidence.numbers["bytes_per_second"] * 3600 / GIB == pytest.approx(per_hour, rel=1e-3)
        (series,) = found[0].evidence.series
        assert series.x == tuple(T0 + 600.0 * n for n in range(1, 32))
        assert series.y[0] == pytest.approx(400 * GIB)


@pytest.mark.parametrize(
    ("per_hour", "reached", "told"),
    [
        (400.0, 0.91, True),
        (400.0, 0.89, False),  # nine tenths must be in use
        (150.0, 0.935, True),  # 133 GiB are left, for less than an hour
        (150.0, 0.92, False),  # 164 GiB are left, for more
    ],
)
def test_a_leak_is_grave_an_hour_before_the_end_where_memory_is_nearly_full(
    per_hour: float, reached: float, told: bool
) -> None:
    """Two hours of it are known when it has ``reached`` so much."""
    found = findings_of(line(per_hour, 2.5, base=2048.0 * reached - 2.5 * per_hour), 30.0)
    assert [f.severity for f in found] == [Severity.WARNING] * told
    for finding in found:
        assert finding.evidence.numbers["seconds_left"] <= 3600.0
        assert finding.evidence.numbers["used_ratio"] >= 0.9


def test_five_blocks_that_do_not_rise_end_it() -> None:
    used = np.vstack([line(30.0, 6.0), np.full((720, 1), 400.0 * GIB)])
    begins, ends = findings_of(used, 30.0)
    assert (begins.active, ends.active) == (True, False)
    # The first block of the fall makes the last third as low as the first: from it on five blocks are calm.
    assert ends.time - T0 == (36 + 5) * 600.0


@pytest.mark.parametrize(
    ("level", "slope", "share", "words"),
    [
        (1, 1.0049, 0.5, "Host n0 uses 1 GiB more memory every hour, 50% of 2048 GiB now: none is left in 1.02e+03 h."),
        (1, 512.0, 0.5, "Host n0 uses 512 GiB more memory every hour, 50% of 2048 GiB now: none is left in 2 h."),
        (2, 600.0, 0.75, "Host n0 uses 600 GiB more memory every hour, 75% of 2048 GiB now: none is left in 51 min."),
        (1, 0.0, 0.75, "Host n0 uses 0 GiB more memory every hour, 75% of 2048 GiB now: none is left in a long time."),
    ],
)
def test_what_is_told_of_a_leak(level: int, slope: float, share: float, words: str) -> None:
    detector = MemoryDetector()
    rows = detector.rows
    rows.align((Entity(node="n0", device=HOST_DEVICE),))
    rows["total"], rows["share"] = np.array([TOTAL]), np.array([share])
    rows["slope"][1], rows["level"][1] = slope * GIB / 3600, level
    found = detector._say(0, level, T0)
    assert found.evidence.summary == words
    assert found.severity is (Severity.WARNING if level == 2 else Severity.INFO)
    left = found.evidence.numbers.get("seconds_left")
    assert left == (pytest.approx(2048 * (1 - share) / slope * 3600) if slope else None)


@pytest.mark.parametrize(
    ("used", "share", "uptime", "total", "low"),
    [
        (100.0, 0.5, 600.0, 200.0, 100.0),
        (100.0, 0.0, 600.0, np.nan, 100.0),  # a share of nothing tells no total
        (100.0, -0.5, 600.0, np.nan, 100.0),
        (100.0, np.nan, 600.0, np.nan, 100.0),
        (np.nan, 0.5, 600.0, np.nan, np.nan),
        (100.0, 0.5, 599.0, np.nan, np.nan),  # it boots
        (100.0, 0.5, np.nan, 200.0, 100.0),
    ],
)
def test_what_a_sample_tells(used: float, share: float, uptime: float, total: float, low: float) -> None:
    data = hosts(np.full((1, 1), 1.0))
    data.x[0, :, 0] = used, share, uptime
    detector = MemoryDetector()
    assert detector.update(data) == []
    assert detector.rows["total"].tolist() == pytest.approx([total], nan_ok=True)
    assert detector.rows["low"][:, 0].tolist() == pytest.approx([low, low], nan_ok=True)


@pytest.mark.parametrize(
    ("seconds", "words"), [(59.0, "1 min"), (7199.5, "120 min"), (7200.0, "2 h"), (np.inf, "a long time")]
)
def test_how_a_time_is_told(seconds: float, words: str) -> None:
    assert _span(seconds) == words


def steps_of(*, flat: int = 0, unknown: int = 0, back: float = 0.0) -> np.ndarray:
    """[block, 1] 36 blocks that rise by a GiB each, but for some; and the last third may lie lower."""
    steps = np.full(35, GIB)
    steps[12 : 12 + flat] = 0.0
    blocks = 400 * GIB + np.concatenate([[0.0], np.cumsum(steps)])
    blocks[12 : 12 + unknown] = np.nan
    blocks[-12:] -= back * GIB
    return blocks[:, None]


@pytest.mark.parametrize(
    ("blocks", "total", "leaks"),
    [
        (steps_of(), 2048, True),
        (steps_of(flat=3), 2048, True),  # 32 of 35 rise: nine tenths are 31.5
        (steps_of(flat=4), 2048, False),
        (steps_of(unknown=4), 2048, True),  # 30 steps are known: 85 % of 35 are 29.75
        (steps_of(unknown=5), 2048, False),
        (steps_of(), 3500, True),  # a hundredth of the memory is the rise of 35 steps
        (steps_of(), 3501, False),
        (steps_of(back=12), 2048, True),  # from first to last third 24 GiB for a line: half of it is left
        (steps_of(back=12.1), 2048, False),
    ],
)
def test_when_a_floor_keeps_rising(blocks: np.ndarray, total: float, leaks: bool) -> None:
    detector = MemoryDetector()
    detector.rows.align((Entity(node="n0", device=HOST_DEVICE),))
    detector.rows["total"] = np.array([total * GIB])
    step, found = detector._leaks(blocks)
    assert (step.tolist(), found.tolist()) == ([GIB], [leaks])
