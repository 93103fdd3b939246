"""Storing findings while the detection loop may write the same incident: retry until they are stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from sqlalchemy import Select, select

from mainstay.detectors.finding import Evidence, Finding
from mainstay.service.common.db import AnySession, WriteSession
from mainstay.service.incidents import finding_ingest
from mainstay.service.incidents import findings as wire
from mainstay.service.incidents.models import FindingRow
from mainstay.service.incidents.service import Context, IncidentChangedError
from mainstay.service.settings import Settings

_TRIES: Final = 5


def store_with_retry(
    session: WriteSession, find: Callable[[], Sequence[Finding]], *, now: float, settings: Settings
) -> None:
    """Store findings; when the incident changed meanwhile, call ``find`` again, five times at most.

    Args:
        session: to write with.
        find: returns the current findings, from the current rows.
        now: Unix seconds.
        settings: of the service.
    """
    context = Context(session, settings, now)
    for _ in range(_TRIES):
        found = find()
        if not found:
            return
        try:
            with session.begin_nested():
                finding_ingest.ingest_findings(context, found)
        except IncidentChangedError:  # the detection loop wrote the incident at the same moment
            session.expire_all()
        else:
            return


def of_node(node: str) -> Select[FindingRow]:
    """Active findings about a node."""
    return select(FindingRow).where(FindingRow.node == node, FindingRow.active)


def over(session: AnySession, statement: Select[FindingRow], why: str, *, now: float) -> list[Finding]:
    """These findings, ended for a reason."""
    evidence = Evidence(summary=why)
    found = (wire.from_row(row) for row in session.scalars(statement))
    return [replace(finding, active=False, time=now, evidence=evidence, event=None) for finding in found]
