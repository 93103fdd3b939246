"""``/v1/localisations``: which of several nodes, or what between them, is slow."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from sqlalchemy import select

from service.auth.guard import Actor, Reader, Reporter
from service.kit.clock import Now
from service.kit.db import Reading, Writing, after_commit
from service.kit.idempotency import Idempotency
from service.kit.openapi import problems
from service.kit.pagination import Page, Paging, paginate
from service.kit.schemas import Name
from service.services import ServicesDep
from service.validation import localisation, localisation_reading, localisation_telling
from service.validation.localisation_models import LocalisationRow
from service.validation.localisation_schemas import (
    LocalisationCancel,
    LocalisationCreate,
    LocalisationRead,
    LocalisationSummary,
    PairReportIn,
)

router = APIRouter(tags=["validation"])
Id = Annotated[Name, Path(alias="id")]


class LocalisationPage(Page[LocalisationSummary]):
    """Localisations, newest first, without their rounds."""


@router.post("/localisations", operation_id="create_localisation", status_code=202, responses=problems(404))
def create_localisation(
    body: LocalisationCreate, idempotency: Idempotency, _: Actor, session: Writing, services: ServicesDep, *, now: Now
) -> LocalisationRead:
    """Find out which of these nodes, or what between them, is slow or hangs.

    Pairs of them and of known-good partners measure each other in rounds; the nodes must be idle. Ask here again for
    the verdict.
    """
    row = localisation.create(session, body, now=now)
    session.flush()
    after_commit(session, lambda: services.wakers.wake("orders"))
    return idempotency.remember(session, localisation_reading.read(session, row), 202)


@router.get("/localisations", operation_id="list_localisations")
def list_localisations(_: Reader, session: Reading, page: Paging) -> LocalisationPage:
    """Localisations, newest first, without their rounds."""
    keys = (LocalisationRow.created_at, LocalisationRow.id)
    rows, cursor = paginate(session, select(LocalisationRow), keys=keys, page=page)
    return LocalisationPage(items=[localisation_reading.summary(row) for row in rows], next_cursor=cursor)


@router.get("/localisations/{id}", operation_id="get_localisation")  # noqa: FAST003 - Id is its alias
def get_localisation(localisation_id: Id, _: Reader, session: Reading) -> LocalisationRead:
    """Rounds, pairs, what they measured, and the verdict with its evidence."""
    return localisation_reading.read(session, localisation.require(session, localisation_id))


@router.post("/localisations/{id}:cancel", operation_id="cancel_localisation")  # noqa: FAST003 - Id is its alias
def cancel_localisation(
    localisation_id: Id, body: LocalisationCancel, idempotency: Idempotency, _: Actor, session: Writing, *, now: Now
) -> LocalisationRead:
    """End it without a verdict; one that has ended stays as it is."""
    row = localisation.require(session, localisation_id)
    localisation.cancel(session, row, body.reason, now=now)
    session.flush()
    return idempotency.remember(session, localisation_reading.read(session, row))


@router.post("/localisations/orders/{id}/results", operation_id="post_pair_result")  # noqa: FAST003 - Id is its alias
def post_pair_result(
    order_id: Id, body: PairReportIn, principal: Reporter, session: Writing, services: ServicesDep, *, now: Now
) -> LocalisationSummary:
    """What one side of a pair measured, from the node that had the order. The first answer counts."""
    side = localisation.require_order(session, order_id)
    principal.require_node(side.node)
    ended = localisation.accept(session, side, body, now=now)
    session.flush()
    localisation_telling.ended(session, ended, now=now, settings=services.settings)
    after_commit(session, lambda: services.wakers.wake("orders"))
    return localisation_reading.summary(localisation.require(session, side.localisation_id))
