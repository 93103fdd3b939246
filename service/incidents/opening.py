"""How an incident begins: a row, a deadline, and the first entry on its timeline."""

from __future__ import annotations

from collections.abc import Sequence

from mainstay.probes.ids import uuid7
from mainstay.service.incidents import stacks
from mainstay.service.incidents.lifecycle import IncidentState
from mainstay.service.incidents.models import IncidentRow
from mainstay.service.incidents.service import Context, add_timeline_entry, due_after


def open_incident(
    context: Context,
    *,
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
        opened_at=context.now,
        updated_at=context.now,
        job=job,
        node=node,
        device=device,
        ranks=sorted(ranks),
        kinds=list(kinds),
        cause=cause,
    )
    session = context.session
    row.due_at = due_after(context, row, IncidentState.OPEN, needs_operator=False, planned=False)
    session.add(row)
    session.flush()
    add_timeline_entry(session, row, time=context.now, kind="opened", text=f"Incident opened: {row.title}")
    stacks.adopt(session, row)
    return row
