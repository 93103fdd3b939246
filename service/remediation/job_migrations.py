"""What running jobs would move off a node, and what keeps them from it. The module is pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mainstay.probes.core_types import HOST_DEVICE
from mainstay.recovery.job_request import RequestKind
from mainstay.service.jobs.models import JobRow
from mainstay.service.jobs.schemas import JobState

_INSTEAD: Final[dict[RequestKind | None, str]] = {
    RequestKind.DEGRADE: "it can continue without these ranks, more slowly",
    RequestKind.SAVE: "it can only save a checkpoint, to be continued on other nodes",
    None: "start it with more --standbys",
}


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
    can_degrade: bool = False
    """It says that it can continue without ranks, and those on other nodes hold the whole model."""
    can_save: bool = False
    """It says that it can write a checkpoint."""
    fixed: str = ""
    """Why none of its ranks can move, as it says; empty: they can."""

    @property
    def request(self) -> RequestKind | None:
        """The best that it can be asked for; None: nothing."""
        if not self.fixed and (self.standbys is None or self.standbys >= len(self.ranks)):
            return RequestKind.MIGRATE
        if self.can_degrade:
            return RequestKind.DEGRADE
        return RequestKind.SAVE if self.can_save else None

    @property
    def shortage(self) -> str:
        """Why its ranks cannot move to standbys, and what it can do instead; or nothing."""
        if self.request is RequestKind.MIGRATE:
            return ""
        if self.fixed:
            return f"job {self.job} cannot move ranks ({self.fixed})"
        needed = f"job {self.job} needs {len(self.ranks)} free warm standby(s) on other healthy nodes"
        return f"{needed} and has {self.standbys} ({_INSTEAD[self.request]})"

    @property
    def leaves(self) -> bool:
        """Whether its ranks leave the node where it is asked to."""
        known = not self.recovers and self.standbys is not None
        return known and self.request in {RequestKind.MIGRATE, RequestKind.DEGRADE}

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
                    can_degrade=_can(job, RequestKind.DEGRADE) and _rest_holds_model(job, node),
                    can_save=_can(job, RequestKind.SAVE),
                    fixed=(job.request_obstacles or {}).get(RequestKind.MIGRATE.value, ""),
                )
            )
    return found


def _on(places: list[dict[str, Any]], device: str | None) -> list[dict[str, Any]]:
    if device in {None, HOST_DEVICE} or any(place["device"] is None for place in places):
        return places
    return [place for place in places if place["device"] == device]


def _can(job: JobRow, kind: RequestKind) -> bool:
    return (job.request_obstacles or {}).get(kind.value) == ""


def _rest_holds_model(job: JobRow, node: str) -> bool:
    """Whether ranks on other nodes hold each stage and slice. The coordinator looks again."""
    ranks = job.topology["ranks"]
    left = {(place["pp"], place["tp"]) for place in ranks if place["node"] != node}
    return left == {(place["pp"], place["tp"]) for place in ranks}
