"""``/v1/notifications``: configuration, delivery log, tests of receivers, and links that acknowledge."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from mainstay.service.audit.record import record_act
from mainstay.service.auth.endpoints import limit_attempts
from mainstay.service.auth.guard import Actor, Admin, Reader
from mainstay.service.common.clock import Now
from mainstay.service.common.db import Reading, Writing, after_commit
from mainstay.service.common.openapi import PUBLIC, problems
from mainstay.service.common.pagination import Page, Paging, paginate
from mainstay.service.common.problem import NotFoundError
from mainstay.service.common.schemas import Name
from mainstay.service.common.signed_links import verify
from mainstay.service.incidents import service as incidents
from mainstay.service.incidents.lifecycle import IncidentTrigger
from mainstay.service.notifications import config, outbox, repository, serializers
from mainstay.service.notifications.compose import trial_message
from mainstay.service.notifications.links import AcknowledgeLink
from mainstay.service.notifications.models import DeliveryState, NotificationRow
from mainstay.service.notifications.planner import DELIVERY, OVER
from mainstay.service.notifications.schemas import (
    AcknowledgedIncident,
    AcknowledgeRead,
    AcknowledgeToken,
    NotificationConfigIn,
    NotificationConfigRead,
    NotificationRead,
    ReceiverTest,
)
from mainstay.service.services import ServicesDep

router = APIRouter(prefix="/v1/notifications", tags=["notifications"])


class NotificationPage(Page[NotificationRead]):
    """Messages, newest first."""


class UnknownReceiverError(NotFoundError):
    slug, title = "unknown-receiver", "Unknown receiver"


@router.get("", operation_id="list_notifications")
def list_notifications(
    _: Reader,
    session: Reading,
    page: Paging,
    *,
    receiver: Annotated[Name | None, Query()] = None,
    state: DeliveryState | None = None,
    incident: Annotated[Name | None, Query()] = None,
) -> NotificationPage:
    """The delivery log, newest first: each message to each receiver, its attempts, and why the last one failed."""
    statement = repository.log(receiver=receiver, state=state, incident=incident)
    rows, cursor = paginate(session, statement, keys=(NotificationRow.created_at, NotificationRow.id), page=page)
    return NotificationPage(items=[NotificationRead.model_validate(row) for row in rows], next_cursor=cursor)


@router.get("/config", operation_id="get_notification_config")
def get_config(_: Reader, session: Reading, services: ServicesDep) -> NotificationConfigRead:
    """The configuration in force, its routes and receivers, and whether the receivers can be reached."""
    return serializers.read_config(session, services.settings)


@router.put("/config", operation_id="put_notification_config", responses=problems(409))
def put_config(
    body: NotificationConfigIn, principal: Admin, session: Writing, services: ServicesDep, now: Now
) -> NotificationConfigRead:
    """Put a new configuration in force. Messages that wait keep their receivers."""
    config.store(session, body.text, replaces=body.replaces, actor=principal.name, now=now)
    return serializers.read_config(session, services.settings)


@router.post(":test", operation_id="test_receiver", status_code=202, responses=problems(404))
def send_test(
    body: ReceiverTest, principal: Actor, session: Writing, services: ServicesDep, now: Now
) -> NotificationRead:
    """Send a test message through the outbox; the delivery log tells whether it arrived."""
    known = config.current(session)
    if known is None or body.receiver not in known.receivers:
        raise UnknownReceiverError(f"the configuration has no receiver {body.receiver!r}")
    message = trial_message(body.receiver, services.settings.dashboard_url, actor=principal.name, now=now)
    row = outbox.put(session, body.receiver, message, group_id=None, incident_id=None)
    after_commit(session, lambda: services.wakers.wake(DELIVERY))
    return NotificationRead.model_validate(row)


@router.post(
    ":acknowledge",
    operation_id="acknowledge_by_link",
    responses=problems(403, 429),
    openapi_extra=PUBLIC,
)
def acknowledge(
    body: AcknowledgeToken,
    address: Annotated[str, Depends(limit_attempts)],
    session: Writing,
    services: ServicesDep,
    now: Now,
) -> AcknowledgeRead:
    """Acknowledge the incidents of a message by the link in it. A second time changes nothing."""
    link = verify(AcknowledgeLink, body.token, config.link_key(session), now)
    services.sign_ins.return_attempt(address)
    context = incidents.Context(session, services.settings, now)
    record_act(
        session, at=now, actor=f"receiver {link.receiver}", actor_kind="link", action="acknowledge_by_link",
        target=f"group {link.group}", address=address,
    )  # fmt: skip
    live = [row for row in repository.incidents_of(session, link.group) if row.state not in OVER]
    for row in live:
        if row.acknowledged_at is None:
            actor = f"receiver {link.receiver}"
            text = f"Acknowledged by the link that {actor} got."
            incidents.decide_by_hand(
                context, row, IncidentTrigger.ACKNOWLEDGED, text=text, reason="by the link in a message", actor=actor
            )
    return AcknowledgeRead(incidents=[AcknowledgedIncident.model_validate(row) for row in live])
