"""How detection spreads over the processes of a service.

Invariant: a shard needs nothing that another shard knows, so the findings of all shards together are those of one
process. Rows of one detector are compared with each other (peers of a cohort, false discoveries among all tests), and
so are the ranks of one job. The parts are therefore whole detectors of the fleet and whole jobs, not racks of nodes.
Each shard has a lease of its own (``service/cluster/leases.py``).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mainstay.detectors.base import Feed
from mainstay.detectors.finding import Finding
from mainstay.detectors.registry import ARRAY_DETECTORS

DETECTION: Final = "detection"
"""The lease of the first shard."""
SHARDS: Final = 4
"""Of a service on PostgreSQL. All its processes must agree on the number."""
_FLEET: Final = tuple(name for name, detector in ARRAY_DETECTORS.items() if detector.feed is Feed.DEVICES)
"""Detectors of the fleet, assigned to the shards in turn."""


@dataclass(frozen=True, slots=True)
class DetectionShard:
    """The detectors of the fleet and the jobs that one process evaluates.

    The first shard also evaluates events, the silence of nodes, and deadlines.
    """

    index: int = 0
    count: int = 1

    @property
    def lease(self) -> str:
        return DETECTION if self.is_first else f"{DETECTION}-{self.index}"

    @property
    def is_first(self) -> bool:
        return self.index == 0

    def has_detector(self, name: str) -> bool:
        """Whether it runs this detector of the fleet."""
        if name == "heartbeat":  # also reads the times of events
            return self.is_first
        return _FLEET.index(name) % self.count == self.index

    def has_job(self, job: str) -> bool:
        """Whether it runs the detectors of this job."""
        return zlib.crc32(job.encode()) % self.count == self.index

    def has_finding(self, finding: Finding) -> bool:
        """Whether its array detectors made this finding, and so are those that can end it."""
        detector = ARRAY_DETECTORS.get(finding.detector)
        if detector is None:
            return False
        job = finding.entity.job
        return self.has_detector(detector.name) if detector.feed is Feed.DEVICES or job is None else self.has_job(job)


WHOLE: Final = DetectionShard()
"""All of detection, in one process."""


def shards(count: int) -> Sequence[DetectionShard]:
    """All shards of a service with ``count`` of them."""
    return [DetectionShard(index, count) for index in range(count)]
