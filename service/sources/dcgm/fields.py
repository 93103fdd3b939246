"""Which field of a dcgm-exporter becomes which of our signals. Data: a new field is one row.

DCGM 4.6 renamed many fields and kept the old names as aliases, so an exporter may send either. The prefix
``DCGM_FI_DEV_`` is left out, and ``L*`` stands for the number of a link: links are summed. Rows of the same signal
stand in order of preference.

Left out on purpose: ``*_VIOLATION`` (the header counts nanoseconds, the exporter's own help says microseconds),
``*_THROUGHPUT`` and ``DCGM_FI_PROF_*`` (rates or activities for which we have no signal).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

PREFIX: Final = "DCGM_FI_DEV_"
XID_GAUGE: Final = ("XID_ERRORS", "XID_ERROR")
"""The code of the last XID, kept for ever: it neither repeats nor clears."""
XID_COUNT: Final = "DCGM_EXP_XID_ERRORS_COUNT"
"""How often each XID was seen in a sliding window: labels ``xid`` and ``window_size_in_ms``."""
MEMORY_TOTAL: Final = "FB_TOTAL"
MIB: Final = 1024.0 * 1024.0
_LINK: Final = re.compile(r"_L\d{1,2}(?=_|$)")


class Split(StrEnum):
    """What instances of a split card (MIG) say about the whole card, where only they have the field."""

    LARGEST = "largest"  # each instance repeats the card's own value
    SUM = "sum"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Field:
    """One field under all its names."""

    signal: str
    old: str
    new: str
    unit: str
    """The exporter's."""
    scale: float = 1.0
    """Ours = theirs × scale."""
    split: Split = Split.LARGEST


def _same(signal: str, name: str, unit: str, scale: float = 1.0) -> Field:
    return Field(signal, name, name, unit, scale)


UTILIZATION: Final = Field(
    "gpu_utilization_ratio", "GPU_UTIL", "GPU_UTIL_RATIO", "% or ratio: told by its values", split=Split.NOTHING
)

FIELDS: Final = (
    UTILIZATION,
    Field("gpu_temperature_celsius", "GPU_TEMP", "GPU_TEMP_CELSIUS", "C"),
    Field("gpu_memory_temperature_celsius", "MEMORY_TEMP", "MEMORY_TEMP_CELSIUS", "C"),
    Field("gpu_temperature_margin_celsius", "GPU_TEMP_LIMIT", "GPU_TEMP_MARGIN_CELSIUS", "C"),
    Field("gpu_power_watts", "POWER_USAGE", "BOARD_POWER_WATTS", "W"),
    Field("gpu_power_watts", "POWER_USAGE_INSTANT", "BOARD_POWER_RAW_WATTS", "W"),
    Field("gpu_power_limit_watts", "ENFORCED_POWER_LIMIT", "BOARD_POWER_LIMIT_ENFORCED_WATTS", "W"),
    _same("gpu_energy_millijoules_total", "TOTAL_ENERGY_CONSUMPTION", "mJ"),
    _same("gpu_sm_clock_hertz", "SM_CLOCK", "MHz", 1e6),
    _same("gpu_memory_clock_hertz", "MEM_CLOCK", "MHz", 1e6),
    Field("gpu_memory_used_bytes", "FB_USED", "FB_USED", "MiB", MIB, Split.SUM),
    Field("gpu_throttle_reasons", "CLOCK_THROTTLE_REASONS", "CLOCKS_EVENT_REASONS", "bitmask"),
    _same("gpu_throttle_power_cap_nanoseconds_total", "CLOCKS_EVENT_REASON_SW_POWER_CAP_NS", "ns"),
    _same("gpu_throttle_sync_boost_nanoseconds_total", "CLOCKS_EVENT_REASON_SYNC_BOOST_NS", "ns"),
    _same("gpu_throttle_software_thermal_nanoseconds_total", "CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS", "ns"),
    _same("gpu_throttle_hardware_thermal_nanoseconds_total", "CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS", "ns"),
    _same("gpu_throttle_power_brake_nanoseconds_total", "CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS", "ns"),
    _same("gpu_ecc_corrected_total", "ECC_SBE_VOL_TOTAL", "1"),
    _same("gpu_ecc_uncorrected_total", "ECC_DBE_VOL_TOTAL", "1"),
    _same("gpu_ecc_corrected_aggregate_total", "ECC_SBE_AGG_TOTAL", "1"),
    _same("gpu_ecc_uncorrected_aggregate_total", "ECC_DBE_AGG_TOTAL", "1"),
    Field("gpu_remapped_rows_corrected_total", "CORRECTABLE_REMAPPED_ROWS", "ROW_REMAP_CORRECTABLE_TOTAL", "1"),
    Field("gpu_remapped_rows_uncorrected_total", "UNCORRECTABLE_REMAPPED_ROWS", "ROW_REMAP_UNCORRECTABLE_TOTAL", "1"),
    _same("gpu_remap_pending", "ROW_REMAP_PENDING", "1"),
    Field("gpu_remap_failed", "ROW_REMAP_FAILURE", "ROW_REMAP_FAILED", "1"),
    Field("gpu_sram_threshold_exceeded", "THRESHOLD_SRM", "SRAM_EXCEEDED", "1"),
    Field("gpu_recovery_action", "GET_GPU_RECOVERY_ACTION", "GPU_RECOVERY_ACTION", "state"),
    _same("gpu_fabric_health_mask", "FABRIC_HEALTH_MASK", "bitmask"),
    _same("gpu_pcie_generation", "PCIE_LINK_GEN", "1"),
    _same("gpu_pcie_generation_max", "PCIE_MAX_LINK_GEN", "1"),
    _same("gpu_pcie_width", "PCIE_LINK_WIDTH", "1"),
    _same("gpu_pcie_width_max", "PCIE_MAX_LINK_WIDTH", "1"),
    Field("gpu_pcie_replay_total", "PCIE_REPLAY_COUNTER", "PCIE_REPLAY_TOTAL", "1"),
    Field("gpu_pcie_correctable_errors_total", "PCIE_COUNT_CORRECTABLE_ERRORS", "PCIE_CORRECTABLE_ERROR_TOTAL", "1"),
    Field("gpu_nvlink_replays_total", "NVLINK_ERROR_DL_REPLAY", "NVLINK_REPLAY_TOTAL", "1"),
    Field("gpu_nvlink_replays_total", "NVLINK_REPLAY_ERROR_COUNT_TOTAL", "NVLINK_REPLAY_ERROR_TOTAL", "1"),
    Field("gpu_nvlink_replays_total", "NVLINK_REPLAY_ERROR_COUNT_L*", "NVLINK_REPLAY_ERROR_L*_TOTAL", "1"),
    _same("gpu_nvlink_replays_total", "NVLINK_REPLAY_ERROR_PER_LINK_TOTAL", "1"),
    Field("gpu_nvlink_recoveries_total", "NVLINK_ERROR_DL_RECOVERY", "NVLINK_RECOVERY_TOTAL", "1"),
    Field("gpu_nvlink_recoveries_total", "NVLINK_COUNT_LINK_RECOVERY_EVENTS", "NVLINK_RECOVERY_EVENT_TOTAL", "1"),
    Field("gpu_nvlink_recoveries_total", "NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "NVLINK_RECOVERY_ERROR_TOTAL", "1"),
    Field("gpu_nvlink_recoveries_total", "NVLINK_RECOVERY_ERROR_COUNT_L*", "NVLINK_RECOVERY_ERROR_L*_TOTAL", "1"),
    _same("gpu_nvlink_recoveries_total", "NVLINK_RECOVERY_ERROR_PER_LINK_TOTAL", "1"),
    Field("gpu_nvlink_crc_errors_total", "NVLINK_ERROR_DL_CRC", "NVLINK_CRC_ERROR_TOTAL", "1"),
    Field("gpu_nvlink_crc_errors_total", "NVLINK_COUNT_RX_SYMBOL_ERRORS", "NVLINK_RX_SYMBOL_ERROR_TOTAL", "1"),
    Field("gpu_nvlink_crc_errors_total", "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "NVLINK_CRC_FLIT_ERROR_TOTAL", "1"),
    Field("gpu_nvlink_crc_errors_total", "NVLINK_CRC_FLIT_ERROR_COUNT_L*", "NVLINK_CRC_FLIT_ERROR_L*_TOTAL", "1"),
    _same("gpu_nvlink_crc_errors_total", "NVLINK_CRC_FLIT_ERROR_PER_LINK_TOTAL", "1"),
)

BY_NAME: Final[dict[str, int]] = {name: row for row, field in enumerate(FIELDS) for name in (field.old, field.new)}
"""Name of a field without its prefix → row of the table."""


def plain_name(metric: str) -> str | None:
    """The field's name as the table has it; None for what is no field of a device."""
    return _LINK.sub("_L*", metric.removeprefix(PREFIX)) if metric.startswith(PREFIX) else None


def is_blank(value: float) -> bool:
    """Whether DCGM means "not known": its blank values are the top sixteen of int32 and int64, and 2^47 upwards."""
    return (
        value != value  # noqa: PLR0124 - NaN
        or 0x7FFFFFF0 <= value <= 0x7FFFFFFF
        or 2.0**47 <= value < 2.0**47 + 16
        or value >= float(0x7FFFFFFFFFFFFFF0)
    )
