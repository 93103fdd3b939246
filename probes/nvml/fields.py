"""What is read how often: signals of ``mainstay.probes.signals`` to NVML field numbers and calls.

Field numbers are NVML's binary interface (but see ``mainstay.probes.nvml.throttle``); those that a driver does not know
it answers with "not supported" and they are dropped. A call stands here where no field gives the value, or as the way
out on drivers that lack the field. Left out on purpose: PCIe throughput (each call samples for 20 ms), fan speed and
graphics processes (slow, of no use).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from mainstay.probes.nvml.errors import INSUFFICIENT_SIZE, SUCCESS

Way = Callable[[Any, Any], tuple[float | None, ...]]
"""(pynvml, handle) to the values of an ``DriverCall``'s signals in their units; None: not known this time."""

RECOVERY_ACTION: Final = 230


@dataclass(frozen=True, slots=True)
class DriverCall:
    """One call and the signals that it gives, the preferred way first. Made where the batch has not given them."""

    signals: tuple[str, ...]
    ways: tuple[Way, ...]


@dataclass(frozen=True, slots=True)
class PollTier:
    """What is read every ``period`` seconds: field number to (signal, factor to its unit), and calls."""

    period: float
    fields: dict[int, tuple[str, float]] = field(default_factory=dict)
    asks: tuple[DriverCall, ...] = ()


def _one(signal: str, *reads: Callable[[Any, Any], float]) -> DriverCall:
    return DriverCall((signal,), tuple(_single(read) for read in reads))


def _single(read: Callable[[Any, Any], float]) -> Way:
    return lambda n, h: (read(n, h),)


def _ecc(signal: str, kind: int, counter: int) -> DriverCall:
    return _one(signal, lambda n, h: n.nvmlDeviceGetTotalEccErrors(h, kind, counter))


def _processes(n: Any, h: Any) -> float:
    """One call, without room for an answer: it then says how much room it wants, which is all we ask."""
    count = ctypes.c_uint(0)
    code = n.nvmlLib.nvmlDeviceGetComputeRunningProcesses_v3(h, ctypes.byref(count), None)
    if code not in (SUCCESS, INSUFFICIENT_SIZE):
        raise n.NVMLError(code)
    return count.value


def _sram(n: Any, h: Any) -> float:
    status = n.c_nvmlEccSramErrorStatus_v1_t()
    n.nvmlDeviceGetSramEccErrorStatus(h, ctypes.byref(status))
    return float(bool(status.bThresholdExceeded))


def _fabric(structure: str) -> Way:
    def read(n: Any, h: Any) -> tuple[float | None, ...]:
        info = getattr(n, structure)()
        n.nvmlDeviceGetGpuFabricInfoV(h, ctypes.byref(info))
        return info.state, info.healthMask

    return read


def _fabric_old(n: Any, h: Any) -> tuple[float | None, ...]:
    info = n.c_nvmlGpuFabricInfo_t()
    n.nvmlDeviceGetGpuFabricInfo(h, ctypes.byref(info))
    return info.state, None


FAST: Final = PollTier(
    1.0,
    {
        3: ("gpu_ecc_corrected_total", 1),
        4: ("gpu_ecc_uncorrected_total", 1),
        74: ("gpu_throttle_power_cap_nanoseconds_total", 1),
        75: ("gpu_throttle_thermal_nanoseconds_total", 1),
        76: ("gpu_throttle_sync_boost_nanoseconds_total", 1),
        82: ("gpu_memory_temperature_celsius", 1),
        83: ("gpu_energy_millijoules_total", 1),
        94: ("gpu_pcie_replay_total", 1),
        186: ("gpu_power_watts", 1e-3),
        # The other throttle counters have two numberings: ``mainstay.probes.nvml.throttle``.
    },
    (
        _one("gpu_utilization_ratio", lambda n, h: n.nvmlDeviceGetUtilizationRates(h).gpu / 100),
        _one(
            "gpu_memory_used_bytes",
            lambda n, h: n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2).used,
            lambda n, h: n.nvmlDeviceGetMemoryInfo(h).used,
        ),
        _one(
            "gpu_temperature_celsius",
            lambda n, h: n.nvmlDeviceGetTemperatureV(h, n.NVML_TEMPERATURE_GPU),
            lambda n, h: n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU),
        ),
        _one("gpu_temperature_margin_celsius", lambda n, h: n.nvmlDeviceGetMarginTemperature(h)),
        _one("gpu_sm_clock_hertz", lambda n, h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM) * 1e6),
        _one("gpu_memory_clock_hertz", lambda n, h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_MEM) * 1e6),
        _one(
            "gpu_throttle_reasons",
            lambda n, h: n.nvmlDeviceGetCurrentClocksEventReasons(h),
            lambda n, h: n.nvmlDeviceGetCurrentClocksThrottleReasons(h),
        ),
        # At 1 s, not 10 s: a card that trains down must be seen within seconds, and a fall at idle is power saving.
        _one("gpu_pcie_generation", lambda n, h: n.nvmlDeviceGetCurrPcieLinkGeneration(h)),
        _one("gpu_pcie_width", lambda n, h: n.nvmlDeviceGetCurrPcieLinkWidth(h)),
        _one("gpu_power_watts", lambda n, h: n.nvmlDeviceGetPowerUsage(h) / 1000),
        _one("gpu_energy_millijoules_total", lambda n, h: n.nvmlDeviceGetTotalEnergyConsumption(h)),
        _one("gpu_pcie_replay_total", lambda n, h: n.nvmlDeviceGetPcieReplayCounter(h)),
        _ecc("gpu_ecc_corrected_total", 0, 0),
        _ecc("gpu_ecc_uncorrected_total", 1, 0),
    ),
)

SLOW: Final = PollTier(
    10.0,
    {
        5: ("gpu_ecc_corrected_aggregate_total", 1),
        6: ("gpu_ecc_uncorrected_aggregate_total", 1),
        142: ("gpu_remapped_rows_corrected_total", 1),
        143: ("gpu_remapped_rows_uncorrected_total", 1),
        144: ("gpu_remap_pending", 1),
        145: ("gpu_remap_failed", 1),
        169: ("gpu_pcie_recoveries_total", 1),
        173: ("gpu_pcie_correctable_errors_total", 1),
        179: ("gpu_pcie_nonfatal_errors_total", 1),
        180: ("gpu_pcie_fatal_errors_total", 1),
        197: ("gpu_pcie_transmit_bytes_total", 1),
        198: ("gpu_pcie_receive_bytes_total", 1),
        RECOVERY_ACTION: ("gpu_recovery_action", 1),
    },
    (
        _one("gpu_power_limit_watts", lambda n, h: n.nvmlDeviceGetEnforcedPowerLimit(h) / 1000),
        _one("gpu_sram_threshold_exceeded", _sram),
        _one("gpu_pcie_generation_max", lambda n, h: n.nvmlDeviceGetMaxPcieLinkGeneration(h)),
        _one("gpu_pcie_width_max", lambda n, h: n.nvmlDeviceGetMaxPcieLinkWidth(h)),
        DriverCall(
            ("gpu_fabric_state", "gpu_fabric_health_mask"),
            (_fabric("c_nvmlGpuFabricInfo_v3_t"), _fabric("c_nvmlGpuFabricInfo_v2_t"), _fabric_old),
        ),
        _ecc("gpu_ecc_corrected_aggregate_total", 0, 1),
        _ecc("gpu_ecc_uncorrected_aggregate_total", 1, 1),
        DriverCall(
            (
                "gpu_remapped_rows_corrected_total",
                "gpu_remapped_rows_uncorrected_total",
                "gpu_remap_pending",
                "gpu_remap_failed",
            ),
            (lambda n, h: n.nvmlDeviceGetRemappedRows(h),),
        ),
    ),
)

MINUTE: Final = PollTier(60.0, asks=(_one("gpu_processes", _processes),))
"""Lists of processes hold the driver's lock for milliseconds."""

STATIC: Final = ("gpu_pcie_generation_max", "gpu_pcie_width_max")
"""Constants of card and slot: read in the 10 s tier, repeated in the rows between without another call, so that whoever
judges the current generation and width has both in one row."""

LINK_STATE: Final = 165
LINK_COUNT: Final = 91
LINK_FIELDS: Final[dict[int, tuple[str | None, float]]] = {
    # Field: the total that it belongs to, and what one of it weighs when the worst link is sought.
    161: ("gpu_nvlink_replays_total", 1),
    162: ("gpu_nvlink_recoveries_total", 10),
    163: ("gpu_nvlink_crc_errors_total", 1),
    206: (None, 1),  # malformed packets
    207: (None, 1),  # buffer overruns
    208: (None, 1),  # receive errors
    214: (None, 10),  # failed recoveries, on top of their part in 215
    215: ("gpu_nvlink_recoveries_total", 10),
    221: ("gpu_nvlink_crc_errors_total", 1),  # symbol errors
}
"""Up to Hopper 161-163, from Blackwell on 206-221; each driver answers its own half. A recovery counts as ten errors:
it stops the link for as long as many replays, and repeated recoveries of a link precede an outage."""
LINK_CALLS: Final = {161: 0, 162: 1, 163: 2}
"""The old call's counter numbers for drivers without these fields."""
