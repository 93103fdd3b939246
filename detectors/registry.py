"""Every detector, in one table. Mainstay runs only these detectors, and the conformance suite covers all of them."""

from __future__ import annotations

from mainstay.detectors.base import ArrayDetector, Detector, EventDetector
from mainstay.detectors.correlation.hardware_events import HardwareEventDetector
from mainstay.detectors.gpu.device_state import DeviceStateDetector
from mainstay.detectors.gpu.error_drift import DriftDetector
from mainstay.detectors.gpu.nvlink import NvlinkDetector
from mainstay.detectors.gpu.pcie import PcieDetector
from mainstay.detectors.gpu.throttle import ThrottleDetector
from mainstay.detectors.gpu.xid import XidDetector
from mainstay.detectors.hang.detector import HangDetector
from mainstay.detectors.hang.stalled_collective import StalledCollectiveDetector
from mainstay.detectors.host.checks import HostDetector
from mainstay.detectors.host.heartbeat import HeartbeatDetector
from mainstay.detectors.host.host_anomaly import HostAnomalyDetector
from mainstay.detectors.host.memory_bit_flips import MemoryBitFlipDetector
from mainstay.detectors.host.memory_leak import MemoryDetector
from mainstay.detectors.job.numeric_anomalies import NumericAnomalyDetector
from mainstay.detectors.job.process_exit import ProcessExitDetector
from mainstay.detectors.job.slowdown import SlowdownDetector
from mainstay.detectors.job.speed_check import SpeedCheckDetector
from mainstay.detectors.job.step_replay import StepReplayDetector
from mainstay.detectors.network.link_state import LinksDetector
from mainstay.detectors.network.nic import NicDetector
from mainstay.detectors.network.transfer_delays import TransferDelayDetector
from mainstay.detectors.statistics.outlier import OutlierDetector
from mainstay.detectors.straggler.contention import ContentionDetector
from mainstay.detectors.straggler.data_stall import DataStallDetector
from mainstay.detectors.straggler.detector import StragglerDetector
from mainstay.detectors.straggler.imbalance import ImbalanceDetector

EVENT_DETECTORS: dict[str, type[EventDetector]] = {
    "process_exit": ProcessExitDetector,  # events of all jobs: processes that ended, nodes whose launcher is gone
    "hardware_events": HardwareEventDetector,  # events of all nodes: lost GPUs, silent samplers, kernel faults
    "xid": XidDetector,  # events of all nodes: error codes of GPU and switch drivers, by the policy
    "step_replay": StepReplayDetector,  # events of all jobs: devices that replays found to compute other bits
    "speed_check": SpeedCheckDetector,  # events of all jobs: ranks whose speed was compared with their peers'
    "link_state": LinksDetector,  # events of all nodes: network ports
    "memory_bit_flips": MemoryBitFlipDetector,  # events of all jobs: host memory that changes snapshots
}
ARRAY_DETECTORS: dict[str, type[ArrayDetector]] = {
    "heartbeat": HeartbeatDetector,  # one for the fleet: rows are nodes
    "outlier": OutlierDetector,  # one for the fleet: rows are devices
    "device_state": DeviceStateDetector,  # GPUs: what the driver says of memory, fabric and what it asks for
    "pcie": PcieDetector,  # GPUs: link width and generation under load
    "error_drift": DriftDetector,  # GPUs: corrected errors of memory and PCIe that become more
    "nvlink": NvlinkDetector,  # GPUs: links that are down, links whose errors come faster
    "stalled_collective": StalledCollectiveDetector,  # GPUs: fully used at little power, several of a node
    "throttle": ThrottleDetector,  # GPUs: clocks held down by heat or a power brake
    "host_checks": HostDetector,  # hosts: disks, memory, clock, fabric manager, stuck processes
    "memory_leak": MemoryDetector,  # hosts: memory that leaks
    "host_anomaly": HostAnomalyDetector,  # hosts: signals that together are not as usual
    "nic": NicDetector,  # network ports: rate, errors, congestion
    "hang": HangDetector,  # one for each job: rows are ranks
    "contention": ContentionDetector,  # one for each job: rows are ranks
    "data_stall": DataStallDetector,  # one for each job: rows are ranks
    "imbalance": ImbalanceDetector,  # one for each job: rows are ranks; advice
    "transfer_delays": TransferDelayDetector,  # one for each job: rows are pairs of ranks
    "slowdown": SlowdownDetector,  # one for each job: its step times as a whole
    "numeric_anomalies": NumericAnomalyDetector,  # one for each job: NaN, spikes, replicas that differ
    "straggler": StragglerDetector,  # one for each job: rows are ranks
}
DETECTORS: dict[str, type[Detector]] = {**EVENT_DETECTORS, **ARRAY_DETECTORS}
