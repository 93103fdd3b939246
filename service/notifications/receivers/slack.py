"""Slack: an incoming webhook, with blocks.

https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks and
https://docs.slack.dev/reference/block-kit/blocks (limits)
"""

from __future__ import annotations

from typing import Final, Literal

from mainstay.service.notifications.message import IncidentSummary, Message, facts
from mainstay.service.notifications.receivers.base import (
    Delivery,
    DeliveryError,
    Payload,
    ReceiverConfig,
    SecretName,
    answer_text,
    encode,
    request,
)
from mainstay.service.notifications.receivers.texts import marked_headline, one_line

_HEADER, _TEXT, _FIELD, _TITLE = 150, 3000, 2000, 300
"""Longest texts, in characters; the last is ours."""
_ESCAPED: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


class Slack(ReceiverConfig):
    """Posts messages to the channel of the incoming webhook whose URL is the secret ``url_secret``."""

    kind: Literal["slack"]
    url_secret: SecretName

    def send(self, message: Message, delivery: Delivery) -> None:
        """Post the message; Slack confirms with ``ok``."""
        url = delivery.secret(self.url_secret)
        answer = request(delivery, url, encode(_payload(message, delivery)))
        if answer.strip() != b"ok":
            raise DeliveryError(f"does not answer as Slack does{answer_text(answer, [url])}", again=False)


def _payload(message: Message, delivery: Delivery) -> Payload:
    header = {"type": "plain_text", "text": _escape(marked_headline(message, delivery, _HEADER), _HEADER)}
    blocks: list[Payload] = [{"type": "header", "text": header}, *map(_section, message.incidents)]
    if others := message.incidents_total - len(message.incidents):
        blocks.append({"type": "context", "elements": [_markdown(f"{others} more")]})
    buttons = [_button("Open in Mainstay", message.url)]
    if message.acknowledge_url:
        buttons.append({**_button("Acknowledge", message.acknowledge_url), "style": "primary"})
    blocks.append({"type": "actions", "elements": buttons})
    # Notifications of the operating system show the text instead of the blocks.
    return {"text": _escape(marked_headline(message, delivery, _TEXT), _TEXT), "blocks": blocks}


def _section(incident: IncidentSummary) -> Payload:
    title = f"*<{incident.url}|{_escape(one_line(incident.title, _TITLE), _TITLE)}>*"
    fields = [_markdown(f"*{label}*\n{_escape(text, _FIELD - 20)}") for label, text in facts(incident)]
    return {"type": "section", "text": _markdown(title), "fields": fields}


def _markdown(text: str) -> Payload:
    """Text with Slack's markup, in which names such as @channel remain text."""
    return {"type": "mrkdwn", "text": text, "verbatim": True}


def _button(label: str, url: str) -> Payload:
    return {"type": "button", "text": {"type": "plain_text", "text": label}, "url": url}


def _escape(text: str, limit: int) -> str:
    """At most ``limit`` characters after what Slack would read as a mention or a link is escaped."""
    made, size = [], 0
    for letter in text:
        made.append(_ESCAPED.get(letter, letter))
        size += len(made[-1])
        if size > limit:
            while size >= limit:
                size -= len(made.pop())
            return "".join(made) + "…"
    return "".join(made)
