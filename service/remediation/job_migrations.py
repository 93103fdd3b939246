"""What running jobs would move off a node, and what keeps them from it. The module is pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mainstay.probes.core_types import HOST_DEVICE
from mainstay.service.jobs.models import JobRow
from mainstay.service.jobs.schemas import JobState


@dataclass(frozen=True, slots=True)
class JobMigration:
    """What one job would move."""

    job: str
    recovers: bool
    """Or is in a state that this service does not know."""
    ranks: tuple[int, ...]
    whole: bool
    """All ranks that it has on the node."""
    standbys: int | None
    """Free warm ones on other healthy nodes; None where the job does not say."""

    @property
    def shortage(self) -> str:
        """Why it would be refused, or nothing."""
        if self.standbys is None or self.standbys >= len(self.ranks):
            return ""
        needed = f"job {self.job} needs {len(self.ranks)} free warm standby(s) on other healthy nodes"
        return f"{needed} and has {self.standbys} (start it with more --standbys)"

    @property
    def obstacle(self) -> str:
        """Why its ranks cannot leave for certain now, or nothing."""
        if self.recovers:
            return f"job {self.job} recovers or is in an unknown state: that comes first"
        return f"job {self.job} does not say how many standbys wait" if self.standbys is None else self.shortage


def find_job_migrations(
    running: Sequence[JobRow], node: str, device: str | None, standbys: Callable[[JobRow], int | None]
) -> list[JobMigration]:
    """What running jobs would move off a node, or off one device where the job says who uses which."""
    found = []
    for job in running:
        here = [place for place in job.topology["ranks"] if place["node"] == node]
        leaving = _on(here, device)
        if leaving:
            found.append(
                JobMigration(
                    job=job.id,
                    recovers=job.state != JobState.RUNNING.value,
                    ranks=tuple(sorted(place["rank"] for place in leaving)),
                    whole=len(leaving) == len(here),
                    standbys=standbys(job),
                )
            )
    return found


def _on(places: list[dict[str, Any]], device: str | None) -> list[dict[str, Any]]:
    if device in {None, HOST_DEVICE} or any(place["device"] is None for place in places):
        return places
    return [place for place in places if place["device"] == device]
