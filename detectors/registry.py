"""Every detector, in one table. What is not here is not run, and the conformance suite runs over what is."""

from __future__ import annotations

from detectors.base import ArrayDetector, Detector, EventDetector
from detectors.contention import ContentionDetector
from detectors.data_stall import DataStallDetector
from detectors.delays import DelaysDetector
from detectors.device_state import DeviceStateDetector
from detectors.drift import DriftDetector
from detectors.exit import ExitDetector
from detectors.facts import FactsDetector
from detectors.flips import FlipsDetector
from detectors.hang import HangDetector
from detectors.heartbeat import HeartbeatDetector
from detectors.host import HostDetector
from detectors.imbalance import ImbalanceDetector
from detectors.links import LinksDetector
from detectors.memory import MemoryDetector
from detectors.nic import NicDetector
from detectors.nvlink import NvlinkDetector
from detectors.outlier import OutlierDetector
from detectors.pcie import PcieDetector
from detectors.reproduced import ReproducedDetector
from detectors.sick import SickDetector
from detectors.slowdown import SlowdownDetector
from detectors.stalled import StalledDetector
from detectors.straggler import StragglerDetector
from detectors.throttle import ThrottleDetector
from detectors.xid import XidDetector

EVENT_DETECTORS: dict[str, type[EventDetector]] = {
    "exit": ExitDetector,  # events of all jobs: processes that ended, nodes whose launcher is gone
    "facts": FactsDetector,  # events of all nodes: lost GPUs, silent samplers, kernel faults, foreign monitors
    "xid": XidDetector,  # events of all nodes: error codes of GPU and switch drivers, by the policy
    "reproduced": ReproducedDetector,  # events of all jobs: devices that replays found to compute other bits
    "links": LinksDetector,  # events of all nodes: network ports
    "flips": FlipsDetector,  # events of all jobs: host memory in which snapshots change by themselves
}
ARRAY_DETECTORS: dict[str, type[ArrayDetector]] = {
    "heartbeat": HeartbeatDetector,  # one for the fleet: rows are nodes
    "outlier": OutlierDetector,  # one for the fleet: rows are devices
    "device_state": DeviceStateDetector,  # GPUs: what the driver says of memory, fabric and what it asks for
    "pcie": PcieDetector,  # GPUs: link width and generation under load
    "drift": DriftDetector,  # GPUs: corrected errors of memory and PCIe that become more
    "nvlink": NvlinkDetector,  # GPUs: links that are down, links whose errors come faster
    "stalled": StalledDetector,  # GPUs: fully used at little power, several of a node
    "throttle": ThrottleDetector,  # GPUs: clocks held down by heat or a power brake
    "host": HostDetector,  # hosts: disks, memory, clock, fabric manager, stuck processes
    "memory": MemoryDetector,  # hosts: memory that leaks
    "nic": NicDetector,  # network ports: rate, errors, congestion
    "hang": HangDetector,  # one for each job: rows are ranks
    "contention": ContentionDetector,  # one for each job: rows are ranks
    "data_stall": DataStallDetector,  # one for each job: rows are ranks
    "imbalance": ImbalanceDetector,  # one for each job: rows are ranks; advice
    "delays": DelaysDetector,  # one for each job: rows are pairs of ranks
    "slowdown": SlowdownDetector,  # one for each job: its step times as a whole
    "sick": SickDetector,  # one for each job: NaN, spikes, replicas that differ
    "straggler": StragglerDetector,  # one for each job: rows are ranks
}
DETECTORS: dict[str, type[Detector]] = {**EVENT_DETECTORS, **ARRAY_DETECTORS}
