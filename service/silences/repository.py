"""Queries over silences, and over what they look at of findings."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Select, select

from mainstay.service.common.db import AnySession
from mainstay.service.fleet.models import NodeRow
from mainstay.service.incidents.models import FindingRow
from mainstay.service.silences.matching import Coverage, Silence, covering
from mainstay.service.silences.models import SilenceRow

_FINDINGS = 2000
"""Different findings of one incident that are compared. A larger incident is not silenced."""


def unfinished(now: float) -> Select[SilenceRow]:
    """Silences that are active now or may become so."""
    return select(SilenceRow).where(SilenceRow.ends_at > now)


def active(session: AnySession, now: float) -> list[Silence]:
    """The silences that are active now, the one that ends last first."""
    rows = session.scalars(unfinished(now).order_by(SilenceRow.ends_at.desc(), SilenceRow.id))
    return [silence for silence in (row.silence for row in rows) if silence.is_active(now)]


def silences_of(session: AnySession, incident_id: str, silences: Iterable[Silence]) -> list[Silence]:
    """Those of the silences that together cover all active findings of the incident; empty where they do not."""
    known = list(silences)
    if not known:
        return []
    statement = (
        select(
            FindingRow.detector, FindingRow.kind, FindingRow.node, FindingRow.job,
            NodeRow.rack, NodeRow.cohort, NodeRow.switches,
        )
        .outerjoin(NodeRow, NodeRow.name == FindingRow.node)
        .where(FindingRow.incident_id == incident_id, FindingRow.active)
        .limit(_FINDINGS + 1)
    )  # fmt: skip
    found = session.execute(statement).all()
    if len(found) > _FINDINGS:
        return []
    return covering(
        known,
        (
            Coverage(
                detector=row.detector, kind=row.kind, node=row.node or "", job=row.job or "", rack=row.rack or "",
                cohort=row.cohort or "", switches=tuple(row.switches or ()),
            )
            for row in found
        ),
    )  # fmt: skip
