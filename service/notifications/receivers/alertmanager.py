"""Prometheus Alertmanager: one alert for each incident of a message, through the API v2.

https://prometheus.io/docs/alerting/latest/alerts_api
"""

from __future__ import annotations

import json
from typing import ClassVar, Final, Literal
from urllib.parse import quote

from pydantic import BaseModel, TypeAdapter, ValidationError

from mainstay.service.common.time_texts import iso_time
from mainstay.service.notifications.message import IncidentSummary, Message, NotificationEvent, facts
from mainstay.service.notifications.receivers.base import (
    JSON,
    MAX_ANSWER,
    Delivery,
    DeliveryError,
    HttpUrl,
    Payload,
    ReceiverConfig,
    SecretName,
    encode,
    request,
)
from mainstay.service.notifications.receivers.texts import clip, marked_headline, one_line, repeat_note

_HOLD_SECONDS: Final = 30 * 86_400.0
"""How far ahead the end of an open alert is.

Alertmanager ends an alert without an end ``resolve_timeout`` (5 min) after it was last sent. Mainstay sends an incident
again only when it changes or a repeat is due (after 7 days at most). The message about the end replaces this one. An
Alertmanager that restarts has lost all alerts until the next message about each.
"""
_TEST_SECONDS: Final = 300.0
_SKEW_SECONDS: Final = 60.0
"""An end is dated back: Alertmanager ignores one that is still ahead by its own clock."""
_MAX_LIST: Final = 64 * MAX_ANSWER
_TITLE, _TEXT = 300, 2000
"""Longest texts, in characters; they are ours."""


class _ListedAlert(BaseModel):
    labels: dict[str, str]
    annotations: dict[str, str]


_LIST: Final = TypeAdapter(list[_ListedAlert])


class Alertmanager(ReceiverConfig):
    """Sends alerts to the Alertmanager at ``url``, with the bearer token ``token_secret`` where one is named."""

    kind: Literal["alertmanager"]
    url: HttpUrl
    token_secret: SecretName | None = None
    tracks_groups: ClassVar[bool] = True

    def send(self, message: Message, delivery: Delivery) -> None:
        """Send the incidents of the message, and end alerts that it outdates."""
        if message.event is NotificationEvent.TEST:
            alerts = [_test_alert(message, delivery)]
        else:
            alerts = [_alert(message, incident, delivery) for incident in message.incidents]
        if message.event not in {NotificationEvent.OPENED, NotificationEvent.TEST}:
            alerts += self._outdated(message, alerts, delivery)
        self._request(delivery, "/api/v2/alerts", encode(alerts))

    def _outdated(self, message: Message, alerts: list[Payload], delivery: Delivery) -> list[Payload]:
        """The end of each alert of the group that had other labels, or whose incident the last message leaves out.

        Labels identify an alert, and those of an incident change: its severity rises, and its node becomes known.
        """
        query = quote(f"group={json.dumps(message.group)}")
        answer = self._request(delivery, f"/api/v2/alerts?filter={query}", None, _MAX_LIST)
        try:
            listed = _LIST.validate_json(answer)
        except ValidationError:
            raise DeliveryError("its list of alerts is not that of the API v2", again=False) from None
        current = [alert["labels"] for alert in alerts]
        incidents = {labels["incident"] for labels in current}
        return [
            {"labels": alert.labels, "annotations": alert.annotations, "endsAt": _end(delivery)}
            for alert in listed
            if alert.labels not in current
            and (message.event is NotificationEvent.RESOLVED or alert.labels.get("incident") in incidents)
        ]

    def _request(self, delivery: Delivery, path: str, body: bytes | None, max_bytes: int = MAX_ANSWER) -> bytes:
        headers, secrets = dict(JSON), []
        if self.token_secret is not None:
            secrets.append(delivery.secret(self.token_secret))
            headers["Authorization"] = f"Bearer {secrets[0]}"
        url = self.url.rstrip("/") + path
        return request(delivery, url, body, headers=headers, secrets=secrets, max_bytes=max_bytes)


def _alert(message: Message, incident: IncidentSummary, delivery: Delivery) -> Payload:
    labels = {
        "alertname": "MainstayIncident", "group": message.group, "incident": incident.id,
        "severity": incident.severity.value, "node": incident.node, "job": incident.job,
        "kind": ",".join(incident.kinds),
    }  # fmt: skip
    annotations = {
        "summary": one_line(incident.title, _TITLE) + repeat_note(delivery),
        "description": "\n".join(f"{label}: {clip(text, _TEXT)}" for label, text in facts(incident)),
        "impact": clip(incident.impact, _TEXT),
        "action": clip(incident.action, _TEXT),
        "event": message.event.value,
    }
    if message.event is NotificationEvent.RESOLVED or incident.state == "closed":
        times = {"endsAt": _end(delivery)}
    else:
        times = {"startsAt": iso_time(incident.opened_at), "endsAt": iso_time(delivery.now + _HOLD_SECONDS)}
    return {
        "labels": {name: value for name, value in labels.items() if value},
        "annotations": {name: text for name, text in annotations.items() if text},
        "generatorURL": incident.url,
        **times,
    }


def _test_alert(message: Message, delivery: Delivery) -> Payload:
    return {
        "labels": {"alertname": "MainstayTest", "group": message.group, "severity": message.severity.value},
        "annotations": {"summary": marked_headline(message, delivery, _TITLE)},
        "generatorURL": message.url,
        "endsAt": iso_time(delivery.now + _TEST_SECONDS),
    }


def _end(delivery: Delivery) -> str:
    return iso_time(delivery.now - _SKEW_SECONDS)
