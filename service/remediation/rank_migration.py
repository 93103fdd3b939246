"""Ranks that leave a living node: who would move, what the rules ask about it, and the advice to their jobs.

A node that is suspect may serve on; a job that lives on it need not wait for the end of that. The coordinator decides
whether it follows a request (``recovery.controller.workflows.migration_controller``); the rules here only prevent
requests that it would refuse, and record that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from mainstay.probes.core_types import RecommendedAction
from mainstay.recovery.job_request import RequestKind, RequestState
from mainstay.service.common.db import AnySession, WriteSession
from mainstay.service.fleet.models import MACHINE
from mainstay.service.jobs import job_requests
from mainstay.service.jobs import repository as jobs
from mainstay.service.jobs.schemas import JobRequestCreate
from mainstay.service.remediation import repository
from mainstay.service.remediation.fleet_view import FleetView
from mainstay.service.remediation.job_migrations import JobMigration, find_job_migrations
from mainstay.service.remediation.models import RemediationRow
from mainstay.service.remediation.repository import Candidate
from mainstay.service.remediation.rules import RemediationFacts
from mainstay.service.remediation.schemas import RemediationState
from mainstay.service.settings import RemediationSettings

RETRY_SECONDS: Final = 120.0
"""A job that did not move its ranks off a draining node is asked again after so long."""


def candidates(session: AnySession, limits: RemediationSettings) -> list[Candidate]:
    """Nodes with a certain finding that running jobs have ranks on."""
    found = repository.movers(session, limits)
    running = jobs.current(session, limit=500) if found else []
    return [one for one in found if find_job_migrations(running, one.node, one.device, lambda _: None)]


def facts(survey: FleetView[Any], node: str, device: str | None, first: str | None) -> RemediationFacts:
    """Everything that the rules ask before ranks are moved."""
    moves = survey.moves(node, device)
    since = survey.now - survey.limits.window_seconds
    return RemediationFacts(
        limits=survey.limits,
        first=first,
        fleet=survey.fleet(),
        touched=len(survey.drained()) + repository.moved(survey.session, since),
        recovering=tuple(move.job for move in moves if move.recovers),
        short="; ".join(move.shortage for move in moves if move.request is None),
        weaker="; ".join(move.shortage for move in moves if move.shortage and move.request is not None),
        untold=tuple(move.job for move in moves if move.standbys is None),
    )


def advise(
    survey: FleetView[WriteSession], row: RemediationRow, *, actor: str, moves: Sequence[JobMigration] | None = None
) -> str:
    """Advise the jobs on the node that can follow; what was done, in words."""
    finding = repository.strongest(survey.session, row.incident_id, row.node)
    # A drain empties the whole node.
    device = None if RecommendedAction(row.recommended_action).evicts else row.device
    why = row.reason if finding is None else str(finding.evidence["summary"])
    told = []
    for move in survey.moves(row.node, device) if moves is None else moves:
        if move.recovers:
            told.append(f"job {move.job} recovers or is in an unknown state, and gets no migration request")
        elif move.request is None:
            told.append(f"{move.shortage}: its ranks stay")
        else:
            for request in _requests(move, row.node, why):
                job_requests.create(
                    survey.session, move.job, request, actor=actor, now=survey.now,
                    finding=None if finding is None else finding.id, remediation=row.id,
                )  # fmt: skip
            told.append(_told(move, row.node))
    return "; ".join(told)


def _requests(move: JobMigration, node: str, why: str) -> list[JobRequestCreate]:
    """What the job is asked for; each rank alone where only some of those on the node are to move."""
    reason = why[:200]
    match move.request:
        case RequestKind.MIGRATE if not move.whole:
            return [JobRequestCreate(kind=RequestKind.MIGRATE, rank=rank, reason=reason) for rank in move.ranks]
        case RequestKind.MIGRATE | RequestKind.DEGRADE as kind:
            return [JobRequestCreate(kind=kind, node=node, reason=reason)]
        case _:
            return [JobRequestCreate(kind=RequestKind.SAVE, reason=reason)]


def _told(move: JobMigration, node: str) -> str:
    ranks = ", ".join(map(str, move.ranks[:16]))
    match move.request:
        case RequestKind.MIGRATE:
            return f"job {move.job} is asked to move rank(s) {ranks}"
        case RequestKind.DEGRADE:
            return f"job {move.job} has too few standbys and is asked to continue without {node}"
        case _:
            return f"job {move.job} has no place for rank(s) {ranks} and is asked to save a checkpoint"


def advise_again(survey: FleetView[WriteSession], row: RemediationRow) -> str:
    """Advise jobs that are still on a draining node and can follow now; what was done, in words."""
    given = job_requests.of_remediation(survey.session, row.id)
    recent = {one.job for one in given if one.updated_at > survey.now - RETRY_SECONDS}
    moves = [
        move
        for move in survey.moves(row.node)
        if move.leaves and not (move.job in recent or job_requests.open_ones(survey.session, move.job))
    ]
    return advise(survey, row, actor=row.decided_by or MACHINE, moves=moves)


def outcome(session: AnySession, row: RemediationRow) -> tuple[RemediationState, str] | None:
    """What became of an accepted one; None while a job has still to answer."""
    given = job_requests.of_remediation(session, row.id)
    if any(job_requests.is_open(one) for one in given):
        return None
    words = "; ".join(f"job {one.job}: {one.state}, {one.detail}" for one in given) or "no job was there any more"
    answers = {one.state for one in given}
    if answers == {RequestState.COMPLETED.value}:
        return RemediationState.DONE, words
    failed = RequestState.FAILED.value in answers  # a refusal blocks no other job: no migration started
    return RemediationState.FAILED if failed else RemediationState.SUPERSEDED, f"not all ranks moved: {words}"
