"""What a detector says: a finding about an entity at a time, with the numbers behind it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from probes.words import Remedy, Severity


class FindingKind(StrEnum):
    """Kinds of finding. The enumeration may grow, never change meaning."""

    PROCESS_EXIT = "process_exit"
    NODE_LOST = "node_lost"
    GPU_LOST = "gpu_lost"
    XID = "xid"
    ECC_UNCORRECTABLE = "ecc_uncorrectable"
    ROW_REMAP = "row_remap"
    PROBE_SILENT = "probe_silent"
    COMM_HANG = "comm_hang"
    NONCOMM_HANG = "noncomm_hang"
    COLLECTIVE_MISMATCH = "collective_mismatch"
    THERMAL_THROTTLE = "thermal_throttle"
    POWER_BRAKE = "power_brake"
    COMPUTE_SLOW = "compute_slow"
    PCIE_DEGRADED = "pcie_degraded"
    NVLINK_ERRORS = "nvlink_errors"
    NIC_DEGRADED = "nic_degraded"
    CONGESTION = "congestion"
    CPU_CONTENTION = "cpu_contention"
    DATA_STALL = "data_stall"
    MEMORY_LEAK = "memory_leak"
    NAN = "nan"
    LOSS_SPIKE = "loss_spike"
    SDC_SUSPECT = "sdc_suspect"
    JOB_SLOWDOWN = "job_slowdown"
    LEMON_NODE = "lemon_node"
    SIGNAL_OUTLIER = "signal_outlier"
    SXID = "sxid"
    ECC_CORRECTED = "ecc_corrected"
    RECOVERY_ACTION = "recovery_action"
    STALLED_COLLECTIVE = "stalled_collective"
    KERNEL_FAULT = "kernel_fault"
    OUT_OF_MEMORY = "out_of_memory"
    DISK_FULL = "disk_full"
    CLOCK_SKEW = "clock_skew"
    FABRIC_DOWN = "fabric_down"
    HEALTH_REPORT = "health_report"
    VALIDATION_FAILED = "validation_failed"
    FAULT_LOCALISED = "fault_localised"
    MEMORY_FLIPS = "memory_flips"
    # advice that is not a fault
    STAGE_IMBALANCE = "stage_imbalance"
    SEQUENCE_IMBALANCE = "sequence_imbalance"
    GC_JITTER = "gc_jitter"


class Cause(StrEnum):
    """Categories of root cause, as the Llama 3 report counts interruptions (table 5), and what its table leaves out."""

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
    remedy: Remedy = Remedy.NONE
    """What would mend it; from ``reset_gpu`` upwards work has to leave the node first."""
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
