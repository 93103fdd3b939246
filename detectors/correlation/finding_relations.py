"""Which kinds of finding explain which: the tables that correlation reads."""

from __future__ import annotations

from mainstay.detectors.finding import FindingKind

_K = FindingKind

DEPTH: tuple[frozenset[FindingKind], ...] = (
    # From cause to symptom, as in the fault catalog: what stands earlier explains what stands later.
    frozenset({_K.NODE_LOST}),
    frozenset({_K.GPU_LOST, _K.ECC_UNCORRECTABLE, _K.FABRIC_DOWN}),
    frozenset({_K.XID, _K.SXID, _K.ROW_REMAP, _K.NVLINK_ERRORS, _K.NIC_DEGRADED, _K.PCIE_DEGRADED})
    | {_K.FAULT_LOCALIZED},
    frozenset({_K.GPU_RECOVERY_ACTION, _K.KERNEL_FAULT, _K.OUT_OF_MEMORY, _K.DISK_FULL, _K.HEALTH_REPORT}),
    frozenset({_K.THERMAL_THROTTLE, _K.POWER_BRAKE, _K.CPU_CONTENTION, _K.MEMORY_LEAK, _K.CONGESTION})
    | {_K.DEVICE_SLOW},
    frozenset({_K.SIGNAL_OUTLIER, _K.ECC_CORRECTED, _K.CLOCK_SKEW, _K.LEMON_NODE, _K.VALIDATION_FAILED})
    | {_K.MEMORY_BIT_FLIPS},
    frozenset({_K.PROCESS_EXIT, _K.COLLECTIVE_MISMATCH, _K.SDC_SUSPECT}),
    frozenset({_K.NAN, _K.DATA_STALL, _K.STRAGGLER}),
    frozenset({_K.NONCOMM_HANG, _K.COMM_HANG, _K.STALLED_COLLECTIVE, _K.LOSS_SPIKE}),
    frozenset({_K.PROBE_UNRESPONSIVE, _K.JOB_SLOWDOWN}),
)
RANK = {kind: depth for depth, kinds in enumerate(DEPTH) for kind in kinds}

DECISIVE = frozenset({_K.XID, _K.SXID, _K.GPU_LOST, _K.ECC_UNCORRECTABLE})
"""Grave, these stand beside a lost node: whichever came first brought about the other, and says why."""

STOPS = frozenset(
    {_K.NODE_LOST, _K.GPU_LOST, _K.ECC_UNCORRECTABLE, _K.XID, _K.NIC_DEGRADED, _K.NVLINK_ERRORS}
    | {_K.PROCESS_EXIT, _K.COLLECTIVE_MISMATCH, _K.COMM_HANG, _K.NONCOMM_HANG}
    | {_K.SXID, _K.GPU_RECOVERY_ACTION, _K.STALLED_COLLECTIVE, _K.FABRIC_DOWN}
)
"""What stops a rank stops its whole job within a time-out, so any two of these in one job are one story."""
SICKENS = frozenset({_K.NAN, _K.SDC_SUSPECT, _K.LOSS_SPIKE})
"""A bad value spreads with the next all-reduce."""
SLOWS = frozenset(
    {_K.STRAGGLER, _K.CONGESTION, _K.NIC_DEGRADED, _K.NVLINK_ERRORS, _K.DATA_STALL, _K.CPU_CONTENTION}
    | {_K.THERMAL_THROTTLE, _K.POWER_BRAKE, _K.PCIE_DEGRADED, _K.FAULT_LOCALIZED, _K.DEVICE_SLOW}
)
"""Each explains a slowdown of its job; two slow ranks on different nodes explain nothing of one another."""
SHARED = frozenset(
    {_K.NODE_LOST, _K.PROBE_UNRESPONSIVE, _K.GPU_LOST, _K.XID, _K.SXID, _K.NVLINK_ERRORS}
    | {_K.FABRIC_DOWN, _K.NIC_DEGRADED}
    | {_K.THERMAL_THROTTLE, _K.POWER_BRAKE, _K.PCIE_DEGRADED, _K.GPU_RECOVERY_ACTION, _K.CLOCK_SKEW, _K.CONGESTION}
    | {_K.STALLED_COLLECTIVE, _K.KERNEL_FAULT, _K.SIGNAL_OUTLIER, _K.VALIDATION_FAILED, _K.STRAGGLER}
)
"""What nodes may have in common: power, cooling, a switch, a fabric, a job. Worn memory is each card's own."""
MUTE = frozenset({_K.PROBE_UNRESPONSIVE, _K.GPU_LOST})
"""A device that does not answer: its other findings are the reason."""

SILENCE = frozenset({_K.NODE_LOST, _K.PROBE_UNRESPONSIVE})
"""A node that does not report: its network, its daemon, or whoever listens may be the reason."""

_HOLDS = float("inf")
_DEADLINE = 600.0
"""NCCL's time-out: what stopped a rank shows as a hang within it."""
EXPLAINS: dict[FindingKind, dict[FindingKind, float]] = {
    _K.STRAGGLER: dict.fromkeys(
        (_K.THERMAL_THROTTLE, _K.POWER_BRAKE, _K.PCIE_DEGRADED, _K.CPU_CONTENTION, _K.DEVICE_SLOW), _HOLDS
    ),
    _K.NONCOMM_HANG: dict.fromkeys(
        (
            *(_K.XID, _K.SXID, _K.GPU_LOST, _K.ECC_UNCORRECTABLE, _K.KERNEL_FAULT, _K.OUT_OF_MEMORY, _K.NODE_LOST),
            *(_K.PROCESS_EXIT, _K.GPU_RECOVERY_ACTION, _K.DISK_FULL),
        ),
        _DEADLINE,
    ),
}
"""Effect on a rank -> its causes on the rank's device, or on its whole node -> for how many seconds they may precede
it. A throttled GPU makes its rank slow as long as it holds, however long the proof of that takes; a hang of a job with
long steps is seen minutes after the driver's code that explains it."""
