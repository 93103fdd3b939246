"""What the detectors of each job say of themselves: written by the judge each turn, read by whoever asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from detectors.base import Account

Said = Sequence[tuple[str, Account]]


class Accounts:
    """Job -> (detector's name, its account), in the order of the registry.

    One writer, which replaces the whole; readers see one turn or the next, never half of each.
    """

    def __init__(self) -> None:
        self._jobs: Mapping[str, Said] = {}

    def replace(self, jobs: Mapping[str, Said]) -> None:
        self._jobs = jobs

    def of(self, job: str) -> Said:
        """Empty for a job that nobody judges: it does not run, or the judge has not looked yet."""
        return self._jobs.get(job, ())

    def one(self, job: str, detector: str) -> Account | None:
        return next((account for name, account in self.of(job) if name == detector), None)
