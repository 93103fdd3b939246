"""The limits of ports that go down, each a second or a fall on either side, and the words for them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mainstay.detectors.finding import Entity, Finding
from mainstay.detectors.network.link_state import LinksDetector, _span
from mainstay.probes.core_types import Event, EventKind, Severity
from tests.detectors.network.test_link_state import DOWN, UP, event, findings_of

INFO, WARNING, CRITICAL = Severity.INFO, Severity.WARNING, Severity.CRITICAL
STOP, START, XID = EventKind.NODE_STOPPING, EventKind.NODE_STARTED, EventKind.XID


def flap(t: float, falls: int = 1, node: str = "n1") -> list[Event]:
    return [event(DOWN, t, node, flaps=falls, back=True), event(UP, t, node)]


def severities(*events: Event) -> list[Severity]:
    return [f.severity for f in findings_of(*events)]


def summaries(*events: Event) -> list[str]:
    return [f.evidence.summary.removeprefix("Port mlx5_0:1 of n1 ") for f in findings_of(*events)]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(7.0, "7 s"), (119.9, "120 s"), (120.0, "2 min"), (7199.0, "120 min"), (7200.0, "2 h"), (12_600.0, "3.5 h")],
)
def test_how_a_time_is_told(seconds: float, text: str) -> None:
    assert _span(seconds) == text


@pytest.mark.parametrize(
    ("events", "last"),
    [
        ([*flap(0.0, 2), *flap(599.9)], WARNING),  # three falls within ten minutes
        ([*flap(0.0, 2), *flap(1.0, 0)], WARNING),  # a fall is at least one
        ([*flap(0.0), *flap(300.0)], INFO),
        ([event(DOWN, 0.0, uptime=600.0)], WARNING),
        ([event(DOWN, 0.0, down_seconds=120.0)], CRITICAL),
        ([event(DOWN, 0.0, down_seconds=119.9)], WARNING),
        ([event(DOWN, 0.0, source="kernel")], INFO),
        ([event(DOWN, 0.0), event(DOWN, 1.0, source="kernel")], WARNING),  # it holds already
        ([event(DOWN, 0.0), event(DOWN, 10.0, "n2"), event(DOWN, 300.0, down_seconds=300.0)], WARNING),
        ([event(DOWN, 0.0), event(DOWN, 30.0, "n2"), event(DOWN, 300.0, down_seconds=300.0)], WARNING),
        ([event(DOWN, 0.0), event(DOWN, 30.1, "n2"), event(DOWN, 300.0, down_seconds=300.0)], CRITICAL),
        ([event(DOWN, 0.0), event(DOWN, 9.0, "n2"), event(UP, 9.5, "n2"), event(DOWN, 300.0, down_seconds=300.0)],
         CRITICAL),  # the other has its port back
    ],
)  # fmt: skip
def test_how_severe_it_is(events: list[Event], last: Severity) -> None:
    assert severities(*events)[-1] is last


def test_falls_ten_minutes_apart_are_no_burst() -> None:
    assert severities(*flap(0.0, 2), event(DOWN, 600.1, flaps=1, back=True))[0] is INFO
    late = findings_of(*flap(0.0, 2), event(DOWN, 599.9, flaps=1, back=True))
    assert [f.severity for f in late] == [INFO, WARNING]


@pytest.mark.parametrize(
    ("before", "told"),
    [
        ([event(STOP, 0.0, port=None)], 0),
        ([event(STOP, -900.0, port=None)], 0),
        ([event(STOP, -900.1, port=None)], 1),
        ([event(STOP, 0.5, port=None)], 1),  # announced later
        ([event(STOP, -10.0, "n2", port=None)], 1),
        ([event(STOP, -10.0, port=None), event(START, -5.0, port=None)], 1),
    ],
)
def test_an_announced_stop_explains_a_quarter_of_an_hour(before: list[Event], told: int) -> None:
    assert len(findings_of(*before, event(DOWN, 0.0))) == told


@pytest.mark.parametrize(("uptime", "told"), [(599.9, 0), (600.0, 1)])
def test_ten_minutes_after_the_boot_ports_train(uptime: float, told: int) -> None:
    assert len(findings_of(event(DOWN, 0.0, uptime=uptime))) == told


@pytest.mark.parametrize(("after", "reason", "ended"), [(60.0, "shutdown", 1), (60.1, "shutdown", 0), (9.0, "x", 0)])
def test_a_shutdown_takes_back_what_began_a_minute_before(after: float, reason: str, ended: int) -> None:
    found = findings_of(event(DOWN, 0.0), event(STOP, after, port=None, reason=reason))
    assert [f.active for f in found] == [True] + [False] * ended


@pytest.mark.parametrize(("quiet", "ended"), [(599.9, False), (600.0, True)])
def test_ten_quiet_minutes_by_the_nodes_own_clock_end_it(quiet: float, ended: bool) -> None:
    began = [event(DOWN, 0.0), event(UP, 5.0)]
    found = findings_of(*began, event(XID, 5.0 + quiet, port=None))
    assert [f.active for f in found] == [True, False][: 1 + ended]
    sampler = findings_of(*began, event(UP, 2000.0, steady_seconds=quiet))
    assert [f.active for f in sampler] == [True, False], "the event's own time passes as well"
    assert (quiet >= 600.0) is (sampler[1].evidence.summary == "Port mlx5_0:1 of n1 was up for 10 min without a break.")


@pytest.mark.parametrize(("now", "words"), [(664.9, []), (665.0, ["has been quiet for 11 min."])])
def test_the_clock_waits_a_minute_longer(now: float, words: list[str]) -> None:
    detector = LinksDetector()
    detector.update([event(DOWN, 0.0), event(UP, 5.0)])
    told = [f.evidence.summary.removeprefix("Port mlx5_0:1 of n1 ") for f in detector.advance_clock(1000.0 + now)]
    assert told == words


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([event(DOWN, 0.0)], "went down."),
        ([event(DOWN, 0.0, since_up=90.0, state="DOWN")], "went down after 90 s (DOWN)."),
        ([event(DOWN, 0.0, back=True, state="DOWN")], "went down, and came back at once."),
        ([event(DOWN, 0.0, flaps=4)], "went down 4 times within a second."),
        ([*flap(0.0), *flap(1.0)], "went down 2 times within 1 s."),
        ([*flap(0.0), *flap(0.9)], "went down 2 times within a second."),
        ([event(DOWN, 0.0, down_seconds=130.0)], "has been down for 2 min."),
        ([event(DOWN, 0.0, "n2"), event(DOWN, 100.0, down_seconds=100.0)],
         "has been down for 100 s; 1 other node(s) lost ports at the same time: look at the switch."),
    ],
)  # fmt: skip
def test_what_is_said_of_a_port(events: list[Event], words: str) -> None:
    assert summaries(*events)[-1] == words


def test_falls_are_told_again_when_they_have_doubled() -> None:
    events = [each for t in range(16) for each in flap(700.0 * t / 16)]
    totals = [f.evidence.numbers["falls"] for f in findings_of(*events)]
    assert totals == [1.0, 2.0, 3.0, 6.0, 12.0], "the third makes a burst of it"
    (*_, last) = findings_of(*events)
    (series,) = last.evidence.series
    assert series.y == tuple(float(n) for n in range(1, 13))


def test_the_oldest_falls_are_drawn_as_one() -> None:
    events = [each for t in range(200) for each in flap(t / 10, 2)]
    last = findings_of(*events)[-1]
    (series,) = last.evidence.series
    assert (len(series.x), series.x[0]) == (64, 1000.0)
    assert series.y[-1] == last.evidence.numbers["falls"] == 256.0
    assert series.y[0] == 256.0 - 63 * 2


def test_numbers_of_the_event_are_kept() -> None:
    (found,) = findings_of(event(DOWN, 0.0, since_up=9.0, down_seconds=130.0, since_down=True))
    assert found.evidence.numbers == {"falls": 0.0, "since_up_seconds": 9.0, "down_seconds": 130.0}
    assert (found.confidence, found.evidence.series) == (1.0, ())


def held(finding: Finding, **change: object) -> int:
    """How many findings a steady port ends after ``restore_findings``; a finding of another node tells its own end."""
    detector = LinksDetector()
    detector.restore_findings([replace(finding, **change)])  # type: ignore[arg-type]
    return len(detector._ports)


def test_of_stored_findings_only_its_own_that_hold_are_taken_back() -> None:
    (finding,) = findings_of(event(DOWN, 0.0))
    assert held(finding) == 1
    assert [held(finding, detector=name) for name in ("a", "z")] == [0, 0]
    assert held(finding, active=False) == 0
    detector = LinksDetector()
    detector.restore_findings([finding, replace(finding, time=5.0)])
    port = detector._ports[finding.entity.node, finding.entity.device]
    assert (port.down, port.at, port.quiet_since, port.began, port.said) == (True, 1000.0, 1000.0, 1000.0, WARNING)
    (over,) = detector.update([event(UP, 700.0, steady_seconds=600.0)])
    assert (over.active, over.entity) == (False, Entity(node="n1", device="nic:mlx5_0:1"))


def test_a_broken_port_that_comes_up_is_a_warning_until_it_is_steady() -> None:
    found = findings_of(
        event(DOWN, 0.0), event(DOWN, 130.0, down_seconds=130.0), event(UP, 140.0), event(UP, 739.0, port=1),
        event(UP, 740.0, port=1),
    )  # fmt: skip
    assert [(f.severity, f.active) for f in found] == [
        (WARNING, True), (CRITICAL, True), (WARNING, True), (WARNING, False),
    ]  # fmt: skip
    assert found[-1].time == 1740.0
