"""Cards that hang, fall off the bus, come back or change their number, and drivers that are replaced under us."""

from __future__ import annotations

import time

import pytest

from tests.fakes.fleet import FakeFleet, uuid
from tests.fakes.simulated_driver import Driven, StartNvml

pytestmark = pytest.mark.processes


def channel(number: int) -> str:
    return f"nvml/{uuid(number)}"


def lost(sampler: Driven) -> list[tuple[str, str, bool]]:
    events = [event for event in sampler.events() if event["kind"] == "gpu_lost"]
    return [(e["device"], e["data"]["reason"], e["data"].get("cleared", False)) for e in events]


def sample_until(sampler: Driven, fleet: FakeFleet, cards: set[int], t: float, timeout: float = 60.0) -> float:
    """Sample until exactly these cards answer; returns the time of the sample."""
    deadline = time.monotonic() + timeout
    while True:
        t += 1
        if {device for device, readings in sampler.sample(t).items() if readings} == {uuid(n) for n in cards}:
            return t
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_there_is_a_channel_a_card_and_they_stay_the_same(start_nvml: StartNvml) -> None:
    _, sampler = start_nvml(cards=3)
    sampler.sample(1)
    assert sampler.do("channels") == [[channel(n), [uuid(n)]] for n in range(3)]
    sampler.start_channel(channel(1), 2)
    assert set(sampler.channel(channel(1)) or {}) == {uuid(1)}, "each reads only its card"


@pytest.mark.parametrize("function", [None, "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetFieldValues"])
def test_a_card_that_hangs_leaves_the_other_channels_and_the_events_running(
    start_nvml: StartNvml, function: str | None
) -> None:
    fleet, sampler = start_nvml(cards=3, listen=True)
    sampler.sample(1000)
    fleet[1].hang(function)
    for n in range(3):
        sampler.start_channel(channel(n), 1001)
    assert (sampler.channel(channel(0)) or {})[uuid(0)]
    assert (sampler.channel(channel(2)) or {})[uuid(2)]
    assert sampler.channel(channel(1), 0.1) is None
    for t in (1002, 1003):
        sampler.start_channel(channel(0), t)
        assert (sampler.channel(channel(0)) or {})[uuid(0)]
    fleet[1].release()
    assert (sampler.channel(channel(1)) or {})[uuid(1)], "and it continues when it is released"


def test_a_lost_card_is_unknown_and_said_once(start_nvml: StartNvml) -> None:
    fleet, sampler = start_nvml(cards=2, listen=True)
    sampler.sample(1000)
    fleet[1].lose()
    for t in (1001, 1002, 1003):
        readings = sampler.sample(t)
        assert readings[uuid(1)] == {}
        assert readings[uuid(0)]
    assert lost(sampler) == [(uuid(1), "gpu_is_lost", False)]
    fleet[1].restore()
    back = sampler.sample(1004)[uuid(1)]
    assert "gpu_recovery_action" in back, "everything is read at once"
    assert lost(sampler)[1:] == [(uuid(1), "gpu_is_lost", True)]
    assert sampler.log.count(f"{uuid(1)} is lost") == 1


def test_a_card_that_wants_a_reset_says_so(start_nvml: StartNvml) -> None:
    fleet, sampler = start_nvml(cards=1, listen=True)
    sampler.sample(1000)
    fleet[0].fails("nvmlDeviceGetEnforcedPowerLimit", 16)
    for t in range(1001, 1022):
        sampler.sample(t)
    assert lost(sampler) == [(uuid(0), "reset_required", False)], "not cleared by tiers that never asked"
    fleet[0].fails("nvmlDeviceGetEnforcedPowerLimit", 0)
    for t in range(1022, 1033):
        sampler.sample(t)
    assert lost(sampler)[1:] == [(uuid(0), "reset_required", True)]


def test_a_lost_card_is_looked_for_by_opening_anew_with_growing_pauses(start_nvml: StartNvml) -> None:
    fleet, sampler = start_nvml(cards=2)
    sampler.sample(1000)
    fleet[1].lose()
    opens = fleet.opens
    for t in range(1001, 1300):
        assert sampler.sample(t)[uuid(0)], "the others miss nothing"
    assert fleet.opens - opens == 2, "after 60 s and 120 s more"
    fleet[1].restore()
    assert sampler.sample(1300)[uuid(1)] == {}, "its handle is dead"
    assert sample_until(sampler, fleet, {0, 1}, 1300 + 240) < 1600
    assert fleet.misuse == 0


def test_a_driver_that_was_replaced_is_opened_again(start_nvml: StartNvml) -> None:
    fleet, sampler = start_nvml(cards=3, listen=True)
    before = sampler.sample(1000)
    fleet.reload_driver("590.10")
    first: dict[str, dict[str, float]] = {}
    t, deadline = 1000.0, time.monotonic() + 60
    while len(first) < 3:
        assert time.monotonic() < deadline
        t += 0.001  # no slow tier comes due
        first = {device: readings for device, readings in sampler.sample(t).items() if readings} | first
    assert sampler.do("devices")[0]["facts"]["driver"] == "590.10"
    assert {n: r.keys() for n, r in first.items()} == {n: r.keys() for n, r in before.items()}, "all tiers at once"
    assert sampler.log.count("opening the library again") == 1
    assert lost(sampler) == []
    assert fleet.misuse == 0


def test_a_driver_that_is_unloaded_is_waited_for(start_nvml: StartNvml) -> None:
    fleet, sampler = start_nvml(cards=2, listen=True)
    sampler.sample(1000)
    fleet.unload_driver()
    assert all(sampler.sample(t) == {uuid(0): {}, uuid(1): {}} for t in range(1001, 1006)), "known, and unknown"
    fleet.load_driver()
    sample_until(sampler, fleet, {0, 1}, 1006)
    assert lost(sampler) == [], "a driver that is away is not a lost card"


def test_channels_read_side_by_side_while_the_driver_is_replaced(start_nvml: StartNvml) -> None:
    fleet, sampler = start_nvml(cards=4, listen=True)
    sampler.sample(1000)
    fleet.clear_calls()
    for round_ in range(30):
        if round_ % 10 == 5:
            fleet.reload_driver()
        for n in range(4):
            sampler.start_channel(channel(n), 1001 + round_)
        for n in range(4):
            assert sampler.channel(channel(n)) is not None
        time.sleep(0.05)
    sample_until(sampler, fleet, {0, 1, 2, 3}, 2000)
    assert fleet.misuse == 0, "nothing was shut under a call, no dead handle was used"


def test_a_hanging_channel_does_not_keep_the_others_from_a_lost_card(start_nvml: StartNvml) -> None:
    """The library is not shut under the call that hangs, and the others read on."""
    fleet, sampler = start_nvml(cards=3)
    sampler.sample(1000)
    fleet[1].hang()
    sampler.start_channel(channel(1), 1001)
    fleet[2].lose()
    opens = fleet.opens
    for t in range(1001, 1100, 10):
        sampler.start_channel(channel(0), t)
        assert (sampler.channel(channel(0)) or {})[uuid(0)]
        sampler.start_channel(channel(2), t)
        assert sampler.channel(channel(2)) == {uuid(2): {}}
    assert fleet.opens == opens
    assert fleet.misuse == 0


def test_cards_keep_their_identity_when_the_driver_numbers_them_anew(start_nvml: StartNvml) -> None:
    fleet, sampler = start_nvml(cards=3, listen=True)
    for n in range(3):
        fleet[n].set(temperature=40 + n)
    sampler.sample(1000)
    fleet.renumber([2, 0, 1])
    fleet.reload_driver()
    t = sample_until(sampler, fleet, {0, 1, 2}, 1000)
    readings = sampler.sample(t + 1)
    assert [readings[uuid(n)]["gpu_temperature_celsius"] for n in range(3)] == [40, 41, 42]
    assert [(d["index"], d["uuid"]) for d in sampler.do("devices")] == [(0, uuid(2)), (1, uuid(0)), (2, uuid(1))]
    assert sampler.do("channels") == [[channel(n), [uuid(n)]] for n in (2, 0, 1)]


def test_a_card_that_is_listed_no_more_is_missed(start_nvml: StartNvml) -> None:
    fleet, sampler = start_nvml(cards=3, listen=True)
    sampler.sample(1000)
    fleet.renumber([0, 2])
    fleet.reload_driver()
    sample_until(sampler, fleet, {0, 2}, 1000)
    assert lost(sampler) == [(uuid(1), "not_listed", False)]
    assert len(sampler.do("devices")) == 3
    fleet.renumber([0, 1, 2])
    fleet.reload_driver()
    sample_until(sampler, fleet, {0, 1, 2}, 1100)
    assert lost(sampler)[1:] == [(uuid(1), "not_listed", True)]


def test_a_card_that_is_lost_from_the_beginning_is_told_by_its_number(start_nvml: StartNvml) -> None:
    fleet, sampler = start_nvml(cards=2, listen=True)
    fleet[1].lose()
    for t in (1000, 1001, 1002):
        assert set(sampler.sample(t)) == {uuid(0)}
    (event,) = sampler.events()
    assert event["data"] == {"reason": "gpu_is_lost", "source": "nvml", "index": 1}
    fleet[1].restore()
    sample_until(sampler, fleet, {0, 1}, 1060)


@pytest.mark.slow
def test_a_card_that_hangs_while_the_library_is_opened_is_left_out(start_nvml: StartNvml) -> None:
    fleet, sampler = start_nvml(cards=3, listen=True)
    fleet[1].hang()
    started = time.monotonic()
    assert {device for device, readings in sampler.sample(1000).items() if readings} == {uuid(0), uuid(2)}
    assert time.monotonic() - started < 6
    sampler.sample(1001)
    (event,) = sampler.events()
    assert event["kind"] == "probe_unresponsive"
    assert (event["data"]["channel"], event["data"]["reason"]) == ("nvml/1", "GPU 1 does not say who it is")


def test_a_slow_opening_does_not_hold_a_channel_up(start_nvml: StartNvml) -> None:
    fleet, sampler = start_nvml(cards=2)
    sampler.sample(1000)
    fleet.delay("nvmlDeviceGetCount_v2", 1.5)
    fleet.reload_driver()
    for n in (0, 1):
        sampler.start_channel(channel(n), 1001)  # finds out
    for n in (0, 1):
        assert sampler.channel(channel(n)) == {uuid(n): {}}
    started = time.monotonic()
    for n in (0, 1):
        sampler.start_channel(channel(n), 1002)
    for n in (0, 1):
        assert sampler.channel(channel(n), 1.2) == {uuid(n): {}}
    assert time.monotonic() - started < 1.2
    sample_until(sampler, fleet, {0, 1}, 1002)
    assert fleet.misuse == 0
