"""Ids are UUIDv7 text: unique without a round trip, and sorted by the time they were made."""

from __future__ import annotations

import uuid_utils


def new_id() -> str:
    """A fresh UUIDv7, lower-case with dashes."""
    return str(uuid_utils.uuid7())
