"""What stands where in the state file of the simulated driver: the one place that says it, for Python and for C.

The file is an array of 64-bit words. ``header()`` gives the same layout as C macros; ``fleet.compile_fake`` writes it
beside the library that it builds. A value is three words: its number, how much it grows a second (a double) and since
when (ns of CLOCK_MONOTONIC), so that counters grow without writes.
"""

from __future__ import annotations

from typing import Final

MAGIC: Final = 0x4D41494E53544159
CARDS: Final = 16
LINKS: Final = 36
FIELDS: Final = 320
EVENTS: Final = 1024
EVENT_WORDS: Final = 5
"""card, type, data, GPU instance, compute instance."""
TEXT_WORDS: Final = 12
VALUE_WORDS: Final = 3

FUNCTIONS: Final = (
    "nvmlInitWithFlags", "nvmlShutdown", "nvmlSystemGetDriverVersion", "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetSerial",
    "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetVbiosVersion", "nvmlDeviceGetInforomImageVersion",
    "nvmlDeviceGetEccMode", "nvmlDeviceGetMigMode", "nvmlDeviceGetPersistenceMode",
    "nvmlDeviceGetTemperatureThreshold", "nvmlDeviceGetPlatformInfo", "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV",
    "nvmlDeviceGetMarginTemperature", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetClockInfo", "nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetSramEccErrorStatus",
    "nvmlDeviceGetPcieReplayCounter", "nvmlDeviceGetCurrPcieLinkGeneration", "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetMaxPcieLinkGeneration", "nvmlDeviceGetMaxPcieLinkWidth", "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkErrorCounter", "nvmlDeviceGetGpuFabricInfo",
    "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetSupportedEventTypes", "nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2",
    "nvmlEventSetFree",
)  # fmt: skip
"""Every call that is counted. Order is layout."""

VALUES: Final = (
    "utilization", "memory_utilization", "memory_total", "memory_used", "memory_reserved", "temperature",
    "memory_temperature", "margin", "slowdown_temperature", "shutdown_temperature", "power", "power_limit", "energy",
    "sm_clock", "memory_clock", "reasons", "throttle_power_cap", "throttle_thermal", "throttle_sync_boost",
    "throttle_software_thermal", "throttle_hardware_thermal", "throttle_power_brake", "pcie_generation",
    "pcie_generation_max", "pcie_width", "pcie_width_max", "pcie_replays", "pcie_recoveries", "pcie_correctable",
    "pcie_nonfatal", "pcie_fatal", "pcie_receive_bytes", "pcie_transmit_bytes", "ecc_corrected", "ecc_uncorrected",
    "ecc_corrected_aggregate", "ecc_uncorrected_aggregate", "remapped_corrected", "remapped_uncorrected",
    "remap_pending", "remap_failed", "sram_threshold_exceeded", "recovery_action", "fabric_state", "fabric_status",
    "fabric_health_mask", "fabric_health_summary", "processes", "links", "ecc_mode", "mig_mode", "persistence",
    "slot", "tray", "throttle_base", "smoothing",
)  # fmt: skip
"""Of one card, in NVML's own units: %, bytes, C, mW, mJ, MHz, ns. ``throttle_base`` is the number of the first of three
throttle fields (251 or 269); the other three are settings: refused when ``smoothing`` is 0, else of that value type."""

LINK_VALUES: Final = (
    "state", "replay", "recovery", "crc", "malformed", "overruns", "receive_errors", "remote_errors", "general_errors",
    "integrity_errors", "transmit_discards", "recoveries_ok", "recoveries_failed", "recovery_events",
    "effective_errors", "symbol_errors",
)  # fmt: skip
"""Of one NVLink. ``replay recovery crc`` are fields 161-163, the rest up to ``symbol_errors`` 206-221."""

TEXTS: Final = ("name", "uuid", "serial", "pci", "vbios", "inforom", "chassis")
CARD_WORDS: Final = ("sequence", "error", "hang", "latency", "event_mask")
HEAD_WORDS: Final = (
    "magic", "cards", "unloaded", "generation", "hang", "error", "misuse", "opens", "wait_error", "wait_error_card",
    "wait_errors_left", "register_error", "register_errors_left", "event_head", "futex",
)  # fmt: skip


def _places(start: int, parts: tuple[tuple[str, int], ...]) -> dict[str, int]:
    places = {}
    for name, size in parts:
        places[name] = start
        start += size
    places["end"] = start
    return places


_N: Final = len(FUNCTIONS)
HEAD: Final = _places(
    0,
    (
        *((name, 1) for name in HEAD_WORDS),
        ("driver", TEXT_WORDS), ("order", CARDS), ("calls", _N), ("cost", _N), ("locked", _N), ("delay", _N),
        ("events", EVENTS * EVENT_WORDS),
    ),
)  # fmt: skip
CARD: Final = _places(
    0,
    (
        *((name, 1) for name in CARD_WORDS),
        *((name, TEXT_WORDS) for name in TEXTS),
        ("values", VALUE_WORDS * len(VALUES)), ("link_values", VALUE_WORDS * len(LINK_VALUES) * LINKS),
        ("field_errors", FIELDS), ("call_errors", _N),
    ),
)  # fmt: skip
WORDS: Final = HEAD["end"] + CARDS * CARD["end"]


def header() -> str:
    """The layout as C macros."""
    sizes = {"MAGIC": f"{MAGIC:#x}ULL", "MAX_CARDS": CARDS, "MAX_LINKS": LINKS, "MAX_FIELDS": FIELDS,
             "EVENTS": EVENTS, "WORDS": WORDS, "LINK_VALUES": len(LINK_VALUES)}  # fmt: skip
    lines = [f"#define {name} {value}" for name, value in sizes.items()]
    lines += [f"#define HEAD_{name.upper()} {place}" for name, place in HEAD.items()]
    lines += [f"#define CARD_{name.upper()} {place}" for name, place in CARD.items()]
    lines += [f"#define V_{name.upper()} {index}" for index, name in enumerate(VALUES)]
    lines += [f"#define L_{name.upper()} {index}" for index, name in enumerate(LINK_VALUES)]
    lines += [f"#define F_{name} {index}" for index, name in enumerate(FUNCTIONS)]
    return "\n".join(lines) + "\n"
