"""What a detector says: a finding about an entity at a time, with the numbers behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from mainstay.probes.core_types import RecommendedAction, Severity


def join_names(names: Sequence[object], most: int = 4) -> str:
    """How a sentence lists names: ``a, b and 3 more``."""
    shown = ", ".join(map(str, names[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


class FindingKind(StrEnum):
    """Kinds of findings. Kinds may be added; their meaning never changes."""

    PROCESS_EXIT = "process_exit"  # a process of a job ended with an error
    NODE_LOST = "node_lost"  # a node stopped reporting and its work stopped
    GPU_LOST = "gpu_lost"  # the driver no longer reaches a GPU
    XID = "xid"  # the GPU driver reported an error code
    ECC_UNCORRECTABLE = "ecc_uncorrectable"  # uncorrectable memory errors of a GPU or host
    ROW_REMAP = "row_remap"  # a GPU memory row waits for remapping, or remapping failed
    PROBE_UNRESPONSIVE = "probe_unresponsive"  # the node daemon or its sampler stopped reporting while the node works
    COMM_HANG = "comm_hang"  # ranks wait in a collective that does not complete
    NONCOMM_HANG = "noncomm_hang"  # a rank stopped outside a collective
    COLLECTIVE_MISMATCH = "collective_mismatch"  # ranks of a group called different collectives
    THERMAL_THROTTLE = "thermal_throttle"  # heat holds the clocks of a GPU down
    POWER_BRAKE = "power_brake"  # an external power brake holds the clocks of a GPU down
    STRAGGLER = "straggler"  # a rank computes more slowly than its peers
    DEVICE_SLOW = "device_slow"  # the device or host of a rank runs the same kernels more slowly than its peers'
    PCIE_DEGRADED = "pcie_degraded"  # a PCIe link is slower or narrower than possible, or has errors
    NVLINK_ERRORS = "nvlink_errors"  # an NVLink is down, or its errors increase
    NIC_DEGRADED = "nic_degraded"  # a network port is down, slow, or has errors
    CONGESTION = "congestion"  # the network between nodes is congested
    CPU_CONTENTION = "cpu_contention"  # other processes take CPU time from a rank
    DATA_STALL = "data_stall"  # a rank waits for its input data
    MEMORY_LEAK = "memory_leak"  # the memory use of a host grows steadily
    NAN = "nan"  # a loss or gradient is NaN or infinite
    LOSS_SPIKE = "loss_spike"  # the loss jumped
    SDC_SUSPECT = "sdc_suspect"  # a device may compute wrong results (silent data corruption)
    JOB_SLOWDOWN = "job_slowdown"  # the steps of a whole job became slower
    LEMON_NODE = "lemon_node"  # a node fails more often than its peers
    SIGNAL_OUTLIER = "signal_outlier"  # a signal of a device differs from its peers
    SXID = "sxid"  # the NVSwitch driver reported an error code
    ECC_CORRECTED = "ecc_corrected"  # corrected memory errors increase
    GPU_RECOVERY_ACTION = "gpu_recovery_action"  # the driver requests a recovery action for a GPU
    STALLED_COLLECTIVE = "stalled_collective"  # GPUs of a node are fully used at low power, as in a stalled collective
    KERNEL_FAULT = "kernel_fault"  # the kernel of a node reported a fault
    OUT_OF_MEMORY = "out_of_memory"  # a host ran out of memory
    DISK_FULL = "disk_full"  # a file system of a node is full
    CLOCK_SKEW = "clock_skew"  # the clock of a node is not synchronized
    FABRIC_DOWN = "fabric_down"  # the NVSwitch fabric of a node is down
    HEALTH_REPORT = "health_report"  # another monitoring system reported a fault
    VALIDATION_FAILED = "validation_failed"  # a node failed a benchmark against its criteria
    FAULT_LOCALIZED = "fault_localized"  # fault localization found a faulty device, node, cable, or switch
    MEMORY_BIT_FLIPS = "memory_bit_flips"  # bits in the host memory of a node changed without a write
    # advice that is not a fault
    STAGE_IMBALANCE = "stage_imbalance"  # the pipeline stages of a job take unequal time
    SEQUENCE_IMBALANCE = "sequence_imbalance"  # sequence lengths differ between the ranks of a job
    GC_JITTER = "gc_jitter"  # Python garbage collection delays ranks at different times


class Cause(StrEnum):
    """Categories of root cause: those of the Llama 3 report (table 5), and further ones."""

    FAULTY_GPU = "faulty_gpu"
    GPU_MEMORY = "gpu_memory"  # HBM
    GPU_SRAM = "gpu_sram"
    GPU_SYSTEM_PROCESSOR = "gpu_system_processor"
    GPU_THERMAL = "gpu_thermal"
    GPU_LINK = "gpu_link"  # NVLink, NVSwitch, PCIe
    SILENT_CORRUPTION = "silent_corruption"
    NETWORK = "network"  # switch or cable
    NIC = "nic"
    HOST = "host"  # CPU, memory, chassis, power, kernel
    STORAGE = "storage"
    MAINTENANCE = "maintenance"
    SOFTWARE = "software"  # the training program
    DEPENDENCY = "dependency"  # driver, library, service
    COLLECTIVE_TIMEOUT = "collective_timeout"
    OPERATOR = "operator"  # asked for
    WORKLOAD = "workload"  # imbalance: nothing is broken


ADVICE = frozenset({FindingKind.STAGE_IMBALANCE, FindingKind.SEQUENCE_IMBALANCE, FindingKind.GC_JITTER})
"""Said to help, never to blame: no incident opens from these."""
_K = FindingKind
HARDWARE = frozenset(
    {_K.NODE_LOST, _K.GPU_LOST, _K.XID, _K.SXID, _K.ECC_UNCORRECTABLE, _K.ROW_REMAP, _K.GPU_RECOVERY_ACTION}
    | {_K.NVLINK_ERRORS, _K.PCIE_DEGRADED, _K.NIC_DEGRADED, _K.FABRIC_DOWN, _K.THERMAL_THROTTLE, _K.POWER_BRAKE}
    | {_K.KERNEL_FAULT, _K.FAULT_LOCALIZED, _K.MEMORY_BIT_FLIPS}
)
"""Kinds that report a fault of the node's hardware, with any job on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """What a finding is about. At least one field is set."""

    node: str | None = None
    device: str | None = None
    job: str | None = None
    rank: int | None = None
    peer: int | None = None
    """With ``rank``: the rank that it sends to; the finding is about the way between them."""

    def __post_init__(self) -> None:
        if self.node is None and self.device is None and self.job is None and self.rank is None:
            raise ValueError("a finding needs an entity: set node, device, job or rank")

    @property
    def key(self) -> str:
        """Stable text key, used to merge findings about the same thing."""
        parts = (
            ("job", self.job),
            ("rank", self.rank),
            ("peer", self.peer),
            ("node", self.node),
            ("device", self.device),
        )
        return "/".join(f"{name}={value}" for name, value in parts if value is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Evidence that a chart can draw: one line with its limits."""

    name: str
    unit: str
    x: tuple[float, ...]
    """Unix seconds or step numbers; same length as ``y``."""
    y: tuple[float, ...]
    x_is: str = "time"
    """``"time"`` or ``"step"``."""
    threshold: float | None = None
    peers: tuple[float, ...] = ()
    """The peers' median at each x, or empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Why: a sentence, the numbers, and the series to draw."""

    summary: str
    numbers: dict[str, float] = field(default_factory=dict)
    series: tuple[Series, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A detector's statement. ``active=False`` says that an earlier finding about the same entity no longer holds."""

    kind: FindingKind
    entity: Entity
    time: float
    """Data time, Unix seconds: the detector's clock is the data's."""
    severity: Severity
    detector: str
    confidence: float
    """Probability that the statement is true, 0..1."""
    evidence: Evidence
    active: bool = True
    recommended_action: RecommendedAction = RecommendedAction.NONE
    """The mildest action expected to repair it; from ``reset_gpu`` upwards work has to leave the node first."""
    cause: Cause | None = None
    """Root-cause category, where the detector can tell."""
    event: str | None = None
    """Id of the event behind it, where one event is the whole reason."""

    @property
    def about(self) -> str:
        """What it is about, whoever says it."""
        return f"{self.kind}:{self.entity.key}"

    @property
    def key(self) -> str:
        """Whose statement about what: two detectors may witness the same, and each takes back only its own word."""
        return f"{self.about}:{self.detector}"

    def ended(self, time: float, why: str, event: str | None = None) -> Finding:
        """The statement that it no longer holds."""
        return replace(self, active=False, time=time, evidence=Evidence(summary=why), event=event)
