"""Driver events between two samples: reported within milliseconds, also when the event set is recreated."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.fakes.fleet import IS_LOST, UNKNOWN, FakeFleet, uuid
from tests.fakes.personalities import ALL_EVENTS
from tests.fakes.simulated_driver import Driven, StartNvml

pytestmark = pytest.mark.processes


def listening(fleet: FakeFleet, sampler: Driven, t: float = 1000.0) -> None:
    """Open the driver and wait until the event thread waits; what was before is lost, as on a real driver."""
    waits = fleet.calls()["nvmlEventSetWait_v2"]
    sampler.sample(t)
    until(lambda: fleet.calls()["nvmlEventSetWait_v2"] > waits)


def until(true: Any, timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_xid_is_told_within_milliseconds(start_nvml: StartNvml) -> None:
    fleet, sampler = start_nvml(listen=True)
    listening(fleet, sampler)
    delays = []
    for n in range(20):
        pushed = time.time()
        fleet[1].xid(79)
        event = sampler.wait_events(n + 1, kind="xid")[-1]
        delays.append(event["heard"] - pushed)
        assert event["device"] == uuid(1)
        assert event["data"] == {"code": 79, "source": "nvml", "pci": "0000:27:00.0"}
        assert pushed - 0.01 <= event["t"] <= event["heard"]
    assert sorted(delays)[10] < 0.05, "milliseconds where the machine is not busy, far below a sample in any case"


def test_an_xid_of_a_mig_instance_names_it(start_nvml: StartNvml) -> None:
    fleet, sampler = start_nvml(listen=True)
    listening(fleet, sampler)
    fleet[0].xid(31, gpu_instance=2, compute_instance=1)
    (event,) = sampler.wait_events(1, kind="xid")
    assert (event["data"]["gpu_instance"], event["data"]["compute_instance"]) == (2, 1)


@pytest.mark.parametrize(
    ("bit", "notice"),
    [
        (0x2, {"what": "ecc_double_bit"}),
        (0x200, {"what": "ecc_burst"}),
        (0x400, {"what": "dram_retirement"}),
        (0x800, {"what": "dram_retirement_failure"}),
        (0x1000, {"what": "poison", "fatal": False}),
        (0x2000, {"what": "poison", "fatal": True}),
        (0x4000, {"what": "gpu_unavailable"}),
        (0x8000, {"what": "recovery_action"}),
    ],
)
def test_other_events_are_notices(start_nvml: StartNvml, bit: int, notice: dict[str, Any]) -> None:
    fleet, sampler = start_nvml(cards=1, listen=True)
    listening(fleet, sampler)
    fleet[0].event(bit, 4)
    (event,) = sampler.wait_events(1, kind="gpu_event")
    assert event["data"] == {**notice, "value": 4, "source": "nvml", "pci": "0000:17:00.0"}


def test_corrected_errors_and_clock_changes_are_not_registered_for(start_nvml: StartNvml) -> None:
    fleet, sampler = start_nvml(cards=1, listen=True)
    listening(fleet, sampler)
    for bit in (0x1, 0x4, 0x10, 0x80):
        assert bit & ALL_EVENTS
        fleet[0].event(bit)
    fleet[0].xid(13)
    sampler.wait_events(1)
    assert [event["kind"] for event in sampler.events()] == ["xid"]


def test_a_card_that_supports_fewer_events_gives_those(start_nvml: StartNvml) -> None:
    fleet, sampler = start_nvml(cards=2, listen=True)
    fleet[0].supports_events(0)
    fleet[1].supports_events(0x9)
    listening(fleet, sampler)
    fleet[1].event(0x8000)
    fleet[1].xid(48)
    (event,) = sampler.wait_events(1)
    assert event["kind"] == "xid"


def test_the_recovery_action_is_read_with_the_next_sample_after_an_xid(start_nvml: StartNvml) -> None:
    fleet, sampler = start_nvml(cards=1, listen=True)
    listening(fleet, sampler)
    assert "gpu_recovery_action" not in sampler.sample(1001)[uuid(0)]
    fleet[0].set(recovery_action=2)
    fleet[0].xid(154)
    sampler.wait_events(1)
    assert sampler.sample(1002)[uuid(0)]["gpu_recovery_action"] == 2
    assert "gpu_recovery_action" not in sampler.sample(1003)[uuid(0)], "once"


@pytest.mark.slow
def test_a_set_that_cannot_be_registered_is_made_anew(start_nvml: StartNvml) -> None:
    fleet, sampler = start_nvml(cards=2, listen=True)
    fleet.fail_register(UNKNOWN, times=2)
    listening(fleet, sampler)
    fleet[1].xid(94)
    sampler.wait_events(1, kind="xid", device=uuid(1))
    calls = fleet.calls()
    assert calls["nvmlEventSetCreate"] == calls["nvmlEventSetFree"] + 1, "what was spoilt was freed"


@pytest.mark.slow
def test_a_wait_that_fails_is_begun_anew(start_nvml: StartNvml) -> None:
    fleet, sampler = start_nvml(cards=1, listen=True)
    listening(fleet, sampler)
    sets = fleet.calls()["nvmlEventSetCreate"]
    fleet.fail_wait(UNKNOWN)
    until(lambda: fleet.calls()["nvmlEventSetCreate"] > sets)
    listening(fleet, sampler, 1001)
    fleet[0].xid(13)
    sampler.wait_events(1, kind="xid")


def test_a_wait_that_names_a_lost_card_tells_it_and_goes_on_with_the_others(start_nvml: StartNvml) -> None:
    fleet, sampler = start_nvml(cards=2, listen=True)
    listening(fleet, sampler)
    fleet[0].lose()
    fleet.fail_wait(IS_LOST, card=0)
    (event,) = sampler.wait_events(1, kind="gpu_lost", timeout=1)
    assert event["device"] == uuid(0)
    assert event["data"] == {"reason": "gpu_is_lost", "source": "nvml", "pci": "0000:17:00.0"}
    sampler.sample(1001)
    listening(fleet, sampler, 1002)
    fleet[1].xid(45)
    sampler.wait_events(1, kind="xid", device=uuid(1))
    assert len(sampler.wait_events(1, kind="gpu_lost")) == 1, "the channel does not say it again"


def test_a_lost_card_that_the_wait_does_not_name_is_told_by_its_channel(start_nvml: StartNvml) -> None:
    fleet, sampler = start_nvml(cards=2, listen=True)
    listening(fleet, sampler)
    fleet[1].lose()
    fleet.fail_wait(IS_LOST)
    sampler.sample(1001)
    (event,) = sampler.wait_events(1, kind="gpu_lost")
    assert event["device"] == uuid(1)


@pytest.mark.slow
def test_events_of_a_card_that_came_back_are_heard_again(start_nvml: StartNvml) -> None:
    fleet, sampler = start_nvml(cards=2, listen=True)
    fleet[1].fails("nvmlDeviceRegisterEvents", IS_LOST)
    listening(fleet, sampler)
    fleet[1].fails("nvmlDeviceRegisterEvents", 0)
    registered = fleet.calls()["nvmlDeviceRegisterEvents"]
    until(lambda: fleet.calls()["nvmlDeviceRegisterEvents"] >= registered + 2)
    listening(fleet, sampler, 1001)
    fleet[1].xid(13)
    sampler.wait_events(1, kind="xid", device=uuid(1))


def test_events_go_on_after_the_driver_was_replaced(start_nvml: StartNvml) -> None:
    fleet, sampler = start_nvml(cards=2, listen=True)
    listening(fleet, sampler)
    sets = fleet.calls()["nvmlEventSetCreate"]
    fleet.reload_driver()
    for n in range(40):
        sampler.sample(1001 + n)
        if fleet.calls()["nvmlEventSetCreate"] > sets:
            break
        time.sleep(0.1)
    listening(fleet, sampler, 1100)
    fleet[0].xid(13)
    sampler.wait_events(1, kind="xid", device=uuid(0))
    assert fleet.misuse == 0


def test_closing_ends_the_thread_and_reading_starts_it_again(start_nvml: StartNvml) -> None:
    fleet, sampler = start_nvml(cards=1, listen=True)
    listening(fleet, sampler)
    assert "nvml-events" in sampler.do("threads")
    assert sampler.do("close") < 2
    assert "nvml-events" not in sampler.do("threads")
    listening(fleet, sampler, 1001)
    fleet[0].xid(13)
    sampler.wait_events(1, kind="xid")
    assert fleet.misuse == 0
