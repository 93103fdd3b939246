"""Ranks that leave a living node: who would move, what the rules ask about it, and the advice to their jobs.

A node that is suspect may serve on; a job that lives on it need not wait for the end of that. The coordinator decides
whether it follows a request (``mainstay.recovery.launcher.migration_controller``); the rules here only prevent requests
that it would refuse, and record that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mainstay.probes.core_types import HOST_DEVICE, RecommendedAction
from mainstay.recovery.migration_request import MigrationState
from mainstay.service.common.db import AnySession, WriteSession
from mainstay.service.jobs import migration_requests
from mainstay.service.jobs import repository as jobs
from mainstay.service.jobs.models import JobRow
from mainstay.service.jobs.schemas import JobState
from mainstay.service.remediation import repository
from mainstay.service.remediation.fleet_view import FleetView
from mainstay.service.remediation.models import RemediationRow
from mainstay.service.remediation.repository import Candidate
from mainstay.service.remediation.rules import RemediationFacts
from mainstay.service.remediation.schemas import RemediationState


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
    """Warm ones on other nodes; None where the job does not say."""

    @property
    def shortage(self) -> str:
        """Why it would be refused, or nothing."""
        if self.standbys is None or self.standbys >= len(self.ranks):
            return ""
        needed, ready = len(self.ranks), self.standbys
        return f"job {self.job} needs {needed} warm standby(s) on other nodes and has {ready} (see --standbys)"


def find_job_migrations(running: Sequence[JobRow], node: str, device: str | None) -> list[JobMigration]:
    """What running jobs would move off a node, or off one device where the job says who uses which."""
    found = []
    for job in running:
        here = [place for place in job.topology["ranks"] if place["node"] == node]
        leaving = _on(here, device)
        if leaving:
            waiting = job.topology.get("standbys")
            found.append(
                JobMigration(
                    job=job.id,
                    recovers=job.state != JobState.RUNNING.value,
                    ranks=tuple(sorted(place["rank"] for place in leaving)),
                    whole=len(leaving) == len(here),
                    standbys=None if waiting is None else sum(n for name, n in waiting.items() if name != node),
                )
            )
    return found


def _on(places: list[dict[str, Any]], device: str | None) -> list[dict[str, Any]]:
    if device in {None, HOST_DEVICE} or any(place["device"] is None for place in places):
        return places
    return [place for place in places if place["device"] == device]


def candidates(session: AnySession, min_confidence: float) -> list[Candidate]:
    """Nodes with a certain finding that running jobs have ranks on."""
    found = repository.movers(session, min_confidence)
    running = jobs.current(session, limit=500) if found else []
    return [candidate for candidate in found if find_job_migrations(running, candidate.node, candidate.device)]


def facts(survey: FleetView[Any], node: str, device: str | None, first: str | None) -> RemediationFacts:
    """Everything that the rules ask before ranks are moved."""
    moves = find_job_migrations(survey.running(), node, device)
    since = survey.now - survey.limits.window_seconds
    return RemediationFacts(
        limits=survey.limits,
        first=first,
        fleet=survey.fleet(),
        touched=len(survey.drained()) + repository.moved(survey.session, since),
        recovering=tuple(move.job for move in moves if move.recovers),
        short="; ".join(move.shortage for move in moves if move.shortage),
        untold=tuple(move.job for move in moves if move.standbys is None),
    )


def advise(survey: FleetView[WriteSession], row: RemediationRow, *, actor: str) -> str:
    """Advise the jobs on the node that can follow; what was done, in words."""
    finding = repository.strongest(survey.session, row.incident_id, row.node)
    # A drain empties the whole node.
    device = None if RecommendedAction(row.recommended_action).evicts else row.device
    why = row.reason if finding is None else str(finding.evidence["summary"])
    told = []
    for move in find_job_migrations(survey.running(), row.node, device):
        if move.recovers:
            told.append(f"job {move.job} recovers or is in an unknown state, and gets no migration request")
        elif move.shortage:
            told.append(f"{move.shortage}: its ranks stay")
        else:
            for rank in (None,) if move.whole else move.ranks:
                migration_requests.create(
                    survey.session, move.job, node=row.node if rank is None else None, rank=rank, reason=why,
                    actor=actor, now=survey.now, finding=None if finding is None else finding.id, remediation=row.id,
                )  # fmt: skip
            told.append(f"job {move.job} is asked to move rank(s) {', '.join(map(str, move.ranks[:16]))}")
    return "; ".join(told)


def outcome(session: AnySession, row: RemediationRow) -> tuple[RemediationState, str] | None:
    """What became of an accepted one; None while a job has still to answer."""
    given = migration_requests.of_remediation(session, row.id)
    if any(migration_requests.is_open(one) for one in given):
        return None
    words = "; ".join(f"job {one.job}: {one.state}, {one.detail}" for one in given) or "no job was there any more"
    answers = {one.state for one in given}
    if answers == {MigrationState.COMPLETED.value}:
        return RemediationState.DONE, words
    failed = MigrationState.FAILED.value in answers  # a refusal blocks no other job: no migration started
    return RemediationState.FAILED if failed else RemediationState.SUPERSEDED, f"not all ranks moved: {words}"
