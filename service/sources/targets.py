"""Queries over scrape targets. A scrape belongs to whoever moved the target's ``due_at``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import select, update

from mainstay.probes.ids import uuid7
from mainstay.service.common.db import AnySession, WriteSession
from mainstay.service.common.problem import ConflictError, NotFoundError
from mainstay.service.common.rows import compare_and_set, require_row
from mainstay.service.sources.models import DcgmTargetRow

MAX_BACK_OFF: Final = 300.0
"""A target that keeps failing is still asked this often, seconds."""


class UnknownTargetError(NotFoundError):
    slug, title = "unknown-target", "Unknown target"


class TargetExistsError(ConflictError):
    slug, title = "target-exists", "Target exists"


@dataclass(frozen=True, slots=True)
class ScrapeResult:
    """A scrape that was made: ``error`` is empty when it went well."""

    target: DcgmTargetRow
    at: float
    error: str | None
    samples: int = 0
    memory: dict[str, Any] | None = None


def create(
    session: WriteSession, *, url: str, node: str | None, interval: float, enabled: bool, now: float
) -> DcgmTargetRow:
    """A new target, due at once.

    Raises:
        TargetExistsError: the address is scraped already.
    """
    if session.scalar(select(DcgmTargetRow.id).where(DcgmTargetRow.url == url)) is not None:
        raise TargetExistsError(f"{url} is a target already")
    row = DcgmTargetRow(
        id=uuid7(), url=url, node=node, interval_seconds=interval, enabled=enabled, created_at=now, due_at=now,
        sequence=0, failures=0, last_scrape_at=None, last_error=None, samples=0, memory={},
    )  # fmt: skip
    session.add(row)
    session.flush()
    return row


def delete(session: WriteSession, target: str) -> None:
    """Forget a target; what it told stays.

    Raises:
        UnknownTargetError: there is none of this id.
    """
    row = require_row(session, DcgmTargetRow, target, UnknownTargetError(f"no target has the id {target}"))
    session.delete(row)


def any_due(session: AnySession, now: float) -> bool:
    due = select(DcgmTargetRow.id).where(DcgmTargetRow.enabled, DcgmTargetRow.due_at <= now)
    return session.scalar(due.limit(1)) is not None


def claim(session: WriteSession, now: float, limit: int) -> list[DcgmTargetRow]:
    """At most ``limit`` due targets, the longest waiting first; no other process scrapes them this time."""
    row = DcgmTargetRow
    due = select(row).where(row.enabled, row.due_at <= now).order_by(row.due_at).limit(limit)
    return [target for target in session.scalars(due).all() if _take(session, target, now)]


def _take(session: WriteSession, target: DcgmTargetRow, now: float) -> bool:
    unchanged, due_at = DcgmTargetRow.sequence == target.sequence, now + target.interval_seconds
    return compare_and_set(session, target, unchanged, reread=False, sequence=target.sequence + 1, due_at=due_at)


def settle(session: WriteSession, outcomes: Sequence[ScrapeResult]) -> None:
    """Write down how scrapes ended; a target that was deleted meanwhile is left alone."""
    for outcome in outcomes:
        target = outcome.target
        values: dict[str, Any] = {"last_error": None, "failures": 0, "last_scrape_at": outcome.at}
        if outcome.error is not None:
            wait = min(MAX_BACK_OFF, target.interval_seconds * 2.0 ** min(target.failures, 10))
            due = outcome.at + max(wait, target.interval_seconds)
            values = {"last_error": outcome.error[:500], "failures": target.failures + 1, "due_at": due}
        if outcome.memory is not None:
            values["memory"] = outcome.memory
        row = DcgmTargetRow
        grown = {**values, "samples": row.samples + outcome.samples}
        # A scrape that took longer than the interval may be overtaken: then the later one's word stands.
        session.execute(update(row).where(row.id == target.id, row.sequence == target.sequence).values(**grown))
