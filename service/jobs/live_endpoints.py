"""``/v1/jobs/{id}/…``: a running job from inside. Polled each second, so answers carry an ETag."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel

from mainstay.service.auth.guard import Reader
from mainstay.service.common.clock import Now
from mainstay.service.common.db import Reading
from mainstay.service.common.etag import IfNoneMatch, etag, matches, not_modified
from mainstay.service.common.openapi import problems
from mainstay.service.common.problem import UnprocessableError
from mainstay.service.incidents import repository as incidents
from mainstay.service.jobs import live_views, repository, service
from mainstay.service.jobs.endpoints import JobId, StepNumber
from mainstay.service.jobs.live_schemas import (
    CheckpointsRead,
    DetectorStatusList,
    ProgressRead,
    SignalsRead,
    TransfersRead,
)
from mainstay.service.services import ServicesDep

router = APIRouter(prefix="/v1/jobs/{id}", tags=["jobs"])
_POLLED = {**problems(404), 304: {"description": "Not modified"}}
MAX_RANKS = 4096


class BadRanksError(UnprocessableError):
    slug, title = "invalid-ranks", "Not a list of ranks"


def _ranks(text: str | None) -> list[int] | None:
    if text is None:
        return None
    parts = text.split(",")
    if len(parts) > MAX_RANKS or not all(p.isascii() and p.isdigit() and len(p) <= 7 for p in parts):
        raise BadRanksError(f"ranks {text[:64]!r} is not a list of at most {MAX_RANKS} rank numbers such as 0,3,7")
    return [int(part) for part in parts]


def _answer(body: BaseModel, header: str | None) -> Response:
    text = body.model_dump_json()
    tag = etag(text)
    if matches(tag, header):
        return not_modified(tag)
    return Response(text, media_type="application/json", headers={"ETag": tag, "Cache-Control": "no-cache"})


@router.get("/signals", operation_id="get_job_signals", response_model=SignalsRead, responses=_POLLED)
def get_job_signals(
    job_id: JobId,
    _: Reader,
    session: Reading,
    services: ServicesDep,
    *,
    names: Annotated[str, Query(min_length=1, max_length=2000, description="Comma-separated signals of source rank.")],
    start: StepNumber = None,
    stop: StepNumber = None,
    points: Annotated[int, Query(ge=1, le=5000)] = 600,
    ranks: Annotated[str | None, Query(max_length=40_000, description="Comma-separated; the default is all.")] = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Signals of every rank by step, from ``start`` up to but not including ``stop``, downsampled by a stride.

    A response contains at most a million numbers: fewer steps for a large job, unless you select fewer ranks.
    """
    service.require_job(session, job_id)
    body = live_views.signals(
        services.steps, job_id, names=names, ranks=_ranks(ranks), start=start or 0, stop=stop, points=points
    )
    return _answer(body, if_none_match)


@router.get("/progress", operation_id="get_job_progress", responses=problems(404))
def get_job_progress(
    job_id: JobId,
    _: Reader,
    session: Reading,
    services: ServicesDep,
    now: Now,
    *,
    limit: Annotated[
        int, Query(ge=1, le=16_384, description="Number of ranks to list, those that lag most first.")
    ] = 1024,
) -> ProgressRead:
    """The progress of every rank: step, phase, seconds in the current call, and collectives started and completed."""
    row = service.require_job(session, job_id)
    return live_views.progress(
        services.progress.latest(job_id),
        services.accounts.job_account(job_id),
        live_views.nodes_of(row.topology),
        hung=incidents.hangs(session, job_id),
        now=now,
        limit=limit,
    )


@router.get("/transfers", operation_id="get_job_transfers", response_model=TransfersRead, responses=_POLLED)
def get_job_transfers(
    job_id: JobId,
    _: Reader,
    session: Reading,
    services: ServicesDep,
    *,
    steps: Annotated[int, Query(ge=1, le=256)] = 20,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Return the median durations of transfers between ranks over the last ``steps`` steps."""
    service.require_job(session, job_id)
    return _answer(live_views.pairs(services.pairs, job_id, steps=steps), if_none_match)


@router.get("/detectors", operation_id="list_job_detectors", response_model=DetectorStatusList, responses=_POLLED)
def list_job_detectors(
    job_id: JobId, _: Reader, session: Reading, services: ServicesDep, *, if_none_match: IfNoneMatch = None
) -> Response:
    """The status of each detector of the job: idle, learning, active, or the reason why it abstains."""
    service.require_job(session, job_id)
    return _answer(live_views.detector_status(services.accounts.job_account(job_id).detectors), if_none_match)


@router.get("/checkpoints", operation_id="get_job_checkpoints", response_model=CheckpointsRead, responses=_POLLED)
def get_job_checkpoints(job_id: JobId, _: Reader, session: Reading, *, if_none_match: IfNoneMatch = None) -> Response:
    """The steps in the checkpoint directory of the job: state, size, level, durability, and the cost of a deletion."""
    told = service.require_job(session, job_id).protection.get(repository.CHECKPOINTS)
    nothing = {"reported_at": None, "checkpoints": None}
    return _answer(CheckpointsRead.model_validate(told or nothing), if_none_match)
