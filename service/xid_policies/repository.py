"""Queries over versions of the policy and over differences of the shadow."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import ColumnElement, delete, select

from mainstay.detectors.policy.comparison import KINDS, StatementChange
from mainstay.probes.core_types import Event
from mainstay.probes.ids import uuid7
from mainstay.service.common.db import AnySession, WriteSession
from mainstay.service.events.models import EventRow
from mainstay.service.events.repository import to_event
from mainstay.service.xid_policies.models import PolicyShadowRow, PolicyVersionRow, VersionMode


def in_mode(session: AnySession, mode: VersionMode) -> PolicyVersionRow | None:
    statement = select(PolicyVersionRow).where(PolicyVersionRow.mode == mode.value)
    return session.scalars(statement).one_or_none()


def running(session: AnySession) -> dict[VersionMode, tuple[int, str]]:
    """Return mode -> (version, digest) of the active policy and its shadow."""
    modes = (VersionMode.ACTIVE.value, VersionMode.SHADOW.value)
    statement = select(PolicyVersionRow.mode, PolicyVersionRow.version, PolicyVersionRow.digest)
    found = session.execute(statement.where(PolicyVersionRow.mode.in_(modes)))
    return {VersionMode(mode): (version, digest) for mode, version, digest in found}


def latest_events(session: AnySession, *, since: float, until: float, limit: int) -> tuple[list[Event], bool]:
    """The newest events that a policy looks at, oldest first, and whether older ones were left out."""
    found = _newest_events(session, EventRow.time >= since, EventRow.time <= until, limit=limit + 1)
    return found[-limit:], len(found) > limit


def judged_events(session: AnySession, *, since: float, limit: int) -> list[Event]:
    """Return the newest evaluated events that a policy covers, oldest first."""
    return _newest_events(session, EventRow.time >= since, EventRow.judged_at.is_not(None), limit=limit)


def _newest_events(session: AnySession, *where: ColumnElement[bool], limit: int) -> list[Event]:
    covered = EventRow.kind.in_([kind.value for kind in KINDS])
    statement = select(EventRow).where(covered, *where).order_by(EventRow.time.desc(), EventRow.id.desc()).limit(limit)
    return [to_event(row) for row in session.scalars(statement)][::-1]


def add_shadow(session: WriteSession, version: int, changes: Iterable[StatementChange]) -> None:
    for change in changes:
        session.add(
            PolicyShadowRow(
                id=uuid7(),
                time=change.time,
                version=version,
                event_id=change.event,
                node=change.node,
                device=change.device,
                code=change.code,
                live=change.before,
                shadow=change.after,
            )
        )


def prune_shadow(session: WriteSession, keep: int) -> None:
    """Forget all but the newest ``keep``."""
    statement = select(PolicyShadowRow.id).order_by(PolicyShadowRow.id.desc()).offset(keep).limit(1)
    oldest = session.scalar(statement)
    if oldest is not None:
        session.execute(delete(PolicyShadowRow).where(PolicyShadowRow.id <= oldest))
