"""PagerDuty: the Events API v2, one alert for each group of incidents.

https://developer.pagerduty.com/docs/events-api-v2-overview
"""

from __future__ import annotations

from typing import ClassVar, Final, Literal

from mainstay.service.common.time_texts import iso_time
from mainstay.service.notifications.message import Message, NotificationEvent, facts
from mainstay.service.notifications.receivers.base import (
    Delivery,
    HttpUrl,
    Payload,
    ReceiverConfig,
    SecretName,
    encode,
    request,
)
from mainstay.service.notifications.receivers.texts import clip, marked_headline

_SUMMARY, _KEY, _TEXT = 1024, 255, 2000
"""Longest texts, in characters; the last is ours: an event has at most 512 KB."""
_ACTIONS: Final = {NotificationEvent.ACKNOWLEDGED: "acknowledge", NotificationEvent.RESOLVED: "resolve"}


class PagerDuty(ReceiverConfig):
    """Sends events to the service whose integration key is the secret ``routing_key_secret``."""

    kind: Literal["pagerduty"]
    routing_key_secret: SecretName
    url: HttpUrl = "https://events.pagerduty.com/v2/enqueue"
    tracks_groups: ClassVar[bool] = True

    def send(self, message: Message, delivery: Delivery) -> None:
        """Send one event; PagerDuty merges events of one group by their key."""
        routing_key = delivery.secret(self.routing_key_secret)
        event = {
            "routing_key": routing_key,
            "event_action": _ACTIONS.get(message.event, "trigger"),
            "dedup_key": message.group[:_KEY],
            "client": "Mainstay",
            "client_url": message.url,
            "links": _links(message),
            "payload": _payload(message, delivery),
        }
        request(delivery, self.url, encode(event), secrets=[routing_key])


def _payload(message: Message, delivery: Delivery) -> Payload:
    newest = message.incidents[0] if message.incidents else None
    payload = {
        "summary": marked_headline(message, delivery, _SUMMARY),
        "severity": message.severity.value,  # critical, warning, and info have the same names there
        "source": (newest and (newest.node or newest.job)) or "mainstay",
        "timestamp": iso_time(message.created_at),
        "class": clip(", ".join(newest.kinds), _TEXT) if newest else "test",
        "custom_details": {"incidents": message.incidents_total, **_details(message)},
    }
    if newest and newest.where:
        payload["component"] = clip(newest.where, _TEXT)
    return payload


def _details(message: Message) -> dict[str, dict[str, str]]:
    return {
        incident.id: {"Title": clip(incident.title, _TEXT)}
        | {label: clip(text, _TEXT) for label, text in facts(incident)}
        for incident in message.incidents
    }


def _links(message: Message) -> list[dict[str, str]]:
    links = [{"href": message.url, "text": "Open in Mainstay"}]
    if message.acknowledge_url:
        links.append({"href": message.acknowledge_url, "text": "Acknowledge in Mainstay"})
    return links
