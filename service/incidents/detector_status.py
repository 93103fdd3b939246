"""Status of the detectors of each job: the detection loop writes it after each iteration, any request reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from mainstay.detectors.base import DetectorStatus
from mainstay.detectors.hang.detector import JobActivity
from mainstay.service.cluster.leases import Leases

SHARE_SECONDS: Final = 2.0
DETECTION: Final = "detection"
"""The lease under which one process detects."""


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
    """One writer, which replaces the whole; readers see one turn or the next, never half of each."""

    def __init__(self) -> None:
        self._jobs: Mapping[str, JobAccount] = {}

    @property
    def jobs(self) -> Mapping[str, JobAccount]:
        """By job, those that are detected."""
        return self._jobs

    def replace(self, jobs: Mapping[str, JobAccount]) -> None:
        self._jobs = jobs

    def job_account(self, job: str) -> JobAccount:
        """Empty for a job without detection: it does not run, or the loop has not processed it yet."""
        return self._jobs.get(job, _EMPTY)


@dataclass
class SharedDetectorStatus:
    """Shows the status of the process that detects on the pages of the others too."""

    leases: Leases
    accounts: DetectorStatusCache
    _last: bytes | None = field(default=None, init=False)

    def run_once(self) -> None:
        """Share what has changed, or read what was shared."""
        if self.leases.epoch(DETECTION) is None:
            shared = self.leases.shared(DETECTION)
            if shared is not None and shared != self._last:
                self.accounts.replace(msgspec.msgpack.decode(shared, type=dict[str, JobAccount]))
        else:
            shared = msgspec.msgpack.encode(self.accounts.jobs)
            if shared != self._last:
                self.leases.share(DETECTION, shared)
        self._last = shared
