"""How an incident begins: a row, a deadline, and the first entry on its timeline."""

from __future__ import annotations

from collections.abc import Sequence

from mainstay.probes.ids import uuid7
from mainstay.service.common.db import WriteSession
from mainstay.service.incidents import stacks
from mainstay.service.incidents.lifecycle import IncidentState
from mainstay.service.incidents.models import IncidentRow
from mainstay.service.incidents.service import add_timeline_entry, due_after
from mainstay.service.settings import IncidentSettings


def open_incident(
    session: WriteSession,
    settings: IncidentSettings,
    *,
    now: float,
    kinds: Sequence[str],
    severity: str,
    job: str | None,
    node: str | None,
    device: str | None,
    ranks: Sequence[int],
    title: str,
    summary: str,
    cause: str | None = None,
) -> IncidentRow:
    """A new incident, open, with its first entry on the timeline."""
    row = IncidentRow(
        id=uuid7(),
        title=title[:300],
        summary=summary,
        state=IncidentState.OPEN.value,
        version=1,
        severity=severity,
        needs_operator=False,
        opened_at=now,
        updated_at=now,
        job=job,
        node=node,
        device=device,
        ranks=sorted(ranks),
        kinds=list(kinds),
        cause=cause,
    )
    row.due_at = due_after(row, IncidentState.OPEN, settings, now=now, needs_operator=False, planned=False)
    session.add(row)
    session.flush()
    add_timeline_entry(session, row, time=now, kind="opened", text=f"Incident opened: {row.title}")
    stacks.adopt(session, row)
    return row
