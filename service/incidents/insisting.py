"""Findings that are said while the judge may write the same incident: said again until they stand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from sqlalchemy import Select, select

from detectors.finding import Evidence, Finding
from service.incidents import findings as wire
from service.incidents import intake
from service.incidents.models import FindingRow
from service.incidents.progress import Context
from service.incidents.service import IncidentChangedError
from service.kit.db import AnySession, WriteSession
from service.settings import Settings

_TRIES: Final = 5


def insist(session: WriteSession, look: Callable[[], Sequence[Finding]], *, now: float, settings: Settings) -> None:
    """Store findings; when somebody changed their incident meanwhile, ``look`` is asked anew, five times at most.

    Args:
        session: to write with.
        look: what is to be said, as the store stands now.
        now: Unix seconds.
        settings: of the service.
    """
    context = Context(session, settings.incidents, now)
    for _ in range(_TRIES):
        found = look()
        if not found:
            return
        try:
            with session.begin_nested():
                intake.take(context, found, silent_after=settings.fleet.silent_after)
        except IncidentChangedError:  # the judge wrote the incident at the same moment
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
