"""The category of cause that a kind of finding tells by itself; where it takes more to know, the detector says it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from detectors.finding import Cause, FindingKind

USUAL: Final[Mapping[FindingKind, Cause]] = {
    FindingKind.GPU_LOST: Cause.FAULTY_GPU,
    FindingKind.ECC_UNCORRECTABLE: Cause.GPU_MEMORY,
    FindingKind.ECC_CORRECTED: Cause.GPU_MEMORY,
    FindingKind.ROW_REMAP: Cause.GPU_MEMORY,
    FindingKind.RECOVERY_ACTION: Cause.FAULTY_GPU,
    FindingKind.THERMAL_THROTTLE: Cause.GPU_THERMAL,
    FindingKind.POWER_BRAKE: Cause.HOST,
    FindingKind.PCIE_DEGRADED: Cause.GPU_LINK,
    FindingKind.NVLINK_ERRORS: Cause.GPU_LINK,
    FindingKind.FABRIC_DOWN: Cause.GPU_LINK,
    FindingKind.NIC_DEGRADED: Cause.NIC,
    FindingKind.CONGESTION: Cause.NETWORK,
    FindingKind.DISK_FULL: Cause.STORAGE,
    FindingKind.CLOCK_SKEW: Cause.HOST,
    FindingKind.KERNEL_FAULT: Cause.HOST,
    FindingKind.MEMORY_FLIPS: Cause.HOST,
    FindingKind.OUT_OF_MEMORY: Cause.SOFTWARE,
    FindingKind.MEMORY_LEAK: Cause.SOFTWARE,
}
