"""How an incident begins, and how it grows with further findings."""

from __future__ import annotations

from collections.abc import Sequence

from service.incidents.life_cycle import IncidentState
from service.incidents.models import IncidentRow
from service.incidents.service import due_after, tell
from service.kit.db import WriteSession
from service.kit.ids import new_id
from service.settings import IncidentSettings

_UPPER = {"xid": "XID", "gpu": "GPU", "ecc": "ECC", "pcie": "PCIe", "nvlink": "NVLink", "nic": "NIC", "nan": "NaN"}


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
    summary: str,
) -> IncidentRow:
    """A new incident, open, with its first entry on the timeline."""
    row = IncidentRow(
        id=new_id(),
        title=title_of(kinds, job=job, node=node, device=device, ranks=ranks),
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
    )
    row.due_at = due_after(row, IncidentState.OPEN, settings, now=now, needs_human=False, planned=False)
    session.add(row)
    session.flush()
    tell(session, row, time=now, kind="opened", text=f"Incident opened: {row.title}.")
    return row


def title_of(
    kinds: Sequence[str], *, job: str | None, node: str | None, device: str | None, ranks: Sequence[int]
) -> str:
    """One line that tells what and where: ``Process exit: rank 1 of demo on node-a``."""
    what = ", ".join(_words(kind) for kind in kinds)
    who = ""
    if ranks:
        listed = ", ".join(str(rank) for rank in sorted(ranks)[:8]) + ("…" if len(ranks) > 8 else "")
        who = f"rank{'s' if len(ranks) > 1 else ''} {listed}"
    if job is not None:
        who = f"{who} of {job}" if who else job
    place = "/".join(part for part in (node, device) if part is not None)
    where = f"{who} on {place}" if who and place else who or place
    return f"{what[:1].upper()}{what[1:]}: {where}"[:300]


def _words(kind: str) -> str:
    return " ".join(_UPPER.get(word, word) for word in kind.split("_"))
