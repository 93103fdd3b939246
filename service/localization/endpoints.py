"""``/v1/fault-localizations``: which of several nodes, or what between them, is slow."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from sqlalchemy import select

from mainstay.service.auth.guard import Reader, Reporter
from mainstay.service.common.clock import Now
from mainstay.service.common.db import Reading, Reporting, after_commit
from mainstay.service.common.openapi import problems
from mainstay.service.common.pagination import Page, Paging, paginate
from mainstay.service.common.schemas import Name
from mainstay.service.localization import findings as localization_findings
from mainstay.service.localization import serializers as localization_serializers
from mainstay.service.localization import service as localization_service
from mainstay.service.localization.models import LocalizationRow
from mainstay.service.localization.schemas import (
    LocalizationCancel,
    LocalizationCreate,
    LocalizationRead,
    LocalizationSummary,
    PairReportIn,
)
from mainstay.service.operation import Acting
from mainstay.service.services import ServicesDep

router = APIRouter(prefix="/v1", tags=["validation"])
Id = Annotated[Name, Path(alias="id")]


class LocalizationPage(Page[LocalizationSummary]):
    """Fault localizations, newest first, without their rounds."""


@router.post("/fault-localizations", operation_id="create_fault_localization", status_code=202, responses=problems(404))
def create_fault_localization(body: LocalizationCreate, acting: Acting) -> LocalizationRead:
    """Find which of these nodes, or which component between them, is slow or hangs.

    Pairs of these nodes and of known-good partners measure each other in rounds. The nodes must be idle. Read the
    localization again for the verdict.
    """
    row = localization_service.create(acting.session, body, now=acting.now)
    acting.session.flush()
    acting.wake("orders")
    return acting.remember(localization_serializers.read(acting.session, row), 202)


@router.get("/fault-localizations", operation_id="list_fault_localizations")
def list_fault_localizations(_: Reader, session: Reading, page: Paging) -> LocalizationPage:
    """List fault localizations, newest first, without their rounds."""
    keys = (LocalizationRow.created_at, LocalizationRow.id)
    rows, cursor = paginate(session, select(LocalizationRow), keys=keys, page=page)
    return LocalizationPage(items=[LocalizationSummary.model_validate(row) for row in rows], next_cursor=cursor)


@router.get("/fault-localizations/{id}", operation_id="get_fault_localization")  # noqa: FAST003 - Id is its alias
def get_fault_localization(localization_id: Id, _: Reader, session: Reading) -> LocalizationRead:
    """Rounds, pairs, measurements, and the verdict with its evidence."""
    return localization_serializers.read(session, localization_service.require(session, localization_id))


@router.post("/fault-localizations/{id}:cancel", operation_id="cancel_fault_localization")  # noqa: FAST003 - Id is its alias
def cancel_fault_localization(localization_id: Id, body: LocalizationCancel, acting: Acting) -> LocalizationRead:
    """End a localization without a verdict. A localization that has ended does not change."""
    row = localization_service.require(acting.session, localization_id)
    localization_service.cancel(acting.session, row, body.reason, now=acting.now)
    acting.session.flush()
    return acting.remember(localization_serializers.read(acting.session, row))


@router.post("/fault-localizations/tasks/{id}/results", operation_id="post_pair_result")  # noqa: FAST003 - Id is its alias
def post_pair_result(
    order_id: Id, body: PairReportIn, principal: Reporter, session: Reporting, services: ServicesDep, *, now: Now
) -> LocalizationSummary:
    """Report the measurements of one side of a pair, from the node with the task. The first report counts."""
    side = localization_service.require_order(session, order_id)
    principal.require_node(side.node)
    ended = localization_service.accept(session, side, body, now=now)
    session.flush()
    localization_findings.ended(session, ended, now=now, settings=services.settings)
    after_commit(session, lambda: services.wakers.wake("orders"))
    return LocalizationSummary.model_validate(localization_service.require(session, side.localization_id))
