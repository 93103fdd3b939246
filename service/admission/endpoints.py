"""``/v1/admission``: what a scheduler asks before it starts a job."""

from __future__ import annotations

from fastapi import APIRouter, Response

from mainstay.service.admission import service
from mainstay.service.admission.responses import encode
from mainstay.service.admission.schemas import AdmissionIn, AdmissionRead
from mainstay.service.auth.guard import Reader
from mainstay.service.auth.tokens import Scope
from mainstay.service.common.clock import Now
from mainstay.service.common.db import after_commit
from mainstay.service.services import ServicesDep

router = APIRouter(prefix="/v1", tags=["admission"])


@router.post("/admission", operation_id="admit", response_model=AdmissionRead)
def admit(body: AdmissionIn, principal: Reader, services: ServicesDep, now: Now) -> Response:
    """Check whether a job may start on these nodes, from stored verdicts, states, and findings, within milliseconds.

    The response is ``allow``, ``allow_degraded``, or ``deny``, with every reason and with spare nodes for denied ones.
    The scope ``read`` suffices to ask, so that the token of a job may; ``preempt`` and ``preflight`` need ``act``.
    """
    if principal.job is not None:
        principal.require_job(body.job)
    if body.preempt or body.preflight:
        principal.require(Scope.ACT)
    with services.database.reading() as session:
        answer = service.decide(session, services, body, now=now)
    if body.preempt or body.preflight:
        with services.database.session() as session:
            answer = service.act(session, services, body, answer, now=now)
            after_commit(session, lambda: services.wakers.wake("orders"))
    return Response(encode(answer), media_type="application/json")
