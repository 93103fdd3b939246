"""Messages to send, among them hostile ones, and the means to send them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mainstay.probes.core_types import Severity
from mainstay.service.notifications.message import IncidentSummary, Message, NotificationEvent
from mainstay.service.notifications.outgoing_post import OutgoingPost
from mainstay.service.notifications.receivers.base import Delivery
from mainstay.service.notifications.secrets import SecretDirectory

EVENTS = tuple(NotificationEvent)
GROUP = "01980000-0000-7000-8000-000000000001"
ACKNOWLEDGE = "https://mainstay.example/acknowledge?token=" + "A" * 250
HOSTILE = (
    "<script>alert(1)</script> & <!channel> <@U123> [x](http://evil.test) *b* _i_ {{DATE(2017-02-14T06:08:00Z)}}\r\n"
    "Bcc: evil@evil.test\r\n\r\nbody\u2028\u0007\U0001f525\U0001f469\u200d\U0001f692 Überhitzung 過熱 \u202e"
) + "&" * 10_000


def incident(number: int = 1, **changes: Any) -> IncidentSummary:
    """One of a message."""
    fields: dict[str, Any] = {
        "id": f"incident-{number}", "title": f"GPU 3 of n{number} fell off the bus", "severity": Severity.CRITICAL,
        "state": "open", "opened_at": time.time() - 90,
        "where": f"node n{number} · GPU 3 (serial S-{number}) · rack r4",
        "impact": "job llm-7b (64 ranks) stands still", "action": "Proposed: drain (n1). An operator must act",
        "url": f"https://mainstay.example/incidents/{number}", "node": f"n{number}", "job": "llm-7b", "kinds": ["xid"],
    }  # fmt: skip
    return IncidentSummary(**{**fields, **changes})


def message(event: NotificationEvent = NotificationEvent.OPENED, **changes: Any) -> Message:
    """About one incident, unless ``incidents`` says otherwise."""
    incidents = changes.pop("incidents", [incident()])
    fields: dict[str, Any] = {
        "group": GROUP, "event": event, "severity": Severity.CRITICAL, "title": "GPU 3 of n1 fell off the bus",
        "incidents": incidents, "incidents_total": len(incidents), "url": "https://mainstay.example/incidents/1",
        "acknowledge_url": None if event is NotificationEvent.RESOLVED else ACKNOWLEDGE, "created_at": time.time(),
    }  # fmt: skip
    return Message(**{**fields, **changes})


def trial() -> Message:
    """What the test of a receiver sends."""
    empty: dict[str, Any] = {"incidents": [], "severity": Severity.INFO, "title": "ada tests the receiver"}
    return message(NotificationEvent.TEST, **empty, acknowledge_url=None)


def hostile(event: NotificationEvent) -> Message:
    """Markup, control characters, and far too long texts in every field that an incident fills."""
    texts = dict.fromkeys(("title", "where", "impact", "action"), HOSTILE)
    names: dict[str, Any] = {"node": 'n"1\\', "job": "<job>\n", "kinds": ["xid"] * 500}
    return message(event, incidents=[incident(n, **texts, **names) for n in range(5)], title=HOSTILE)


def fiery(event: NotificationEvent) -> Message:
    """Long texts of characters that JSON and UTF-8 make longer."""
    texts = dict.fromkeys(("title", "where", "impact", "action"), "\U0001f525" * 10_000)
    return message(event, incidents=[incident(n, **texts) for n in range(5)], title=texts["title"])


def flood(event: NotificationEvent) -> Message:
    """5 of 4000 incidents."""
    return message(event, incidents=[incident(n) for n in range(5)], incidents_total=4000)


@dataclass
class Courier:
    """Makes deliveries with the service's own means."""

    directory: Path
    post: OutgoingPost = field(default_factory=OutgoingPost)
    ca_file: Path | None = None

    def keep(self, name: str, text: str) -> str:
        """Store a secret; answer its name."""
        self.directory.mkdir(exist_ok=True)
        (self.directory / name).write_text(f"{text}\n")
        return name

    def delivery(self, attempt: int = 1, **changes: Any) -> Delivery:
        fields: dict[str, Any] = {
            "id": "01980000-0000-7000-8000-00000000000a", "attempt": attempt, "now": time.time(), "post": self.post,
            "secret": SecretDirectory(self.directory).read, "ca_file": self.ca_file,
        }  # fmt: skip
        return Delivery(**{**fields, **changes})
