"""``/v1/remediations`` and ``/v1/remediation-status``: Mainstay's proposals about nodes and the decisions on them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from mainstay.service.auth.guard import Reader
from mainstay.service.common.clock import Now
from mainstay.service.common.db import Reading
from mainstay.service.common.pagination import Page, Paging, paginate
from mainstay.service.common.schemas import Name
from mainstay.service.operation import Acting
from mainstay.service.remediation import repository, service
from mainstay.service.remediation import serializers as remediation_serializers
from mainstay.service.remediation.fleet_view import FleetView
from mainstay.service.remediation.models import RemediationRow
from mainstay.service.remediation.schemas import DecisionBody, RemediationRead, RemediationState, RemediationStatus
from mainstay.service.services import ServicesDep

router = APIRouter(prefix="/v1", tags=["remediation"])
Id = Annotated[Name, Path(alias="id")]


class RemediationPage(Page[RemediationRead]):
    """Remediations, newest first."""


@router.get("/remediation-status", operation_id="get_remediation_status")
def get_status(_: Reader, session: Reading, services: ServicesDep, now: Now) -> RemediationStatus:
    """Return whether Mainstay acts automatically, and the state of the circuit breaker."""
    return remediation_serializers.serialize_status(session, services.settings.remediation, now)


@router.get("/remediations", operation_id="list_remediations")
def list_remediations(
    _: Reader,
    session: Reading,
    page: Paging,
    *,
    state: RemediationState | None = None,
    node: Annotated[Name | None, Query()] = None,
) -> RemediationPage:
    """Remediations, newest first, each with the results of the rules."""
    statement = repository.listing(state=state, node=node)
    rows, cursor = paginate(session, statement, keys=(RemediationRow.created_at, RemediationRow.id), page=page)
    return RemediationPage(items=[RemediationRead.model_validate(row) for row in rows], next_cursor=cursor)


@router.get("/remediations/{id}", operation_id="get_remediation")  # noqa: FAST003 - Id is its alias
def get_remediation(remediation_id: Id, _: Reader, session: Reading) -> RemediationRead:
    """One remediation."""
    return RemediationRead.model_validate(service.require(session, remediation_id))


@router.post("/remediations/{id}:accept", operation_id="accept_remediation")  # noqa: FAST003 - Id is its alias
def accept_remediation(remediation_id: Id, body: DecisionBody, acting: Acting) -> RemediationRead:
    """Accept the proposal and act on it. An operator may accept a proposal that a rule only holds."""
    session = acting.session
    service.lock(session)
    row = service.require(session, remediation_id)
    survey = FleetView(session, acting.services.settings.remediation, acting.now)
    service.accept(survey, row, actor=acting.principal.name, reason=body.reason)
    session.flush()
    return acting.remember(RemediationRead.model_validate(row))


@router.post("/remediations/{id}:dismiss", operation_id="dismiss_remediation")  # noqa: FAST003 - Id is its alias
def dismiss_remediation(remediation_id: Id, body: DecisionBody, acting: Acting) -> RemediationRead:
    """Dismiss the proposal. The node stays as it is, and the incident proposes nothing more for it."""
    row = service.require(acting.session, remediation_id)
    service.dismiss(acting.session, row, actor=acting.principal.name, reason=body.reason, now=acting.now)
    acting.session.flush()
    return acting.remember(RemediationRead.model_validate(row))
