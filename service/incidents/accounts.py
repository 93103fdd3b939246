"""What the detectors of each job say of themselves: written by the judge each turn, read by whoever asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from detectors.base import Account
from detectors.hang import Pulse


@dataclass(frozen=True, slots=True)
class JobAccount:
    """Of one job."""

    detectors: Sequence[tuple[str, Account]] = ()
    """(detector's name, its account) in the order of the registry."""
    pulse: Pulse | None = None
    """How the job stands, as the hang detector sees it."""

    def one(self, detector: str) -> Account | None:
        return next((account for name, account in self.detectors if name == detector), None)


_NOBODY = JobAccount()


class Accounts:
    """One writer, which replaces the whole; readers see one turn or the next, never half of each."""

    def __init__(self) -> None:
        self._jobs: Mapping[str, JobAccount] = {}

    def replace(self, jobs: Mapping[str, JobAccount]) -> None:
        self._jobs = jobs

    def of(self, job: str) -> JobAccount:
        """Empty for a job that nobody judges: it does not run, or the judge has not looked yet."""
        return self._jobs.get(job, _NOBODY)
