"""What notifications look like on the wire."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from mainstay.probes.core_types import Severity
from mainstay.service.common.schemas import Input, Name, Output, Text
from mainstay.service.notifications.message import NotificationEvent
from mainstay.service.notifications.models import DeliveryState


class ReceiverRead(Output):
    name: str
    kind: str
    missing_secrets: list[str]
    """Secrets that the configuration names and this process cannot read."""
    last_delivered_at: float | None
    """When it last accepted a message."""
    pending: int
    """Messages that wait for it."""
    error: str
    """Why the oldest of them was not accepted; empty without one."""


class RouteRead(Output):
    name: str
    receivers: list[str]
    min_severity: Severity
    conditions: list[str]
    """Further conditions in words, such as ``rack r1*``."""
    hours: str | None
    timezone: str
    group_by: list[str]
    repeat_minutes: float
    escalate_minutes: float
    escalate_to: list[str]
    proceeds: bool


class NotificationConfigRead(Output):
    version: int
    """0: nothing is configured, so nothing is sent."""
    text: str
    """TOML. Secrets are not part of it."""
    actor: str
    created_at: float | None
    receivers: list[ReceiverRead]
    routes: list[RouteRead]
    report: str | None
    """When the reliability report is sent, and to whom; null: never."""
    secrets_dir: str
    """Where the service looks for the secrets that receivers name."""
    dashboard_url: str
    """The address in the links of messages."""


class NotificationConfigIn(Input):
    """A new version of the configuration."""

    text: Annotated[Text, Field(max_length=200_000)]
    """TOML."""
    replaces: Annotated[int, Field(ge=0, strict=True)]
    """The version that it is based on."""


class ReceiverTest(Input):
    receiver: Name


class NotificationRead(Output):
    id: str
    receiver: str
    event: NotificationEvent
    title: str
    state: DeliveryState
    attempts: int
    error: str
    created_at: float
    due_at: float | None
    """When the next attempt is due."""
    ended_at: float | None
    incident_id: str | None


class AcknowledgeToken(Input):
    """The token of a link in a message."""

    token: Annotated[str, Field(min_length=1, max_length=1000)]


class AcknowledgedIncident(Output):
    id: str
    title: str
    acknowledged_by: str | None


class AcknowledgeRead(Output):
    incidents: list[AcknowledgedIncident]
    """The incidents of the message that are not over."""
