"""Status of the detectors of each job: the detection loop writes it after each iteration, any request reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mainstay.detectors.base import DetectorStatus
from mainstay.detectors.hang.detector import JobActivity


@dataclass(frozen=True, slots=True)
class JobAccount:
    """Of one job."""

    detectors: Sequence[tuple[str, DetectorStatus]] = ()
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

    def replace(self, jobs: Mapping[str, JobAccount]) -> None:
        self._jobs = jobs

    def job_account(self, job: str) -> JobAccount:
        """Empty for a job without detection: it does not run, or the loop has not processed it yet."""
        return self._jobs.get(job, _EMPTY)
