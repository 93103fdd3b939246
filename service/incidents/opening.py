"""How an incident begins: a row, a deadline, and the first entry on its timeline."""

from __future__ import annotations

from collections.abc import Sequence

from service.incidents import stacks
from service.incidents.life_cycle import IncidentState
from service.incidents.models import IncidentRow
from service.incidents.service import due_after, tell
from service.kit.db import WriteSession
from service.kit.ids import new_id
from service.settings import IncidentSettings


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
        id=new_id(),
        title=title[:300],
        summary=summary,
        state=IncidentState.OPEN.value,
        version=1,
        severity=severity,
        needs_human=False,
        opened_at=now,
        updated_at=now,
        job=job,
        node=node,
        device=device,
        ranks=sorted(ranks),
        kinds=list(kinds),
        cause=cause,
    )
    row.due_at = due_after(row, IncidentState.OPEN, settings, now=now, needs_human=False, planned=False)
    session.add(row)
    session.flush()
    tell(session, row, time=now, kind="opened", text=f"Incident opened: {row.title}")
    stacks.adopt(session, row)
    return row
