"""What each model of simulated GPU reports when it is healthy and busy, and which calls and fields it lacks."""

from __future__ import annotations

from typing import Any, Final

ALL_EVENTS: Final = 0xFE9F
"""What a current data-centre card supports: everything up to the recovery action, 0x8000."""
_OLD_EVENTS: Final = 0x9F
_BLACKWELL_LINK_FIELDS: Final = (*range(206, 216), 219, 221)
_HOPPER_LINK_FIELDS: Final = (161, 162, 163)
_GIB: Final = 2**30
HEALTHY_FABRIC: Final = 0x51AA
"""Manager connected, partition assigned, configuration right; no degraded bandwidth, route trouble or time-out."""

COMMON: Final = {
    "utilization": 98, "memory_utilization": 40, "memory_used": 60 * _GIB, "memory_reserved": _GIB, "temperature": 55,
    "memory_temperature": 62, "margin": 32, "slowdown_temperature": 87, "shutdown_temperature": 92, "reasons": 0x4,
    "energy": 2**41, "pcie_width": 16, "pcie_width_max": 16, "processes": 1, "ecc_mode": 1, "persistence": 1,
    "throttle_base": 251,
}  # fmt: skip
"""Values that all models share; names and units are those of ``layout.VALUES``."""
PERSONALITIES: Final[dict[str, dict[str, Any]]] = {
    "h100": {
        "name": "NVIDIA H100 80GB HBM3", "vbios": "96.00.89.00.01", "inforom": "G520.0200.00.05",
        "event_mask": ALL_EVENTS, "missing_fields": _BLACKWELL_LINK_FIELDS,
        "missing_calls": ("nvmlDeviceGetPlatformInfo",),
        "values": {"memory_total": 80 * _GIB, "power": 620_000, "power_limit": 700_000, "sm_clock": 1755,
                   "memory_clock": 2619, "pcie_generation": 5, "pcie_generation_max": 5, "links": 18,
                   "fabric_state": 3, "fabric_health_mask": HEALTHY_FABRIC, "fabric_health_summary": 1},
    },
    "b200": {
        "name": "NVIDIA B200", "vbios": "97.00.52.00.02", "inforom": "G548.0201.00.06", "chassis": "1821325000123",
        "event_mask": ALL_EVENTS, "missing_fields": _HOPPER_LINK_FIELDS, "missing_calls": (),
        "values": {"memory_total": 180 * _GIB, "power": 900_000, "power_limit": 1_000_000, "sm_clock": 1920,
                   "memory_clock": 3996, "pcie_generation": 6, "pcie_generation_max": 6, "links": 18,
                   "fabric_state": 3, "fabric_health_mask": HEALTHY_FABRIC, "fabric_health_summary": 1,
                   "slot": 4, "tray": 2, "smoothing": 1},
    },
    "a100": {
        "name": "NVIDIA A100-SXM4-80GB", "vbios": "92.00.45.00.03", "inforom": "G506.0200.00.04",
        "event_mask": _OLD_EVENTS,
        "missing_fields": (*_BLACKWELL_LINK_FIELDS, 165, 169, 173, 179, 180, 186, 197, 198, 230, 251, 252, 253),
        "missing_calls": ("nvmlDeviceGetPlatformInfo", "nvmlDeviceGetTemperatureV", "nvmlDeviceGetMarginTemperature",
                          "nvmlDeviceGetGpuFabricInfo", "nvmlDeviceGetGpuFabricInfoV"),
        "values": {"memory_total": 80 * _GIB, "power": 350_000, "power_limit": 400_000, "sm_clock": 1410,
                   "memory_clock": 1593, "pcie_generation": 4, "pcie_generation_max": 4, "links": 12},
    },
}  # fmt: skip
