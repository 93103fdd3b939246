"""Microsoft Teams: an Adaptive Card to the webhook of a workflow (Power Automate).

The trigger of the workflow is "When a Teams webhook request is received". The connectors of Office 365 are retired.
https://learn.microsoft.com/power-automate/teams/create-flows-teams-webhooks
"""

from __future__ import annotations

from typing import Final, Literal

from mainstay.service.notifications.message import IncidentSummary, Message, facts
from mainstay.service.notifications.receivers.base import Delivery, Payload, ReceiverConfig, SecretName, encode, request
from mainstay.service.notifications.receivers.texts import marked_headline, one_line

_MAX_BYTES: Final = 20_000
"""Teams allows about 28 KB after it has wrapped and escaped the card, so the card must be smaller."""
_TITLE, _FACT = 200, 400
"""Longest texts, in characters."""
_COLORS: Final = {"critical": "attention", "warning": "warning", "info": "accent"}


class Teams(ReceiverConfig):
    """Posts messages through the workflow whose webhook URL is the secret ``url_secret``."""

    kind: Literal["teams"]
    url_secret: SecretName

    def send(self, message: Message, delivery: Delivery) -> None:
        """Post the card; Teams answers 202 before the workflow runs, so its faults show in Power Automate alone."""
        request(delivery, delivery.secret(self.url_secret), _body(message, delivery))


def _body(message: Message, delivery: Delivery) -> bytes:
    """The card with as many incidents as fit."""
    shown = len(message.incidents)
    while len(body := encode(_payload(message, delivery, shown))) > _MAX_BYTES and shown:
        shown -= 1
    return body


def _payload(message: Message, delivery: Delivery, shown: int) -> Payload:
    title = _run(marked_headline(message, delivery, _TITLE), weight="bolder", size="large")
    blocks = [_block({**title, "color": _COLORS[message.severity]})]
    for incident in message.incidents[:shown]:
        blocks += _incident(incident)
    if others := message.incidents_total - shown:
        blocks.append(_block(_run(f"{others} more")))
    actions = [_link("Open in Mainstay", message.url)]
    if message.acknowledge_url:
        actions.append(_link("Acknowledge", message.acknowledge_url))
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "msteams": {"width": "Full"},
        "body": blocks,
        "actions": actions,
    }
    content = {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
    return {"type": "message", "attachments": [content]}


def _incident(incident: IncidentSummary) -> list[Payload]:
    title = {**_run(one_line(incident.title, _TITLE), weight="bolder"), "selectAction": _link("Open", incident.url)}
    lines = [[_run(f"{label}: ", weight="bolder"), _run(one_line(text, _FACT))] for label, text in facts(incident)]
    return [{**_block(title), "separator": True}, *(_block(*line) for line in lines)]


def _block(*runs: Payload) -> Payload:
    """A line. Runs of a RichTextBlock are shown as they are; a TextBlock would read Markdown in them."""
    return {"type": "RichTextBlock", "inlines": list(runs), "spacing": "small"}


def _run(text: str, **style: str) -> Payload:
    return {"type": "TextRun", "text": text, **style}


def _link(title: str, url: str) -> Payload:
    return {"type": "Action.OpenUrl", "title": title, "url": url}
