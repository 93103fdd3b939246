"""Every detector, in one table. What is not here is not run, and the conformance suite runs over what is."""

from __future__ import annotations

from detectors.base import ArrayDetector, Detector, EventDetector
from detectors.exit import ExitDetector
from detectors.facts import FactsDetector
from detectors.heartbeat import HeartbeatDetector
from detectors.outlier import OutlierDetector
from detectors.straggler import StragglerDetector

EVENT_DETECTORS: dict[str, type[EventDetector]] = {
    "exit": ExitDetector,  # events of all jobs: processes that ended, nodes whose launcher is gone
    "facts": FactsDetector,  # events of all nodes: XID, link, sampler
}
ARRAY_DETECTORS: dict[str, type[ArrayDetector]] = {
    "heartbeat": HeartbeatDetector,  # one for the fleet: rows are nodes
    "outlier": OutlierDetector,  # one for the fleet: rows are devices
    "straggler": StragglerDetector,  # one for each job: rows are ranks
}
DETECTORS: dict[str, type[Detector]] = {**EVENT_DETECTORS, **ARRAY_DETECTORS}
