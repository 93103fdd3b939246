"""Status of the detectors of each job: the detection loop writes it after each iteration, any request reads it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from mainstay.detectors.base import DetectorStatus
from mainstay.detectors.hang.detector import JobActivity
from mainstay.probes.decoding import build_decoders
from mainstay.service.cluster.leases import Leases
from mainstay.service.incidents.detection_shards import WHOLE, DetectionShard

SHARE_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class JobAccount:
    """Of one job."""

    detectors: list[tuple[str, DetectorStatus]] = field(default_factory=list)
    """(detector's name, its account) in the order of the registry."""
    activity: JobActivity | None = None
    """How the job stands, as the hang detector sees it."""

    def find_status(self, detector: str) -> DetectorStatus | None:
        return next((account for name, account in self.detectors if name == detector), None)


_EMPTY = JobAccount()


class DetectorStatusCache:
    """Each shard replaces its part; readers see one iteration or the next, never half of each."""

    def __init__(self) -> None:
        self._parts: dict[int, Mapping[str, JobAccount]] = {}
        self._jobs: Mapping[str, JobAccount] = {}
        self._lock = threading.Lock()

    @property
    def jobs(self) -> Mapping[str, JobAccount]:
        """By job, those that are detected."""
        return self._jobs

    def part(self, shard: int) -> Mapping[str, JobAccount]:
        """By job, those of one shard."""
        return self._parts.get(shard, {})

    def replace(self, jobs: Mapping[str, JobAccount], shard: int = 0) -> None:
        """Replace the part of a shard."""
        with self._lock:
            self._parts[shard] = jobs
            self._jobs = {job: account for part in self._parts.values() for job, account in part.items()}

    def job_account(self, job: str) -> JobAccount:
        """Empty for a job without detection: it does not run, or the loop has not processed it yet."""
        return self._jobs.get(job, _EMPTY)


build_decoders(JobAccount)


@dataclass
class SharedDetectorStatus:
    """Shows the status of the processes that detect on the pages of the others too."""

    leases: Leases
    accounts: DetectorStatusCache
    shard: DetectionShard = WHOLE
    _last: bytes | None = field(default=None, init=False)

    def run_once(self) -> None:
        """Share what has changed, or read what was shared."""
        lease, index = self.shard.lease, self.shard.index
        if self.leases.epoch(lease) is None:
            shared = self.leases.shared(lease)
            if shared is not None and shared != self._last:
                self.accounts.replace(msgspec.msgpack.decode(shared, type=dict[str, JobAccount]), index)
        else:
            shared = msgspec.msgpack.encode(self.accounts.part(index))
            if shared != self._last:
                self.leases.share(lease, shared)
        self._last = shared
