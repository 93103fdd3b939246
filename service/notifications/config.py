"""The configuration of notifications: versions of one TOML text, of which the newest is in force."""

from __future__ import annotations

import logging
import secrets
import tomllib
from functools import lru_cache
from typing import Final

from pydantic import ValidationError
from sqlalchemy.exc import IntegrityError

from mainstay.service.common.db import AnySession, WriteSession
from mainstay.service.common.problem import ConflictError, UnprocessableError
from mainstay.service.common.rows import insert_into
from mainstay.service.common.signed_links import InvalidLinkError
from mainstay.service.notifications import repository
from mainstay.service.notifications.models import NotificationConfigRow, NotificationCursorRow
from mainstay.service.notifications.routes import NotificationConfig
from mainstay.service.stream import changes
from mainstay.service.stream.position import START, Position

_log: Final = logging.getLogger(__name__)
_FAULTS: Final = 5
"""Faults that an answer names."""


class InvalidConfigError(UnprocessableError):
    slug, title = "invalid-notification-config", "Invalid notification configuration"


class ConfigChangedError(ConflictError):
    slug, title = "notification-config-changed", "Notification configuration changed"


def parse(text: str) -> NotificationConfig:
    """Read receivers and routes.

    Raises:
        InvalidConfigError: names the places and their faults, never a value.
    """
    try:
        return NotificationConfig.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfigError(f"this is not TOML: {error}") from error
    except ValidationError as error:
        faults = error.errors(include_input=False, include_url=False, include_context=False)
        lines = [f"{'.'.join(map(str, fault['loc'])) or 'the text'}: {fault['msg']}" for fault in faults[:_FAULTS]]
        raise InvalidConfigError("; ".join(lines)) from error


@lru_cache(maxsize=4)
def _parse(text: str) -> NotificationConfig | None:
    try:
        return parse(text)
    except InvalidConfigError as error:
        _log.error("the stored notification configuration cannot be used: %s", error)
        return None


def current(session: AnySession) -> NotificationConfig | None:
    """The configuration in force; None without one, or where this program cannot read it."""
    row = repository.newest_config(session)
    return None if row is None else _parse(row.text)


def store(session: WriteSession, text: str, *, replaces: int, actor: str, now: float) -> NotificationConfigRow:
    """Put a new version in force.

    Args:
        session: of the request.
        text: TOML.
        replaces: the version that its author saw; 0 for none.
        actor: who stores it.
        now: Unix seconds.

    Raises:
        InvalidConfigError: see ``parse``.
        ConfigChangedError: another version is in force by now.
    """
    parse(text)
    newest = repository.newest_config(session)
    if (0 if newest is None else newest.version) != replaces:
        raise ConfigChangedError(
            f"version {newest.version if newest else 0} is in force, not {replaces}: read it again"
        )
    row = NotificationConfigRow(version=replaces + 1, text=text, actor=actor, created_at=now)
    session.add(row)
    if newest is None:  # what happened before the first configuration is not sent
        make_link_key(session)
        move_cursor(session, changes.newest(session))
    try:
        session.flush()
    except IntegrityError as error:
        raise ConfigChangedError("another version was stored at the same moment: read it again") from error
    return row


def position(session: AnySession) -> Position:
    """The newest change whose messages are in the outbox."""
    row = repository.cursor(session)
    return START if row is None else Position(row.transaction, row.change)


def move_cursor(session: WriteSession, to: Position) -> None:
    row = repository.cursor(session)
    if row is not None:
        row.transaction, row.change = to.transaction, to.id


def link_key(session: AnySession) -> bytes:
    """The key that signs links.

    Raises:
        InvalidLinkError: there is none, so no link was ever made.
    """
    row = repository.cursor(session)
    if row is None:
        raise InvalidLinkError("this service made no link yet")
    return row.key


def make_link_key(session: WriteSession) -> bytes:
    """The key that signs links, made at its first use. It is valid without a configuration too."""
    start = changes.newest(session)
    values = {"transaction": start.transaction, "change": start.id, "key": secrets.token_bytes(32)}
    statement = insert_into(session, NotificationCursorRow).values(id=repository.CURSOR, **values)
    session.execute(statement.on_conflict_do_nothing())
    return link_key(session)
