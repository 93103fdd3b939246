"""``/v1/admission``: what a scheduler asks before it starts a job."""

from __future__ import annotations

import logging
from typing import Final

from fastapi import APIRouter, Request, Response

from mainstay.service.admission import pauses, selection, service
from mainstay.service.admission.responses import encode
from mainstay.service.admission.schemas import (
    AdmissionIn,
    AdmissionPauseBody,
    AdmissionPauseList,
    AdmissionPauseRead,
    AdmissionRead,
    AdmissionResumeBody,
    SelectionIn,
    SelectionRead,
)
from mainstay.service.audit import record as audit
from mainstay.service.auth.guard import Reader
from mainstay.service.auth.tokens import Scope
from mainstay.service.common.clock import Now
from mainstay.service.common.db import Reading, after_commit
from mainstay.service.common.openapi import problems
from mainstay.service.operation import Acting
from mainstay.service.services import ServicesDep

_log: Final = logging.getLogger(__name__)
router = APIRouter(prefix="/v1", tags=["admission"])


@router.post("/admission", operation_id="admit", response_model=AdmissionRead)
def admit(body: AdmissionIn, principal: Reader, request: Request, services: ServicesDep, now: Now) -> Response:
    """Check whether a job may start on these nodes, from stored verdicts, states, and findings, within milliseconds.

    The response is ``allow``, ``allow_degraded``, or ``deny``, with every reason and with spare nodes for denied ones.
    The scope ``read`` suffices to ask, so that the token of a job may; ``preempt`` and ``preflight`` need ``act``.
    """
    if principal.seen_jobs is not None:
        principal.require_job(body.job)
    if body.preempt or body.preflight:
        principal.require(Scope.ACT)
    with services.database.reading() as session:
        answer = service.decide(session, services, body, now=now)
    if body.preempt or body.preflight:
        with services.database.session() as session:
            audit.attach(request, session)
            answer = service.act(session, services, body, answer, now=now)
            after_commit(session, lambda: services.wakers.wake("orders"))
    return Response(encode(answer), media_type="application/json")


@router.post("/admission:select", operation_id="select_nodes", response_model=SelectionRead)
def select_nodes(body: SelectionIn, _: Reader, services: ServicesDep, now: Now) -> Response:
    """Name nodes on which admission would allow a job now and on which no other job runs, from the rules of admission.

    Allowed nodes come before degraded ones. Then nodes of one cohort and of few racks are preferred, then those that
    were validated last. Nothing is reserved: two questions at the same time get the same nodes.
    """
    with services.database.reading() as session:
        answer = selection.select(session, services, body, now=now)
    return Response(encode(answer), media_type="application/json")


@router.get("/admission/pauses", operation_id="list_admission_pauses")
def list_pauses(_: Reader, session: Reading) -> AdmissionPauseList:
    """Where admission of new work is paused."""
    return AdmissionPauseList(items=[AdmissionPauseRead.from_row(row) for row in pauses.current(session)])


@router.post("/admission:pause", operation_id="pause_admission")
def pause(body: AdmissionPauseBody, acting: Acting) -> AdmissionPauseRead:
    """Pause admission of new work to a rack, or to the whole fleet. Every node there is denied.

    Running jobs continue, and a job that runs may restart there.
    """
    actor = acting.principal.name
    row = pauses.pause(acting.session, body.rack, reason=body.reason, actor=actor, now=acting.now)
    _log.info("%s paused admission to rack %s: %s", actor, body.rack or "(all)", body.reason)
    return acting.remember(AdmissionPauseRead.from_row(row))


@router.post("/admission:resume", operation_id="resume_admission", responses=problems(409))
def resume(body: AdmissionResumeBody, acting: Acting) -> AdmissionPauseRead:
    """End a pause of admission; returns what it was."""
    row = pauses.resume(acting.session, body.rack)
    _log.info("%s resumed admission to rack %s: %s", acting.principal.name, body.rack or "(all)", body.reason)
    return acting.remember(AdmissionPauseRead.from_row(row))
