"""The limits of error counters, each worked out: minutes that are loud, minutes that creep, and their end."""

from __future__ import annotations

import numpy as np
import pytest

from mainstay.detectors.entity_state import EntityState
from mainstay.detectors.finding import Entity
from mainstay.detectors.network.nic_errors import (
    CALM,
    INFO,
    NAMES,
    RULES,
    WARNING,
    NicErrorThresholds,
    _bad_end,
    _excess,
    collect,
    fields,
    fold,
)

PORTS = 10
EVER = NicErrorThresholds(half_life_minutes=np.inf)
"""Nothing is forgotten: counts are whole numbers."""
EVERY = pytest.mark.parametrize("name", NAMES)


def memory() -> EntityState:
    rows = fields(EntityState(), 4)
    rows.align(tuple(Entity(node=f"n{port}") for port in range(PORTS)))
    return rows


def minute(rows: EntityState, c: int, errors: float, *, peers: float = 0.0, alone: bool = False) -> int:
    """End a minute in which port 0 had ``errors`` and each other one ``peers``; the level of port 0 after it."""
    rows["now"][c], rows["read"][c] = [errors, *[peers] * (PORTS - 1)], True
    groups = [np.arange(1), np.arange(1, PORTS)] if alone else [np.arange(PORTS)]
    fold(rows, c, groups, EVER, 0)
    return int(rows["level"][c, 0])


@EVERY
def test_two_loud_minutes_of_three_are_the_ports_fault_and_three_a_remote_ends(name: str) -> None:
    c, rule = NAMES.index(name), RULES[name]
    loud = rule.acute * 60.0
    levels = [CALM, WARNING, WARNING] if rule.own else [CALM, CALM, INFO]
    rows = memory()
    assert [minute(rows, c, loud) for _ in range(3)] == levels
    rows = memory()
    assert [minute(rows, c, 0.99 * loud) for _ in range(3)] == [CALM] * 3
    rows = memory()
    assert [minute(rows, c, loud, alone=True) for _ in range(3)] == [CALM, CALM, WARNING if rule.own else INFO]
    rows = memory()
    assert [minute(rows, c, loud, peers=loud / 10.0) for _ in range(3)] == levels, "ten times the peers"
    rows = memory()
    assert [minute(rows, c, loud, peers=loud / 9.9) for _ in range(3)] == [CALM] * 3


def test_loud_minutes_hours_apart_are_not_minute_after_minute() -> None:
    rows, c = memory(), NAMES.index("nic_link_recoveries_total")
    assert [minute(rows, c, errors) for errors in (5.0, 0.0, 5.0)] == [CALM, CALM, WARNING]
    rows = memory()
    assert [minute(rows, c, errors) for errors in (5.0, 0.0, 0.0, 5.0)] == [CALM] * 4


@EVERY
def test_from_which_rate_a_creeping_counter_is_a_warning(name: str) -> None:
    """Sixty minutes, each with errors, and none at the peers."""
    c, rule = NAMES.index(name), RULES[name]
    for hourly, level in ((120.0, WARNING), (119.9, INFO), (10.0, WARNING), (9.9, INFO)):
        rows = memory()
        rows["bad"][c, 0], rows["watched"][c], rows["total"][c, 0] = 59, 59, hourly - 2.0
        found = minute(rows, c, 2.0)
        if not rule.own:
            assert found == INFO
        elif (rule.text in {"symbol errors", "receive errors"}) == (hourly > 100.0):
            assert found == level


@pytest.mark.parametrize(
    ("count", "expected", "z"), [(0.625, 0.625, 0.0), (3.625, 0.625, 2.0), (11.625, 0.625, 2 * 12**0.5 - 2)]
)
def test_how_far_a_count_is_from_chance(count: float, expected: float, z: float) -> None:
    assert _excess(np.array([count]), np.array([expected]))[0] == pytest.approx(z)


def test_a_port_whose_peers_have_none_is_named_at_its_thirteenth_errored_minute() -> None:
    """2 (sqrt(13.375) - sqrt(0.375)) is 6.09, of twelve 5.81."""
    rows, c = memory(), NAMES.index("nic_receive_errors_total")
    assert [minute(rows, c, 1.0) for _ in range(13)] == [CALM] * 12 + [INFO]
    assert rows["z"][c, 0] == pytest.approx(6.09, abs=0.01)
    rows = memory()
    assert [minute(rows, c, 0.5) for _ in range(20)] == [CALM] * 20, "half an error is none"


def test_what_peers_have_is_held_against_it() -> None:
    """The third worst of ten is the bad end: five times its errored minutes are needed."""
    c = NAMES.index("nic_symbol_errors_total")
    for bad, level in ((49, CALM), (50, INFO)):
        rows = memory()
        rows["watched"][c], rows["bad"][c] = 199, [bad - 1, *[10.0] * (PORTS - 1)]
        assert minute(rows, c, 1.0) == level


@pytest.mark.parametrize(("minutes", "level"), [(59, INFO), (60, CALM)])
def test_an_hour_without_errors_ends_it(minutes: int, level: int) -> None:
    rows, c = memory(), NAMES.index("nic_symbol_errors_total")
    for _ in range(13):
        minute(rows, c, 1.0)
    assert [minute(rows, c, 0.0) for _ in range(minutes)][-1] == level
    assert rows["bad"][c, 0] == (13.0 if level else 0.0), "what is over is held against it no more"


def test_a_port_that_has_as_many_as_its_peers_is_like_them() -> None:
    rows, c = memory(), NAMES.index("nic_symbol_errors_total")
    for _ in range(13):
        minute(rows, c, 1.0)
    # After m more minutes it has 13 + m and its peers m: 2 (sqrt(13.375 + m) - sqrt(0.375 + m)) is below 3 from 13 on.
    assert [minute(rows, c, 1.0, peers=1.0) for _ in range(13)] == [INFO] * 12 + [CALM]


@pytest.mark.parametrize(("size", "place"), [(7, None), (8, 5), (10, 7), (40, 37), (60, 56), (61, 56)])
def test_the_bad_end_of_the_peers(size: int, place: int | None) -> None:
    """A twentieth of them, and at least two, may be worse."""
    values = np.arange(float(size))
    read, group = np.ones(size, np.bool_), [np.arange(size)]
    ends = _bad_end(np.random.default_rng(0).permutation(values), read, group, EVER)
    assert np.isnan(ends).all() if place is None else ends.tolist() == [float(place)] * size
    read[0] = False
    unread = _bad_end(values, read, group, EVER)
    assert np.isnan(unread).all() == (size <= 8)


def test_a_minute_is_the_sum_of_its_readings() -> None:
    rows = memory()
    lines = np.array([0, 3])
    rates = np.full((2, PORTS), np.nan)
    rates[0, :2], rates[1, 2] = (0.5, 2.0), 4.0
    judged = np.arange(PORTS) != 1  # port 1 trains
    for _ in range(2):
        collect(rows, rates, lines, np.full(PORTS, 10.0), judged)
    assert rows["now"][0].tolist() == [10.0, *[0.0] * 9]
    assert rows["now"][3].tolist() == [0.0, 0.0, 80.0, *[0.0] * 7]
    assert rows["read"].sum() == 2
    collect(rows, rates, lines, np.full(PORTS, 10.0), np.zeros(PORTS, np.bool_))
    assert rows["now"].sum() == 90.0
    fold(rows, 0, [np.arange(PORTS)], EVER, 2)
    assert rows["minutes"][2, 0, 0] == pytest.approx(10.0 / 60.0)
    assert np.isnan(rows["minutes"][2, 0, 1:]).all()
    assert (rows["now"][0].sum(), rows["read"][0].any()) == (0.0, False)


def test_memory_fades_by_half_in_its_half_life() -> None:
    rows, c = memory(), 0
    rows["bad"][c], rows["watched"][c], rows["total"][c] = 8.0, 100.0, 40.0
    for _ in range(6):
        rows["read"][c] = True
        fold(rows, c, [np.arange(PORTS)], NicErrorThresholds(half_life_minutes=6.0), 0)
    assert rows["bad"][c, 0] == pytest.approx(4.0)
    assert rows["total"][c, 0] == pytest.approx(20.0)
    assert rows["watched"][c, 0] == pytest.approx(50.0 + sum(0.5 ** (k / 6) for k in range(6)))
