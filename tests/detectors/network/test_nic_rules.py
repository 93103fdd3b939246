"""When a port counts as lost, which minutes end when, and the words for slow, lost and failing ports."""

from __future__ import annotations

import numpy as np
import pytest

from mainstay.detectors.base import Samples
from mainstay.detectors.finding import Entity
from mainstay.detectors.network.nic import NicDetector
from mainstay.detectors.network.nic_errors import NAMES
from mainstay.probes.core_types import RecommendedAction, Severity

NAN = float("nan")
UP, UPTIME = "nic_link_up", "uptime_seconds"
PORTS = 12
T0 = 1.7e9 // 60 * 60


def samples(up: list[float], uptime: list[float], times: list[float], **more: list[float]) -> Samples:
    """Port 0 as told, and eleven of its name on other nodes that are up since long ago."""
    signals = (UP, UPTIME, *more)
    x = np.full((len(times), len(signals), PORTS), np.nan)
    x[:, 0, 1:], x[:, 1, 1:] = 1.0, 1e6
    for line, values in enumerate((up, uptime, *more.values())):
        x[:, line, 0] = values
    return Samples(
        entities=tuple(Entity(node=f"n{n}", device="nic:a:1") for n in range(PORTS)),
        groups=("g",) * PORTS,
        signals=signals,
        t=T0 + np.array(times, float),
        x=x,
    )


def lost(up: list[float], uptime: list[float], times: list[float]) -> list[tuple[float, Severity, bool]]:
    return [(f.time - T0, f.severity, f.active) for f in NicDetector().update(samples(up, uptime, times))]


WARNING = Severity.WARNING


@pytest.mark.parametrize(
    ("times", "uptime", "told"),
    [
        ([0, 120], [600, 720], [(120, WARNING, True)]),
        ([0, 119.9], [600, 719.9], []),  # as long as a broken link takes
        ([0, 120], [899, 1019], [(120, WARNING, True)]),
        ([0, 120], [900, 1020], []),  # the gap before was no boot
        ([0, 1, 120], [599, 600, 719], []),  # it counts from the end of the boot's grace
        ([0, 1, 121], [599, 600, 720], [(121, WARNING, True)]),
    ],
)
def test_when_a_port_that_events_cannot_tell_of_is_lost(
    times: list[float], uptime: list[float], told: list[tuple[float, Severity, bool]]
) -> None:
    dense = sorted({*times, *np.arange(5.0, times[-1], 5.0).tolist()})
    seconds = [uptime[0] + t - times[0] for t in dense]
    assert lost([0.0] * len(dense), seconds, dense) == told


def test_down_is_counted_from_when_it_fell() -> None:
    detector = NicDetector()
    data = samples([1.0, 0.0, 0.0, 1.0, 0.0, NAN, 0.0], [9e4] * 7, [0, 1, 2, 3, 4, 5, 6])
    seen = []
    for k in range(7):
        detector.update(data.part(k, k + 1))
        seen.append(float(detector.rows["down_at"][0] - T0))
    assert seen == pytest.approx([NAN, 1.0, 1.0, NAN, 4.0, 4.0, 4.0], nan_ok=True)
    assert detector.rows["down_at"][1:].tolist() == pytest.approx([NAN] * 11, nan_ok=True)
    assert detector.rows["fell_at"][0] - T0 == 6.0
    assert detector.rows["ever"].all()
    assert detector.rows["used"].all()


@pytest.mark.parametrize(("gap", "used"), [(5.0, True), (5.1, False)])
def test_after_a_gap_of_five_seconds_the_sampler_may_be_a_new_one(gap: float, used: bool) -> None:
    detector = NicDetector()
    detector.update(samples([1.0, 0.0], [100.0, 100.0 + gap], [0.0, gap]))
    assert (bool(detector.rows["used"][0]), bool(detector.rows["fresh"][0])) == (used, True)


@pytest.mark.parametrize(
    ("level", "severity", "action", "state", "confidence", "words"),
    [
        (3, Severity.CRITICAL, RecommendedAction.INSPECT_NODE, {"lost": 3, "ever": True}, 0.95,
         "has not come up for 125 s, as it was before."),
        (2, WARNING, RecommendedAction.MONITOR, {"lost": 2}, 0.95, "has not come up for 125 s, as its peers are."),
        (2, WARNING, RecommendedAction.MONITOR, {"slow": True, "peers": 4e11}, 0.99,
         "runs at 100 Gbit/s, its peers have 400."),
        (2, WARNING, RecommendedAction.MONITOR, {"slow": True, "best": 2e11}, 0.99, "runs at 100 Gbit/s, it had 200."),
    ],
)  # fmt: skip
def test_what_is_said_of_a_port(  # noqa: PLR0917
    level: int,
    severity: Severity,
    action: RecommendedAction,
    state: dict[str, float],
    confidence: float,
    words: str,
) -> None:
    detector = NicDetector()
    rows = detector.rows
    rows.align((Entity(node="n0", device="nic:a:1"),))
    rows["down_at"][:], rows["rate"][:] = 75.0, 1e11
    for name, value in state.items():
        rows[name][:] = value
    found = detector._say(0, level, 200.0)
    assert (found.severity, found.recommended_action, found.confidence) == (severity, action, confidence)
    assert found.evidence.summary == f"Port a:1 of n0 {words}"


@pytest.mark.parametrize(
    ("level", "latest", "confidence", "words"),
    [
        (1, 0.5, 0.9, "has symbol errors: 12 an hour, in 9 of the last 300 minutes, far more than its peers."),
        (2, 0.5, 0.95, "has symbol errors: 12 an hour, in 9 of the last 300 minutes, far more than its peers."),
        (2, 10.0, 0.95, "has symbol errors: 10 a second now, minute after minute."),
        (2, 25.0, 0.95, "has symbol errors: 25 a second now, minute after minute."),
    ],
)
def test_what_is_said_of_errors(level: int, latest: float, confidence: float, words: str) -> None:
    detector = NicDetector()
    rows, c = detector.rows, NAMES.index("nic_symbol_errors_total")
    rows.align((Entity(node="n0", device="nic:a:1"),))
    rows["level"][c], rows["watched"][c], rows["bad"][c], rows["total"][c], rows["z"][c] = level, 300, 9, 60, 7.5
    detector._minute_times[:2, c], rows["minutes"][:2, c, 0] = [60.0, 120.0], [0.25, latest]
    found = detector._say(0, level, 200.0)
    assert (found.confidence, found.evidence.summary) == (confidence, f"Port a:1 of n0 {words}")
    assert found.evidence.numbers == {
        "per_hour": 12.0, "latest_per_second": latest, "errored_minutes": 9.0, "minutes": 300.0, "z": 7.5,
    }  # fmt: skip
    (series,) = found.evidence.series
    assert (series.x, series.y, series.unit) == ((60.0, 120.0), (0.25, latest), "1/s")


def test_counters_end_their_minutes_five_seconds_after_each_other() -> None:
    times = [0.0, 0.5, 4.9, 5.0, 10.0, 50.0, 59.9, 60.0]
    detector = NicDetector()
    ended = []
    data = samples([1.0] * 8, [1e6] * 8, times)
    for k in range(8):
        before = detector._minute.copy()
        detector.update(data.part(k, k + 1))
        ended.append(np.flatnonzero(detector._minute != before).tolist())
    assert ended[0] == [*range(11)], "all begin"
    assert ended[1:] == [[], [], [1], [2], [*range(3, 11)], [], [0]]


@pytest.mark.parametrize(
    ("steady", "up", "level"),
    [(600.0, 1.0, 0), (599.9, 1.0, 3), (600.1, 1.0, 0), (600.0, 0.0, 3), (600.0, NAN, 3)],
)
def test_a_lost_port_is_back_after_ten_minutes_up(steady: float, up: float, level: int) -> None:
    data = samples([up], [1e6], [steady])
    detector = NicDetector()
    detector.rows.align(data.entities)
    detector.rows["lost"][0], detector.rows["fell_at"][0] = 3, T0
    detector._judge_lost(data, T0 + steady, data.x[0, 0])
    assert detector.rows["lost"][0] == level


@pytest.mark.parametrize(("age", "seconds"), [(NAN, 1.0), (7.0, 7.0), (60.0, 60.0), (61.0, 60.0)])
def test_a_reading_stands_for_the_time_since_the_last_at_most_a_minute(age: float, seconds: float) -> None:
    data = samples([1.0], [1e6], [100.0], nic_symbol_errors_total=[2.0])
    detector = NicDetector()
    detector.rows.align(data.entities)
    detector.rows["errors_at"][0] = T0 + 100.0 - age
    detector._collect(data, 0, np.ones(PORTS, np.bool_))
    assert detector.rows["now"][0, 0] == 2.0 * seconds
    assert detector.rows["errors_at"][0] == T0 + 100.0
