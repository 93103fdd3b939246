"""The NVML sampler's readings, through the real pynvml, against the simulated driver of ``tests/fakes``."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fakes.fleet import NO_PERMISSION, NOT_SUPPORTED, UNKNOWN, FakeFleet, compile_fake, uuid
from tests.fakes.simulated_driver import StartNvml

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.processes

FAST = {
    "gpu_utilization_ratio": 0.98,
    "gpu_memory_used_bytes": 60 * 2**30,
    "gpu_temperature_celsius": 55,
    "gpu_memory_temperature_celsius": 62,
    "gpu_temperature_margin_celsius": 32,
    "gpu_power_watts": 620,
    "gpu_sm_clock_hertz": 1.755e9,
    "gpu_memory_clock_hertz": 2.619e9,
    "gpu_throttle_reasons": 4,
    "gpu_energy_millijoules_total": 2**41,
    "gpu_pcie_replay_total": 0,
    "gpu_pcie_generation": 5,
    "gpu_pcie_width": 16,
    "gpu_ecc_corrected_total": 0,
    "gpu_ecc_uncorrected_total": 0,
    **{
        f"gpu_throttle_{cause}_nanoseconds_total": 0
        for cause in (
            "power_cap", "thermal", "sync_boost", "software_thermal", "hardware_thermal", "power_brake",
        )
    },
}  # fmt: skip
STATIC = {"gpu_pcie_generation_max": 5, "gpu_pcie_width_max": 16}
SLOW = {
    **STATIC,
    "gpu_power_limit_watts": 700,
    "gpu_recovery_action": 0,
    "gpu_remap_pending": 0,
    "gpu_remap_failed": 0,
    "gpu_sram_threshold_exceeded": 0,
    "gpu_nvlinks_active": 18,
    "gpu_nvlinks_supported": 18,
    "gpu_fabric_state": 3,
    "gpu_fabric_health_mask": 0x51AA,
    "gpu_ecc_corrected_aggregate_total": 0,
    "gpu_ecc_uncorrected_aggregate_total": 0,
    "gpu_remapped_rows_corrected_total": 0,
    "gpu_remapped_rows_uncorrected_total": 0,
    "gpu_pcie_recoveries_total": 0,
    "gpu_pcie_correctable_errors_total": 0,
    "gpu_pcie_nonfatal_errors_total": 0,
    "gpu_pcie_fatal_errors_total": 0,
    "gpu_pcie_receive_bytes_total": 0,
    "gpu_pcie_transmit_bytes_total": 0,
    "gpu_nvlink_replays_total": 0,
    "gpu_nvlink_recoveries_total": 0,
    "gpu_nvlink_crc_errors_total": 0,
}
MINUTE = {"gpu_processes": 1}
LINKS = {name for name in SLOW if "nvlink" in name}


def world(directory: Path) -> dict[str, str]:
    """Eight healthy H100 for the conformance suite."""
    return FakeFleet.create(directory / "gpus").environment(compile_fake(directory / "driver"))


def test_identity_and_every_tier_in_the_units_of_the_table(start_nvml: StartNvml) -> None:
    _, sampler = start_nvml()
    assert sampler.do("supported") == [True, ""]
    first, _ = sampler.do("devices")
    assert first == {
        "id": uuid(0), "index": 0, "kind": "gpu", "model": "NVIDIA H100 80GB HBM3", "serial": "1650000000000",
        "uuid": uuid(0), "memory_bytes": 80 * 2**30,
        "facts": {
            "pci": "0000:17:00.0", "driver": "580.95.05", "vbios": "96.00.89.00.01", "inforom": "G520.0200.00.05",
            "ecc_mode": "on", "mig_mode": "off", "persistence": "on", "slowdown_celsius": "87",
            "shutdown_celsius": "92",
        },
    }  # fmt: skip
    assert sampler.sample(1000) == {uuid(n): pytest.approx({**FAST, **SLOW, **MINUTE}) for n in range(2)}


def test_a_slower_tier_is_missing_between_its_readings_and_cards_take_turns(start_nvml: StartNvml) -> None:
    fleet, sampler = start_nvml(cards=4)
    sampler.sample(1000)
    fleet.clear_calls()
    seen = {name: {n: [] for n in range(4)} for name in ("gpu_recovery_action", "gpu_processes")}
    for t in range(1001, 1121):
        for n, readings in enumerate(sampler.sample(t).values()):
            assert readings.keys() >= FAST.keys() | STATIC.keys(), "what is constant stands in every row"
            for name, times in seen.items():
                if name in readings:
                    times[n].append(t)
    for times in seen["gpu_recovery_action"].values():
        assert [b - a for a, b in itertools.pairwise(times)] == [10] * 11
    for times in seen["gpu_processes"].values():
        assert [b - a for a, b in itertools.pairwise(times)] == [60]
    turns = sorted(t for times in seen["gpu_recovery_action"].values() for t in times)
    assert len(turns) == len(set(turns)), "no two cards read the slow tier in the same second"
    assert fleet.calls()["nvmlDeviceGetComputeRunningProcesses_v3"] == 8, "one call a card and minute"


@pytest.mark.parametrize("smoothing", [0, 1])
@pytest.mark.parametrize("base", [251, 269])
def test_throttle_counters_are_found_where_this_driver_has_them(
    start_nvml: StartNvml, base: int, smoothing: int
) -> None:
    fleet, sampler = start_nvml(cards=1)
    fleet[0].set(throttle_base=base, smoothing=smoothing, throttle_software_thermal=5, throttle_hardware_thermal=6)
    fleet[0].set(throttle_power_brake=7)
    for t in (1000, 1001):
        (readings,) = sampler.sample(t).values()
        causes = ("software_thermal", "hardware_thermal", "power_brake")
        assert [readings[f"gpu_throttle_{cause}_nanoseconds_total"] for cause in causes] == [5, 6, 7]


def test_throttle_counters_that_may_be_settings_are_left_out(start_nvml: StartNvml) -> None:
    fleet, sampler = start_nvml(cards=1)
    fleet[0].set(smoothing=3)
    (readings,) = sampler.sample(1000).values()
    assert FAST.keys() - readings.keys() == {
        f"gpu_throttle_{cause}_nanoseconds_total" for cause in ("software_thermal", "hardware_thermal", "power_brake")
    }


def test_a_clock_set_back_costs_no_slow_tier(start_nvml: StartNvml) -> None:
    _, sampler = start_nvml(cards=1)
    sampler.sample(5000)
    assert "gpu_recovery_action" in sampler.sample(1000)[uuid(0)]
    assert "gpu_recovery_action" not in sampler.sample(1000.5)[uuid(0)]


def test_values_follow_the_driver(start_nvml: StartNvml) -> None:
    fleet, sampler = start_nvml(cards=1)
    sampler.sample(1000)
    fleet[0].set(temperature=-3, margin=-7, power=345_600, pcie_generation=1, pcie_width=8, energy=2**60 + 1)
    fleet[0].set(ecc_corrected=17, ecc_uncorrected=2)
    fleet[0].advance(throttle_power_brake=1e9)
    time.sleep(0.05)
    (readings,) = sampler.sample(1001).values()
    assert readings["gpu_temperature_celsius"] == -3
    assert readings["gpu_temperature_margin_celsius"] == -7
    assert readings["gpu_power_watts"] == pytest.approx(345.6)
    assert (readings["gpu_pcie_generation"], readings["gpu_pcie_width"]) == (1, 8)
    assert readings["gpu_energy_millijoules_total"] == 2**60 + 1, "a counter keeps every digit"
    assert (readings["gpu_ecc_corrected_total"], readings["gpu_ecc_uncorrected_total"]) == (17, 2)
    assert 0.05e9 <= readings["gpu_throttle_power_brake_nanoseconds_total"] < 5e9
    fleet[0].set(recovery_action=2, remap_pending=1, remap_failed=1, sram_threshold_exceeded=1, fabric_state=2)
    (readings,) = sampler.sample(1010).values()
    assert readings["gpu_recovery_action"] == 2
    assert readings["gpu_remap_pending"] == readings["gpu_remap_failed"] == 1
    assert readings["gpu_sram_threshold_exceeded"] == 1
    assert readings["gpu_fabric_state"] == 2


def test_blackwell_has_other_link_counters_and_a_place_in_the_rack(start_nvml: StartNvml) -> None:
    fleet, sampler = start_nvml(cards=1, personality="b200")
    sampler.sample(1000)
    (device,) = sampler.do("devices")
    assert {key: device["facts"][key] for key in ("chassis", "slot", "tray")} == {
        "chassis": "1821325000123", "slot": "4", "tray": "2",
    }  # fmt: skip
    fleet[0].link(3).set(symbol_errors=50, recovery_events=1)
    (readings,) = sampler.sample(1010).values()
    assert "gpu_nvlink_replays_total" not in readings, "Blackwell does not count replays"
    assert (readings["gpu_nvlink_crc_errors_total"], readings["gpu_nvlink_recoveries_total"]) == (50, 1)
    assert readings["gpu_nvlink_worst_link"] == 3
    assert readings["gpu_nvlink_worst_link_errors_per_second"] == pytest.approx((50 + 10) / 10)


def test_an_older_card_gives_what_it_has(start_nvml: StartNvml) -> None:
    _, sampler = start_nvml(cards=1, personality="a100")
    (readings,) = sampler.sample(1000).values()
    assert readings["gpu_power_watts"] == 350, "without field 186 by the old call"
    assert readings["gpu_temperature_celsius"] == 55
    assert readings["gpu_nvlinks_active"] == readings["gpu_nvlinks_supported"] == 12, "state by a call a link"
    assert readings["gpu_nvlink_crc_errors_total"] == 0
    missing = (FAST.keys() | SLOW.keys() | MINUTE.keys()) - readings.keys()
    assert missing == {
        "gpu_recovery_action", "gpu_temperature_margin_celsius", "gpu_fabric_state", "gpu_fabric_health_mask",
        "gpu_throttle_software_thermal_nanoseconds_total", "gpu_throttle_hardware_thermal_nanoseconds_total",
        "gpu_throttle_power_brake_nanoseconds_total", "gpu_pcie_recoveries_total",
        "gpu_pcie_correctable_errors_total", "gpu_pcie_nonfatal_errors_total", "gpu_pcie_fatal_errors_total",
        "gpu_pcie_receive_bytes_total", "gpu_pcie_transmit_bytes_total",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("variant", "lacks"),
    [
        ("api13", set()),
        (
            "r535",
            {"gpu_recovery_action", "gpu_temperature_margin_celsius", "gpu_sram_threshold_exceeded",
             "gpu_fabric_health_mask", "gpu_throttle_software_thermal_nanoseconds_total",
             "gpu_throttle_hardware_thermal_nanoseconds_total", "gpu_throttle_power_brake_nanoseconds_total"},
        ),
    ],
)  # fmt: skip
def test_names_that_a_driver_lacks_are_read_another_way_or_left_out(
    start_nvml: StartNvml, variant: str, lacks: set[str]
) -> None:
    _, sampler = start_nvml(cards=1, variant=variant)
    (readings,) = sampler.sample(1000).values()
    everything = {**FAST, **SLOW, **MINUTE}
    assert readings == pytest.approx({name: everything[name] for name in everything.keys() - lacks})


def test_without_the_field_batch_calls_do(start_nvml: StartNvml) -> None:
    fleet, sampler = start_nvml(cards=1, variant="minimal")
    fleet[0].set(ecc_corrected=5, ecc_uncorrected_aggregate=6, remapped_corrected=7, pcie_replays=8)
    fleet[0].link(2).set(replay=9, recovery=3, crc=4)
    (readings,) = sampler.sample(1000).values()
    assert readings["gpu_memory_used_bytes"] == 61 * 2**30, "the old call counts what is reserved as used"
    assert readings["gpu_power_watts"] == 620
    assert readings["gpu_energy_millijoules_total"] == 2**41
    assert readings["gpu_pcie_replay_total"] == 8
    assert readings["gpu_ecc_corrected_total"] == 5
    assert readings["gpu_ecc_uncorrected_aggregate_total"] == 6
    assert readings["gpu_remapped_rows_corrected_total"] == 7
    assert readings["gpu_nvlinks_supported"] == 18
    totals = [readings[f"gpu_nvlink_{name}_total"] for name in ("replays", "recoveries", "crc_errors")]
    assert totals == [9, 3, 4]


def test_what_is_not_supported_is_left_out_and_not_asked_again(start_nvml: StartNvml) -> None:
    fleet, sampler = start_nvml(cards=1)
    names = ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMarginTemperature", "nvmlDeviceGetEnforcedPowerLimit")
    for name, code in zip(names, (NOT_SUPPORTED, NO_PERMISSION, NOT_SUPPORTED), strict=True):
        fleet[0].fails(name, code)
    fleet[0].field_fails((82, 230), NOT_SUPPORTED)
    for t in range(1000, 1031):
        (readings,) = sampler.sample(t).values()
        gone = {"gpu_utilization_ratio", "gpu_temperature_margin_celsius", "gpu_power_limit_watts",
                "gpu_memory_temperature_celsius", "gpu_recovery_action"}  # fmt: skip
        assert not gone & readings.keys()
    assert [fleet.calls()[name] for name in names] == [1, 1, 1]
    assert "ERROR" not in sampler.log
    assert "WARNING" not in sampler.log


def test_what_fails_once_is_asked_again(start_nvml: StartNvml) -> None:
    fleet, sampler = start_nvml(cards=1)
    fleet[0].fails("nvmlDeviceGetUtilizationRates", UNKNOWN)
    fleet[0].fails("nvmlDeviceGetFieldValues", UNKNOWN)
    (readings,) = sampler.sample(1000).values()
    assert "gpu_utilization_ratio" not in readings
    assert readings["gpu_power_watts"] == 620, "by the other call meanwhile"
    assert "gpu_throttle_power_brake_nanoseconds_total" not in readings
    fleet[0].fails("nvmlDeviceGetUtilizationRates", 0)
    fleet[0].fails("nvmlDeviceGetFieldValues", 0)
    (readings,) = sampler.sample(1001).values()
    assert {
        "gpu_utilization_ratio", "gpu_memory_temperature_celsius", "gpu_throttle_power_brake_nanoseconds_total",
    } <= readings.keys()  # fmt: skip


def test_mig_has_no_utilization_and_no_remapped_rows(start_nvml: StartNvml) -> None:
    fleet, sampler = start_nvml(cards=2)
    fleet[1].mig(True)
    whole, cut = sampler.sample(1000).values()
    assert whole.keys() - cut.keys() == {
        "gpu_utilization_ratio", "gpu_remap_pending", "gpu_remap_failed", "gpu_remapped_rows_corrected_total",
        "gpu_remapped_rows_uncorrected_total",
    }  # fmt: skip
    assert [device["facts"]["mig_mode"] for device in sampler.do("devices")] == ["off", "on"]


def test_a_card_without_links_says_nothing_of_links(start_nvml: StartNvml) -> None:
    fleet, sampler = start_nvml(cards=1)
    fleet[0].set(links=0)
    (readings,) = sampler.sample(1000).values()
    assert not [name for name in readings if "nvlink" in name]
    fleet.clear_calls()
    for t in range(1010, 1040, 10):
        sampler.sample(t)
    assert fleet.calls()["nvmlDeviceGetNvLinkState"] == 0


def test_the_worst_link_is_named_and_recoveries_weigh_more(start_nvml: StartNvml) -> None:
    fleet, sampler = start_nvml(cards=1)
    (first,) = sampler.sample(1000).values()
    assert first.keys() >= LINKS
    assert "gpu_nvlink_worst_link_errors_per_second" not in first, "one reading has no rate"
    (readings,) = sampler.sample(1010).values()
    assert readings["gpu_nvlink_worst_link_errors_per_second"] == 0
    assert "gpu_nvlink_worst_link" not in readings, "with no errors no link is the worst"
    fleet[0].link(4).set(crc=20, replay=20)
    fleet[0].link(11).set(recovery=5)
    (readings,) = sampler.sample(1020).values()
    assert readings["gpu_nvlink_worst_link"] == 11
    assert readings["gpu_nvlink_worst_link_errors_per_second"] == pytest.approx(5)
    totals = [readings[f"gpu_nvlink_{name}_total"] for name in ("replays", "recoveries", "crc_errors")]
    assert totals == [20, 5, 20]


def test_a_link_that_went_down_is_counted(start_nvml: StartNvml) -> None:
    fleet, sampler = start_nvml(cards=1)
    sampler.sample(1000)
    fleet[0].link(6).set(state=0)
    (readings,) = sampler.sample(1010).values()
    assert (readings["gpu_nvlinks_active"], readings["gpu_nvlinks_supported"]) == (17, 18)
    fleet[0].link(6).set(state=2)  # asleep to save power: up
    (readings,) = sampler.sample(1020).values()
    assert readings["gpu_nvlinks_active"] == 18


def test_counters_that_start_anew_never_give_a_negative_rate(start_nvml: StartNvml) -> None:
    fleet, sampler = start_nvml(cards=1)
    fleet[0].link(2).set(crc=1000)
    fleet[0].set(throttle_thermal=5_000_000_000, pcie_replays=7)
    sampler.sample(1000)
    fleet[0].reset_counters()
    fleet[0].link(9).set(replay=3)
    (readings,) = sampler.sample(1010).values()
    assert readings["gpu_nvlink_crc_errors_total"] == 0
    assert readings["gpu_throttle_thermal_nanoseconds_total"] == readings["gpu_pcie_replay_total"] == 0
    assert not {"gpu_nvlink_worst_link", "gpu_nvlink_worst_link_errors_per_second"} & readings.keys()
    fleet[0].link(2).set(crc=40)
    (readings,) = sampler.sample(1020).values()
    assert readings["gpu_nvlink_worst_link"] == 2
    assert readings["gpu_nvlink_worst_link_errors_per_second"] == pytest.approx(4)


def test_without_a_driver_it_says_so() -> None:
    code = "from mainstay.probes.samplers.nvml import NvmlConfig; print(NvmlConfig().build().supported().reason)"
    environment = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert Path("/proc/driver/nvidia").exists() or "the NVIDIA driver does not answer" in done.stdout
