"""What the end of a validation says about its node, as a finding that opens, feeds or ends an incident.

A failure is said at once; it is taken back when the node's standing verdict passes, and by nothing else: a weaker pass,
or a check that could not run, proves nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sqlalchemy import select

from detectors import validated
from detectors.finding import Evidence, Finding
from detectors.verdict import Judgement
from probes.words import Verdict
from service.incidents import findings as wire
from service.incidents import intake
from service.incidents.models import FindingRow
from service.incidents.progress import Context
from service.incidents.service import IncidentChangedError
from service.kit.db import WriteSession
from service.settings import Settings
from service.validation.models import NodeVerdictRow, ValidationRow

_TRIES: Final = 5


def ended(
    session: WriteSession, row: ValidationRow, judged: Judgement | None, *, now: float, settings: Settings
) -> None:
    """Say what a validation found; ``judged`` None: nothing was measured."""
    found = _taken_back(session, row, now)
    if judged is not None and judged.verdict is Verdict.FAIL:
        failure = validated.finding(row.node, row.suite, judged.verdicts, time=row.finished_at or now)
        found += [] if failure is None else [failure]
    if found:
        _take(session, found, now=now, settings=settings)


def _taken_back(session: WriteSession, row: ValidationRow, now: float) -> list[Finding]:
    standing = session.get(NodeVerdictRow, row.node)
    if standing is None or standing.verdict != Verdict.PASS:
        return []
    statement = select(FindingRow).where(
        FindingRow.node == row.node, FindingRow.active, FindingRow.detector == validated.NAME
    )
    over = Evidence(summary=f"Over: validation {row.suite} passed after it.")
    found = (wire.from_row(one) for one in session.scalars(statement))
    return [replace(one, active=False, time=now, evidence=over, event=None) for one in found]


def _take(session: WriteSession, found: list[Finding], *, now: float, settings: Settings) -> None:
    context = Context(session, settings.incidents, now)
    for _ in range(_TRIES):
        try:
            with session.begin_nested():
                intake.take(context, found, silent_after=settings.fleet.silent_after)
        except IncidentChangedError:  # the judge wrote the incident at the same moment
            session.expire_all()
        else:
            return
