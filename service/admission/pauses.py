"""An operator pauses admission of new work, to one rack or to the fleet; running jobs continue and may restart."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import select

from mainstay.service.admission.models import AdmissionPauseRow
from mainstay.service.common.db import AnySession, WriteSession
from mainstay.service.common.problem import ConflictError

FLEET = ""
"""Stands for all racks."""


class NotPausedError(ConflictError):
    slug, title = "admission-not-paused", "Admission is not paused"


def pause(session: WriteSession, rack: str | None, *, reason: str, actor: str, now: float) -> AdmissionPauseRow:
    """Pause; of a pause that holds already, the reason is replaced."""
    row = session.get(AdmissionPauseRow, rack or FLEET)
    if row is None:
        row = AdmissionPauseRow(rack=rack or FLEET, created_at=now)
        session.add(row)
    row.reason, row.actor = reason, actor[:200]
    return row


def resume(session: WriteSession, rack: str | None) -> AdmissionPauseRow:
    """End a pause, and return what it was.

    Raises:
        NotPausedError: there is none of this rack, or of the fleet.
    """
    row = session.get(AdmissionPauseRow, rack or FLEET)
    if row is None:
        what = f"rack {rack}" if rack else "the fleet"
        raise NotPausedError(f"admission to {what} is not paused")
    session.delete(row)
    return row


def current(session: AnySession) -> list[AdmissionPauseRow]:
    """All pauses, that of the fleet first."""
    return list(session.scalars(select(AdmissionPauseRow).order_by(AdmissionPauseRow.rack)))


def by_rack(session: AnySession, running: Collection[str], job: str) -> dict[str, str]:
    """Rack, or ``FLEET`` -> why no new work starts there. Nothing is paused for a job that is in ``running``."""
    columns = select(AdmissionPauseRow.rack, AdmissionPauseRow.actor, AdmissionPauseRow.reason)
    rows = session.connection().execute(columns).all()
    if not rows or job in running:
        return {}
    return {rack: f"{actor} paused admission to {_named(rack)}: {reason}" for rack, actor, reason in rows}


def _named(rack: str) -> str:
    return f"rack {rack}" if rack else "the fleet"
