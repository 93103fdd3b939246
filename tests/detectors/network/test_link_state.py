"""Ports that go down are said once each, and those that train, stop or reboot are not said at all."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from mainstay.detectors.finding import Entity, Finding, FindingKind
from mainstay.detectors.network.link_state import LinksDetector
from mainstay.probes.core_types import Event, EventKind, RecommendedAction, Severity
from mainstay.probes.samplers.port_watch import PortWatch

_ids = count()
DOWN, UP = EventKind.LINK_DOWN, EventKind.LINK_UP


def event(kind: EventKind, t: float, node: str = "n1", port: int | None = 0, **data: Any) -> Event:
    device = None if port is None else f"nic:mlx5_{port}:1"
    if port is not None:
        data.setdefault("link", f"mlx5_{port}:1")
    data.setdefault("uptime", 86_400.0 + t)
    return Event(id=f"e{next(_ids)}", time=1000.0 + t, kind=kind, node=node, device=device, data=data)


def example(seed: int) -> list[Event]:
    events = [
        event(DOWN, 0.0, since_up=80_000.0, state="DOWN, Polling"),
        event(UP, 7.0, since_down=7.0),
        event(DOWN, 8.0, "n2", 3, flaps=2, back=True, since_up=9.0),
        event(UP, 8.0, "n2", 3, since_down=0.0),
        event(DOWN, 130.0, "n3", down_seconds=130.0),
        event(UP, 700.0, steady_seconds=693.0),
    ]
    return [replace(e, id=f"{seed}-{n}") for n, e in enumerate(events)]


def later(events: list[Event], repetition: int) -> list[Event]:
    return [replace(e, id=f"{e.id}-{repetition}", time=e.time + 10_000.0 * repetition) for e in events]


def findings_of(*events: Event) -> list[Finding]:
    return LinksDetector().update(events)


def test_a_port_that_goes_down_is_a_warning_at_once() -> None:
    (finding,) = findings_of(event(DOWN, 0.0, since_up=80_000.0, state="DOWN, Polling"))
    assert (finding.kind, finding.severity, finding.recommended_action) == (
        FindingKind.NIC_DEGRADED, Severity.WARNING, RecommendedAction.MONITOR,
    )  # fmt: skip
    assert finding.entity == Entity(node="n1", device="nic:mlx5_0:1")
    assert finding.evidence.summary == "Port mlx5_0:1 of n1 went down after 22.2 h (DOWN, Polling)."
    assert finding.evidence.numbers == {"falls": 1.0, "since_up_seconds": 80_000.0}


def test_up_again_is_over_only_after_ten_quiet_minutes() -> None:
    began = [event(DOWN, 0.0), event(UP, 5.0, since_down=5.0)]
    assert len(findings_of(*began, event(UP, 400.0, steady_seconds=395.0))) == 1
    _, ended = findings_of(*began, event(UP, 605.0, steady_seconds=600.0))
    assert not ended.active
    _, ended = findings_of(*began, event(UP, 3000.0, port=None, links=["nic:mlx5_0:1"], steady_seconds=600.0))
    assert not ended.active, "a daemon that was started since says it of all its ports"


def test_a_steady_port_is_taken_back_by_who_has_forgotten_it() -> None:
    (ended,) = findings_of(event(UP, 605.0, steady_seconds=600.0))
    assert (ended.active, ended.entity.device) == (False, "nic:mlx5_0:1")


def test_any_word_of_the_node_tells_that_time_has_passed() -> None:
    xid = event(EventKind.XID, 700.0, port=None, code=31)
    assert [f.active for f in findings_of(event(DOWN, 0.0), event(UP, 5.0), xid)] == [True, False]
    assert [f.active for f in findings_of(event(DOWN, 0.0), xid)] == [True], "it is still down"
    elsewhere = replace(xid, node="n2")
    assert [f.active for f in findings_of(event(DOWN, 0.0), event(UP, 5.0), elsewhere)] == [True], "clocks differ"


def test_a_single_flap_that_nobody_saw_is_information() -> None:
    (finding,) = findings_of(event(DOWN, 0.0, flaps=1, back=True, since_up=9e4), event(UP, 0.0, since_down=0.0))
    assert finding.severity is Severity.INFO
    assert finding.evidence.summary == "Port mlx5_0:1 of n1 went down after 25 h, and came back at once."


def test_time_that_passes_ends_what_is_up_and_nothing_else() -> None:
    detector = LinksDetector()
    detector.update([event(DOWN, 0.0), event(UP, 5.0), event(DOWN, 0.0, "n2")])
    assert detector.advance_clock(1000.0 + 660.0) == []
    (ended,) = detector.advance_clock(1000.0 + 665.0)
    assert (ended.active, ended.entity.node) == (False, "n1")
    assert detector.advance_clock(1e9) == [], "the other is still down"


def test_after_a_restart_only_the_node_can_end_what_holds() -> None:
    detector = LinksDetector()
    held = findings_of(event(DOWN, 0.0))
    detector.restore_findings(held)
    assert detector.advance_clock(1e9) == []
    assert [f.active for f in detector.update([event(UP, 900.0, steady_seconds=600.0)])] == [False]


def test_a_bare_line_of_the_kernel_is_information() -> None:
    line = {"source": "kernel", "link": "eth0"}
    found = findings_of(
        event(DOWN, 0.0, port=None, **line),
        event(UP, 9.0, port=None, **line),
        event(UP, 700.0, port=None, link="all", links=["nic:mlx5_0:1"], steady_seconds=600.0),
    )
    eth0 = [f for f in found if f.entity.device == "nic:eth0"]
    assert [(f.severity, f.active) for f in eth0] == [(Severity.INFO, True), (Severity.INFO, False)]


def test_a_burst_of_flaps_is_one_warning_with_their_number() -> None:
    events = [
        e
        for n in range(600)
        for e in (event(DOWN, n / 10, since_up=0.05, flaps=1, back=True), event(UP, n / 10 + 0.05, since_down=0.05))
    ]
    found = findings_of(*events)
    assert len({f.key for f in found}) == 1
    assert [f.severity for f in found[:2]] == [Severity.INFO] * 2
    assert {f.severity for f in found[2:]} == {Severity.WARNING}
    assert len(found) <= 12, "it is reported again when the number has doubled"
    assert not any(f.recommended_action.evicts for f in found)
    assert found[-1].evidence.numbers["falls"] >= 300
    assert "went down" in found[-1].evidence.summary
    assert "times within" in found[-1].evidence.summary


def test_flaps_that_a_sampler_summed_up_count_as_many() -> None:
    first, burst = findings_of(
        event(DOWN, 0.0, flaps=1, back=True), event(UP, 0.0), event(DOWN, 30.0, flaps=37, back=True)
    )
    assert (first.severity, burst.severity) == (Severity.INFO, Severity.WARNING)
    assert burst.evidence.numbers["falls"] == 38


def test_three_falls_in_a_day_are_no_burst() -> None:
    found = findings_of(*(event(DOWN, 30_000.0 * n, flaps=1, back=True) for n in range(3)))
    assert {f.severity for f in found if f.active} == {Severity.INFO}


def test_a_port_that_stays_down_is_to_be_inspected_until_it_is_back() -> None:
    found = findings_of(
        event(DOWN, 0.0), event(DOWN, 120.0, down_seconds=120.0), event(DOWN, 900.0, down_seconds=900.0),
        event(UP, 1000.0, since_down=1000.0),
    )  # fmt: skip
    assert [f.severity for f in found] == [Severity.WARNING, Severity.CRITICAL, Severity.CRITICAL, Severity.WARNING]
    assert [f.recommended_action.evicts for f in found] == [False, True, True, False]
    assert found[1].evidence.summary == "Port mlx5_0:1 of n1 has been down for 2 min."


def test_ports_of_two_nodes_at_once_are_a_switch_and_nobody_is_drained() -> None:
    found = findings_of(
        *(event(DOWN, 3.0 * n, f"n{n}") for n in range(4)),
        *(event(DOWN, 120.0 + 3.0 * n, f"n{n}", down_seconds=120.0) for n in range(4)),
    )
    assert {f.severity for f in found} == {Severity.WARNING}
    assert "3 other node(s)" in found[-1].evidence.summary


def test_all_ports_of_one_node_are_that_nodes_own() -> None:
    found = findings_of(
        *(event(DOWN, 0.0, port=n) for n in range(8)),
        *(event(DOWN, 120.0, port=n, down_seconds=120.0) for n in range(8)),
    )
    assert [f.severity for f in found] == [Severity.WARNING] * 8 + [Severity.CRITICAL] * 8


def test_a_boot_says_nothing_until_it_should_be_over() -> None:
    training = [event(DOWN, n, uptime=50.0 + n) for n in range(20)]
    assert findings_of(*training, event(UP, 21.0, uptime=71.0)) == []
    assert len(findings_of(*training, event(DOWN, 900.0, uptime=950.0, down_seconds=900.0))) == 1


def test_a_planned_stop_says_nothing_and_takes_back_what_it_began() -> None:
    stop = event(EventKind.NODE_STOPPING, 10.0, port=None, reason="shutdown")
    assert findings_of(stop, event(DOWN, 12.0), event(DOWN, 200.0)) == []
    assert [f.active for f in findings_of(event(DOWN, 0.0), stop)] == [True, False]
    assert [f.active for f in findings_of(event(DOWN, -500.0), stop)] == [True], "that one is older than the shutdown"
    update = event(EventKind.NODE_STOPPING, 10.0, port=None, reason="stopped")
    assert [f.active for f in findings_of(event(DOWN, 0.0), update)] == [True], "the daemon ends, not the node"
    started = event(EventKind.NODE_STARTED, 20.0, port=None)
    assert len(findings_of(stop, started, event(DOWN, 30.0))) == 1


def test_a_port_that_vanished_is_named() -> None:
    (finding,) = findings_of(event(DOWN, 0.0, gone=True, since_up=9.0))
    assert finding.evidence.summary == "Port mlx5_0:1 of n1 is gone: its driver no longer shows it."


def test_news_that_come_late_do_not_turn_the_clock_back() -> None:
    detector = LinksDetector()
    detector.update([event(DOWN, 0.0), event(UP, 10.0)])
    detector.update([event(DOWN, 5.0)])
    assert [f.active for f in detector.update([event(UP, 700.0, steady_seconds=690.0)])] == [False]


def test_nonsense_in_the_data_is_survived() -> None:
    for data in (
        {"flaps": "x"},
        {"since_up": None},
        {"down_seconds": "long"},
        {"link": 7},
        {"flaps": -3},
        {"state": 4},
    ):
        (finding,) = findings_of(event(DOWN, 0.0, **data))
        assert finding.active
    assert findings_of(Event(id="n", time=1.0, kind=DOWN)) == []


def life_of_ports(seed: int, *, hours: int = 8, step: float = 5.0) -> list[Event]:
    """What the samplers of healthy nodes report in a day with reboots, reloads of the driver and new daemons."""
    rng = np.random.default_rng(seed)
    events: list[Event] = []
    for node in (f"n{n}" for n in range(6)):
        boot, reload, update = sorted(rng.uniform(3600, hours * 3600 - 3600, 3))
        watches = {p: PortWatch(f"mlx5_{p}:1") for p in range(4)}
        booted = -86_400.0
        for t in np.arange(0.0, hours * 3600, step):
            if boot <= t < boot + 240:
                if t - boot < step:
                    events.append(event(EventKind.NODE_STOPPING, t, node, None, reason="shutdown"))
                    watches, booted = {p: PortWatch(f"mlx5_{p}:1") for p in range(4)}, t + 180
                continue
            if t - boot - 240 < step and t >= boot:
                events.append(event(EventKind.NODE_STARTED, t, node, None, uptime=t - booted))
            if 0.0 <= t - update < step:
                watches = {p: PortWatch(f"mlx5_{p}:1") for p in range(4)}
            for p, watch in watches.items():
                training = t - booted < 100 + 10 * p and int(t / step) % 3 > 0  # up and down while it trains
                gone = 0.0 <= t - reload < 25
                if 25 <= t - reload < 25 + step:
                    watch.renewed(t)
                up = p < 3 and not training and not 25 <= t - reload < 45  # the fourth is not in use
                said = watch.missing(t) if gone else watch.see(t, up=up, down_count=None)
                events += [event(kind, t, node, p, **{**data, "uptime": t - booted}) for kind, data in said]
    return sorted(events, key=lambda e: e.time)


def test_a_healthy_day_with_boots_reloads_and_updates_is_silent() -> None:
    for seed in range(2):
        events = life_of_ports(seed)
        assert any(e.kind is DOWN for e in events), "training ports do go down"
        assert [f.evidence.summary for f in findings_of(*events) if f.active] == []
