"""``/v1/jobs/{id}/…``: a running job from inside. Polled each second, so answers carry an ETag."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel

from service.auth.guard import Reader
from service.incidents import repository as incidents
from service.jobs import live, service
from service.jobs.endpoints import JobId, StepNumber
from service.jobs.live_schemas import JudgementRead, PairsRead, ProgressRead, SignalsRead
from service.kit.clock import Now
from service.kit.db import Reading
from service.kit.etag import IfNoneMatch, etag, matches, not_modified
from service.kit.openapi import problems
from service.kit.problem import UnprocessableError
from service.services import ServicesDep

router = APIRouter(tags=["jobs"])
_POLLED = {**problems(404), 304: {"description": "Not modified"}}
MAX_RANKS = 4096


class BadRanksError(UnprocessableError):
    slug, title = "bad-ranks", "Not a list of ranks"


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


@router.get(
    "/jobs/{id}/signals",  # noqa: FAST003 - JobId is its alias
    operation_id="get_job_signals",
    response_model=SignalsRead,
    responses=_POLLED,
)
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
    ranks: Annotated[str | None, Query(max_length=40_000, description="Comma-separated; all if not given.")] = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Signals of every rank by step, ``start`` up to but not including ``stop``, thinned by a stride.

    An answer holds at most a million numbers: of a large job fewer steps, unless fewer ranks are asked for.
    """
    service.require_job(session, job_id)
    body = live.signals(
        services.steps, job_id, names=names, ranks=_ranks(ranks), start=start or 0, stop=stop, points=points
    )
    return _answer(body, if_none_match)


@router.get("/jobs/{id}/progress", operation_id="get_job_progress", responses=problems(404))  # noqa: FAST003 - its alias
def get_job_progress(
    job_id: JobId,
    _: Reader,
    session: Reading,
    services: ServicesDep,
    now: Now,
    *,
    limit: Annotated[int, Query(ge=1, le=16_384, description="Ranks to list: those that lag most.")] = 1024,
) -> ProgressRead:
    """Where every rank is: step, phase, how long in its present call, collectives begun and ended."""
    row = service.require_job(session, job_id)
    return live.progress(
        services.progress.latest(job_id),
        services.accounts.of(job_id),
        live.nodes_of(row.topology),
        hung=incidents.hangs(session, job_id),
        now=now,
        limit=limit,
    )


@router.get(
    "/jobs/{id}/pairs",  # noqa: FAST003 - JobId is its alias
    operation_id="get_job_pairs",
    response_model=PairsRead,
    responses=_POLLED,
)
def get_job_pairs(
    job_id: JobId,
    _: Reader,
    session: Reading,
    services: ServicesDep,
    *,
    steps: Annotated[int, Query(ge=1, le=256)] = 20,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """How long transfers between ranks took, medians over the last ``steps`` steps."""
    service.require_job(session, job_id)
    return _answer(live.pairs(services.pairs, job_id, steps=steps), if_none_match)


@router.get(
    "/jobs/{id}/judgement",  # noqa: FAST003 - JobId is its alias
    operation_id="get_job_judgement",
    response_model=JudgementRead,
    responses=_POLLED,
)
def get_job_judgement(
    job_id: JobId, _: Reader, session: Reading, services: ServicesDep, *, if_none_match: IfNoneMatch = None
) -> Response:
    """What each detector of the job says of itself: idle, learning, judging, or why it abstains."""
    service.require_job(session, job_id)
    return _answer(live.judgement(services.accounts.of(job_id).detectors), if_none_match)
