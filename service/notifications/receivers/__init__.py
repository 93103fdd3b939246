"""The kinds of receivers."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from mainstay.service.notifications.receivers.alertmanager import Alertmanager
from mainstay.service.notifications.receivers.base import ReceiverConfig
from mainstay.service.notifications.receivers.email import Email
from mainstay.service.notifications.receivers.pagerduty import PagerDuty
from mainstay.service.notifications.receivers.slack import Slack
from mainstay.service.notifications.receivers.teams import Teams
from mainstay.service.notifications.receivers.webhook import Webhook

RECEIVERS: Final[tuple[type[ReceiverConfig], ...]] = (Webhook, Slack, Teams, PagerDuty, Email, Alertmanager)
AnyReceiver = Annotated[Webhook | Slack | Teams | PagerDuty | Email | Alertmanager, Field(discriminator="kind")]
"""One of them, as its ``kind`` says."""
