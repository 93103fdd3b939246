"""What a notification says, independent of the receiver that shows it.

A message is stored as JSON in the outbox (``models.NotificationRow``) before it is sent, so that every attempt says the
same.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum

from mainstay.probes.core_types import Severity
from mainstay.service.common.schemas import Output


class NotificationEvent(StrEnum):
    """Why a message is sent."""

    OPENED = "opened"
    UPDATED = "updated"  # another incident of the group, a higher severity, or a need for an operator
    ESCALATED = "escalated"  # not acknowledged in time
    REPEATED = "repeated"
    ACKNOWLEDGED = "acknowledged"
    RESOLVED = "resolved"
    TEST = "test"
    REPORT = "report"  # the weekly reliability report


class IncidentSummary(Output):
    """One incident of a message."""

    id: str
    title: str
    severity: Severity
    state: str
    opened_at: float
    """Unix seconds."""
    where: str
    """Node, GPU with serial, rack; empty where the incident names no place."""
    impact: str
    """Jobs and GPUs that stand still, and steps lost."""
    action: str
    """What Mainstay did, what it proposes, or that an operator must act."""
    url: str
    node: str | None
    job: str | None
    kinds: list[str]


class MessageBody(Output):
    """What a mail says in place of incidents."""

    plain: str
    html: str
    """Without ``html`` and ``body`` elements."""


class Message(Output):
    """One message of a group of incidents to one receiver."""

    group: str
    """Constant from the first message about a group of incidents to ``resolved``: the key by which receivers merge."""
    event: NotificationEvent
    severity: Severity
    """The worst of the incidents."""
    title: str
    incidents: list[IncidentSummary]
    """The newest ones, at most ``MAX_INCIDENTS``."""
    incidents_total: int
    url: str
    """The incident, or the list of incidents."""
    acknowledge_url: str | None
    """Acknowledges the incidents with one click until it expires; None once that is over."""
    created_at: float
    """Unix seconds."""
    body: MessageBody | None = None
    """Of a report. Messages that an older release put into the outbox have none."""


MAX_INCIDENTS = 5
_WORDS = {
    NotificationEvent.OPENED: "",
    NotificationEvent.UPDATED: "Update: ",
    NotificationEvent.ESCALATED: "Not acknowledged: ",
    NotificationEvent.REPEATED: "Still open: ",
    NotificationEvent.ACKNOWLEDGED: "Acknowledged: ",
    NotificationEvent.RESOLVED: "Resolved: ",
    NotificationEvent.TEST: "Test: ",
}


def headline(message: Message) -> str:
    """One line: of a report its title, else such as ``[critical] Still open: Node n17 stopped (and 3 more)``."""
    if message.event is NotificationEvent.REPORT:
        return message.title
    others = message.incidents_total - 1
    more = f" (and {others} more)" if others > 0 else ""
    return f"[{message.severity.value}] {_WORDS[message.event]}{message.title}{more}"


def facts(incident: IncidentSummary) -> list[tuple[str, str]]:
    """Labeled lines about an incident; those that have nothing to say are left out."""
    since = datetime.fromtimestamp(incident.opened_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    lines = [("Where", incident.where), ("Since", since), ("Impact", incident.impact), ("Action", incident.action)]
    return [(label, text) for label, text in lines if text]


def plain_text(message: Message) -> str:
    """The whole message as plain text."""
    parts = [headline(message)]
    if message.body is not None:
        parts += [message.body.plain, message.url]
    for incident in message.incidents:
        title = [incident.title] if message.incidents_total > 1 else []
        parts.append("\n".join([*title, *(f"{label}: {text}" for label, text in facts(incident)), incident.url]))
    if message.incidents_total > len(message.incidents):
        parts.append(f"{message.incidents_total - len(message.incidents)} more: {message.url}")
    if message.acknowledge_url:
        parts.append(f"Acknowledge: {message.acknowledge_url}")
    return "\n\n".join(parts)
