"""Texts of messages within the limits of receivers."""

from __future__ import annotations

from mainstay.service.notifications.message import Message, headline
from mainstay.service.notifications.receivers.base import Delivery


def clip(text: str, limit: int) -> str:
    """At most ``limit`` characters; an ellipsis ends what was cut."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def one_line(text: str, limit: int) -> str:
    """The text without line breaks, runs of spaces, and control characters."""
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    return clip(" ".join(printable.split()), limit)


def marked_headline(message: Message, delivery: Delivery, limit: int) -> str:
    """The headline on one line, with a note where the message may be a repeat."""
    note = repeat_note(delivery)
    return one_line(headline(message), limit - len(note)) + note


def repeat_note(delivery: Delivery) -> str:
    """Text for the end of a repeated message's first line; empty for any other."""
    return " (may be a repeat)" if delivery.repeated else ""
