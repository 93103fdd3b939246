"""Which port is slow, failing or lost, and that healthy ports are left alone through noise, jobs, boots and drivers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mainstay.detectors.base import Samples
from mainstay.detectors.finding import Entity, Finding, FindingKind
from mainstay.detectors.network.nic import NicDetector
from mainstay.detectors.network.nic_errors import NAMES, RULES
from mainstay.probes.core_types import RecommendedAction, Severity

UP, RATE, FALLS = "nic_link_up", "nic_rate_bits_per_second", "nic_link_downed_total"
WAIT, SENT, UPTIME = "nic_transmit_wait_total", "nic_transmit_bytes_total", "uptime_seconds"
SYMBOLS, ACKS = "nic_symbol_errors_total", "nic_ack_timeouts_total"
SIGNALS = (UP, RATE, FALLS, WAIT, SENT, UPTIME, *NAMES)
T0 = 1.7e9
BURSTS = {SYMBOLS, "nic_receive_errors_total", "nic_out_of_sequence_total", ACKS}
EVERY = 10
"""Seconds between two readings of the error counters."""


def ports(seed: int, *, nodes: int = 8, rails: int = 4, ticks: int = 200, step: float = 1.0) -> Samples:
    """Ports under load: full rate, some waiting, a corrected symbol now and then."""
    rng = np.random.default_rng(seed)
    count = nodes * rails
    x = np.zeros((ticks, len(SIGNALS), count), np.float32)
    x[:, _at(UP)] = 1.0
    x[:, _at(RATE)] = 400e9
    x[:, _at(SENT)] = rng.uniform(20e9, 45e9, (ticks, 1))
    x[:, _at(WAIT)] = x[:, _at(SENT)] / 8 * rng.uniform(0.0, 0.2, (ticks, count))
    x[:, _at(UPTIME)] = 86_400.0 + step * np.arange(ticks)[:, None]
    read = (np.arange(ticks) * step) % EVERY == 0
    for name in NAMES:
        x[:, _at(name)] = np.nan
        x[read, _at(name)] = rng.poisson(0.002 * max(step, EVERY) / 10, (int(read.sum()), count)) / max(step, EVERY)
    return Samples(
        entities=tuple(Entity(node=f"n{n}", device=f"nic:mlx5_{r}:1") for n in range(nodes) for r in range(rails)),
        groups=("gpu/MT4129",) * count,
        signals=SIGNALS,
        t=T0 + step * np.arange(ticks, dtype=np.float64),
        x=x,
    )


def _at(name: str) -> int:
    return SIGNALS.index(name)


def put(data: Samples, name: str, start: int, stop: int | None, port: int, value: float) -> None:  # noqa: PLR0917 - reads as a line
    """Set a signal; an error counter where it is read."""
    column = data.x[start:stop, _at(name), port]
    column[np.isfinite(column)] = value


def example(seed: int) -> Samples:
    data = ports(seed, ticks=700)
    put(data, RATE, 50, 300, 5, 200e9)
    put(data, SYMBOLS, 60, None, 9, 25.0)
    put(data, WAIT, 0, None, 11, 2e10)
    return data


def findings_of(data: Samples) -> list[Finding]:
    return NicDetector().update(data)


def about(found: list[Finding], port: int, data: Samples) -> list[Finding]:
    return [f for f in found if f.entity == data.entities[port]]


@pytest.mark.parametrize("seed", range(5))
def test_a_port_below_its_rail_is_named_within_two_seconds(seed: int) -> None:
    data = ports(seed)
    put(data, RATE, 100, 150, 5, 200e9)
    begins, ends = findings_of(data)
    assert (begins.kind, begins.severity, begins.recommended_action) == (
        FindingKind.NIC_DEGRADED, Severity.WARNING, RecommendedAction.MONITOR,
    )  # fmt: skip
    assert begins.time - T0 == 101
    assert begins.evidence.summary == "Port mlx5_1:1 of n1 runs at 200 Gbit/s, its peers have 400."
    assert begins.evidence.series[0].y[-1] == pytest.approx(200e9)
    assert (ends.active, ends.time - T0) == (False, 150 + 29)


def test_a_slow_rail_is_slow_by_design() -> None:
    data = ports(0)
    data.x[:, _at(RATE), 3::4] = 100e9
    assert findings_of(data) == []


def test_a_single_port_is_compared_with_its_own_past() -> None:
    data = ports(0, nodes=1, rails=2)
    put(data, RATE, 100, None, 1, 100e9)
    (finding,) = findings_of(data)
    assert finding.evidence.summary == "Port mlx5_1:1 of n0 runs at 100 Gbit/s, it had 400."


def test_one_reading_of_a_low_rate_is_no_finding() -> None:
    data = ports(0)
    put(data, RATE, 100, 101, 5, 100e9)
    assert findings_of(data) == []


def test_a_port_that_events_can_tell_of_is_left_to_them() -> None:
    data = ports(0, ticks=1000)
    put(data, UP, 100, 500, 5, 0.0)
    data.x[100:500, _at(RATE), 5] = np.nan
    assert findings_of(data) == []


def test_a_port_that_does_not_come_back_from_a_boot_is_broken() -> None:
    data = ports(0, ticks=1800)
    data.x[100:200, :, :4] = np.nan  # node 0 boots
    data.x[200:, _at(UPTIME), :4] = 50.0 + np.arange(1600)[:, None]
    put(data, UP, 200, None, 2, 0.0)
    (finding,) = findings_of(data)
    assert (finding.entity, finding.severity, finding.recommended_action) == (
        data.entities[2], Severity.CRITICAL, RecommendedAction.INSPECT_NODE,
    )  # fmt: skip
    assert finding.time - T0 == 200 + 550 + 120, "after the boot grace, and as long as a broken link takes"
    assert "as it was before" in finding.evidence.summary


def test_a_boot_in_which_ports_train_says_nothing() -> None:
    data = ports(0, ticks=1500)
    data.x[100:160, :, :4] = np.nan
    data.x[160:, _at(UPTIME), :4] = 40.0 + np.arange(1340)[:, None]
    data.x[160:240, _at(UP), :4] = 0.0
    data.x[240:300, _at(RATE), :4] = 100e9
    put(data, SYMBOLS, 160, 600, 1, 1e5)
    assert findings_of(data) == []


def test_a_port_that_was_never_up_is_unused_unless_its_rail_is_up() -> None:
    unused = ports(0, ticks=400)
    unused.x[:, _at(UP), 3::4] = 0.0
    assert findings_of(unused) == []
    odd = ports(0, ticks=1000, nodes=16)
    odd.x[:, _at(UP), 3] = 0.0
    assert findings_of(odd) == [], "down since long ago: link_state has reported it, or no one needs to know"
    odd.x[:, _at(UPTIME), 3] -= 86_400.0
    (finding,) = findings_of(odd)
    assert (finding.severity, finding.time - T0) == (Severity.WARNING, 600.0 + 120.0)
    assert "as its peers are" in finding.evidence.summary


def test_a_lost_port_is_taken_back_when_it_has_been_up_for_long() -> None:
    data = ports(0, ticks=2500, nodes=16)
    data.x[:, _at(UPTIME), 3] -= 86_400.0
    put(data, UP, 0, 900, 3, 0.0)
    _, ended = findings_of(data)
    assert (ended.active, ended.time - T0) == (False, 899 + 600)


def test_acute_symbol_errors_are_a_warning_within_three_minutes() -> None:
    data = ports(0, ticks=600)
    put(data, SYMBOLS, 100, None, 9, 25.0)
    found = findings_of(data)
    assert found[0].entity == data.entities[9]
    assert found[0].severity is Severity.WARNING
    assert found[0].time - T0 <= 100 + 180
    assert "symbol errors" in found[0].evidence.summary
    assert found[0].evidence.series


def creeping(seed: int, counter: str, probability: float, size: float, hours: int = 12) -> Samples:
    """One port with an error in some minutes, its peers with one in five hundred."""
    data = ports(seed, ticks=hours * 60, step=60.0)
    rng = np.random.default_rng(seed + 100)
    data.x[60:, _at(counter), 9] = (rng.random(hours * 60 - 60) < probability) * size / 60.0
    return data


@pytest.mark.parametrize("seed", range(3))
def test_symbol_errors_that_creep_are_told_before_they_hurt(seed: int) -> None:
    data = creeping(seed, SYMBOLS, 0.2, 1.0)
    (finding,) = findings_of(data)
    assert (finding.entity, finding.severity) == (data.entities[9], Severity.INFO)
    assert finding.time - T0 < 60 * 60 * 5, "twelve an hour against one in eight hours"
    assert finding.evidence.numbers["errored_minutes"] >= 9


def test_creeping_errors_beyond_what_a_lane_may_have_are_a_warning() -> None:
    data = creeping(0, SYMBOLS, 0.5, 20.0)
    found = findings_of(data)
    assert {f.entity for f in found} == {data.entities[9]}
    assert found[-1].severity is Severity.WARNING
    assert found[-1].recommended_action is RecommendedAction.MONITOR
    assert found[-1].evidence.numbers["per_hour"] > 120


def test_what_a_remote_end_may_cause_is_never_a_warning() -> None:
    found = findings_of(creeping(0, ACKS, 0.9, 6000.0))
    assert found
    assert {f.severity for f in found} == {Severity.INFO}


def test_an_hour_of_calm_ends_it() -> None:
    data = creeping(0, SYMBOLS, 0.5, 1.0)
    data.x[300:, _at(SYMBOLS), 9] = 0.0
    begins, ends = findings_of(data)
    assert (begins.active, ends.active) == (True, False)
    assert 55 <= (ends.time - T0) / 60 - 300 <= 65


def test_errors_of_a_whole_fleet_blame_no_port() -> None:
    data = ports(0, ticks=240, step=60.0)
    rng = np.random.default_rng(3)
    for name in (SYMBOLS, ACKS):
        data.x[60:, _at(name)] = rng.poisson(1200, (180, len(data.entities))) / 60.0
    assert findings_of(data) == []


def test_congestion_of_one_port_is_information_and_of_a_fleet_is_nobodys_fault() -> None:
    one, fleet = ports(0, ticks=600), ports(0, ticks=600)
    put(one, WAIT, 60, None, 11, 2e10)
    fleet.x[60:, _at(WAIT)] = 2e10
    (finding,) = findings_of(one)
    assert (finding.kind, finding.severity) == (FindingKind.CONGESTION, Severity.INFO)
    assert finding.entity == one.entities[11]
    assert findings_of(fleet) == []


def test_an_idle_port_with_one_stalled_packet_is_not_congested() -> None:
    data = ports(0, ticks=600)
    data.x[:, _at(SENT), 4] = 1000.0
    data.x[:, _at(WAIT), 4] = 1e6
    assert findings_of(data) == []


def test_signals_that_were_never_delivered_are_not_judged() -> None:
    data = ports(0)
    for name in (RATE, FALLS, WAIT, SENT, UPTIME, *NAMES):
        data.x[:, _at(name)] = np.nan
    assert findings_of(data) == []
    bare = replace(data, signals=(UP,), x=data.x[:, :1])
    assert findings_of(bare) == []


def day(seed: int, *, nodes: int = 64, rails: int = 8, hours: int = 24) -> Samples:
    """A day of healthy ports: noise that differs from cable to cable, jobs, boots, a driver's reload, full counters."""
    minutes = hours * 60
    data = ports(seed, nodes=nodes, rails=rails, ticks=minutes, step=60.0)
    rng = np.random.default_rng(seed + 7)
    count = nodes * rails
    for name in NAMES:
        worse = np.minimum(rng.lognormal(0.0, 0.7, count), 10.0)  # healthy cables differ by factors, within the norm
        often, burst = (0.02, 0.2) if name in BURSTS else (0.002, 0.8)
        errors = rng.poisson(often * worse, (minutes, count)) * rng.geometric(burst, (minutes, count))
        data.x[:, _at(name)] = errors / 60.0
    for node in range(nodes):
        mine = slice(node * rails, (node + 1) * rails)
        for _job in range(6):  # between jobs it is idle; a job's end makes peers time out
            start = int(rng.integers(0, minutes - 40))
            data.x[start : start + 30, _at(SENT), mine] = 0.0
            data.x[start : start + 30, _at(WAIT), mine] = 0.0
            data.x[start, _at(ACKS), mine] = rng.uniform(0.0, 50.0, rails)
        if node % 4 == 0:
            boot = int(rng.integers(100, minutes - 200))
            data.x[boot : boot + 4, :, mine] = np.nan
            data.x[boot + 4 :, _at(UPTIME), mine] = 60.0 * np.arange(1, minutes - boot - 3)[:, None]
            data.x[boot + 4 : boot + 7, _at(UP), mine] = 0.0
            data.x[boot + 4 : boot + 12, _at(SYMBOLS), mine] = 1e4
            data.x[boot + 4, [_at(n) for n in NAMES[1:]], mine] = np.nan  # counters restarted
        if node % 4 == 1:
            reload = int(rng.integers(100, minutes - 200))
            data.x[reload, :, mine] = np.nan
            data.x[reload + 1, _at(UP), mine] = 0.0
            data.x[reload + 1, _at(RATE), mine] = np.nan
        if node % 4 == 2:
            data.x[:, _at(NAMES[int(rng.integers(len(NAMES)))]), mine.start] = np.nan  # full: it is left out
    data.x[600:680, _at(WAIT)] = 2e10  # the fabric is full for everybody
    return data


def side_by_side(*parts: Samples) -> Samples:
    """Fleets at the same times, each with nodes and cohorts of its own: one detector judges them in one pass."""
    return replace(
        parts[0],
        entities=tuple(replace(e, node=f"{n}-{e.node}") for n, part in enumerate(parts) for e in part.entities),
        groups=tuple(f"{n}-{group}" for n, part in enumerate(parts) for group in part.groups),
        x=np.concatenate([part.x for part in parts], axis=2),
    )


@pytest.mark.slow
def test_a_healthy_day_has_no_alarm() -> None:
    found = [f for f in findings_of(side_by_side(day(0), day(1))) if f.active]
    assert [f.evidence.summary for f in found if f.severity is not Severity.INFO] == []
    for fleet in ("0-", "1-"):
        degraded = [f for f in found if f.kind is FindingKind.NIC_DEGRADED and f.entity.node.startswith(fleet)]
        assert len(degraded) <= 2, [f.evidence.summary for f in found]


@pytest.mark.parametrize("seed", range(2))
def test_a_healthy_hour_at_full_rate_is_silent(seed: int) -> None:
    assert findings_of(ports(seed, nodes=16, rails=8, ticks=3600)) == []


def test_every_rule_names_a_declared_signal() -> None:
    from mainstay.probes.signals import SIGNALS as DECLARED

    assert {*RULES, *NicDetector.signals, *NicDetector.host_signals} <= DECLARED.keys()


def waiting(shares: list[float], ticks: int = 155, sent: float = 40e9) -> Samples:
    """Ports of one name that wait for these shares of their sending time: ``8 x wait / (8 x wait + sent)``."""
    data = ports(0, nodes=len(shares), rails=1, ticks=ticks)
    share = np.array(shares)
    data.x[:, _at(SENT)], data.x[:, _at(WAIT)] = sent, share / (1.0 - share) * sent / 8.0
    return data


@pytest.mark.parametrize(
    ("shares", "told"),
    [
        ([0.31] + [0.0] * 9, 1),
        ([0.29] + [0.0] * 9, 0),  # less than three tenths
        ([0.61] + [0.2] * 9, 1),
        ([0.59] + [0.2] * 9, 0),  # less than three times its peers
        ([0.5] * 7 + [0.0] * 22, 7),
        ([0.5] * 7 + [0.0] * 21, 0),  # a quarter of the ports: the fabric is full
        ([0.5] * 7, 7),  # too few to tell
        ([0.5] * 8, 0),
    ],
)
def test_which_ports_wait_unlike_their_peers(shares: list[float], told: int) -> None:
    found = findings_of(waiting(shares))
    assert [f.kind for f in found] == [FindingKind.CONGESTION] * told
    for finding in found:  # the minutes of congestion end 30 s after T0, 90 s and 150 s: the third
        assert finding.time - T0 == 150
        assert finding.evidence.numbers["wait_ratio"] == pytest.approx(shares[0], rel=1e-4)
        assert f"{shares[0]:.0%} of its sending time" in finding.evidence.summary


@pytest.mark.parametrize(("sent", "told"), [(4.9e8, 0), (5.1e8, 1)])
def test_a_port_below_a_hundredth_of_its_rate_is_idle(sent: float, told: int) -> None:
    """400 Gbit/s are 5e10 bytes a second."""
    assert len(findings_of(waiting([0.5] + [0.0] * 9, 215, sent))) == told


def test_congestion_is_over_after_ten_calm_minutes() -> None:
    data = waiting([0.5] + [0.0] * 9, 760)
    data.x[151:, _at(WAIT)] = 0.0
    begins, ends = findings_of(data)
    assert (begins.active, ends.active, ends.time - T0) == (True, False, 150 + 10 * 60)


@pytest.mark.parametrize(
    ("loud", "told"), [("11100", True), ("11000", False), ("10101", True), ("101001", False), ("100101", False)]
)
def test_three_of_five_minutes_must_be_loud(loud: str, told: bool) -> None:
    data = waiting([0.5] + [0.0] * 9, 60 * len(loud))
    for number, one in enumerate(loud):
        if one == "0":
            data.x[max(60 * number - 29, 0) : 60 * number + 31, _at(WAIT)] = 0.0
    assert bool(findings_of(data)) is told


@pytest.mark.parametrize(("nodes", "ratio", "told"), [(4, 0.94, 1), (4, 0.96, 0), (3, 0.5, 0)])
def test_a_rate_from_the_start_is_compared_with_a_rail_of_four(nodes: int, ratio: float, told: int) -> None:
    data = ports(0, nodes=nodes, rails=1, ticks=20)
    put(data, RATE, 0, None, 1, ratio * 400e9)
    found = findings_of(data)
    assert len(found) == told
    if told:
        assert found[0].time - T0 == 1
        assert found[0].evidence.series[0].threshold == pytest.approx(0.95 * 400e9)


@pytest.mark.parametrize(
    ("up", "least", "share"),
    [
        ([1.0, 1.0, 1.0, 0.0], 4, [2 / 3, 2 / 3, 2 / 3, 1.0]),
        ([1.0, 1.0, 1.0, 0.0], 5, [np.nan] * 4),
        ([1.0, np.nan, 1.0, 0.0], 3, [1 / 2, 2 / 3, 1 / 2, 1.0]),  # who is not heard has three others that are
        ([1.0, np.nan, 1.0, 0.0], 4, [np.nan, 2 / 3, np.nan, np.nan]),
    ],
)
def test_how_many_of_the_others_are_up(up: list[float], least: int, share: list[float]) -> None:
    found = NicDetector()._share_up(np.array(up), [np.arange(4)], least=least)
    assert found.tolist() == pytest.approx(share, nan_ok=True)
