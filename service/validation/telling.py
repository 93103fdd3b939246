"""What the end of a validation says about its node, as a finding that opens, feeds or ends an incident.

A failure is said at once; it is taken back when the node's standing verdict passes, and by nothing else: a weaker pass,
or a check that could not run, proves nothing.
"""

from __future__ import annotations

from detectors import validated
from detectors.finding import Finding
from detectors.verdict import Judgement
from probes.words import Verdict
from service.incidents.insisting import insist, of_node, over
from service.incidents.models import FindingRow
from service.kit.db import WriteSession
from service.settings import Settings
from service.validation import localisation_telling
from service.validation.models import NodeVerdictRow, ValidationRow
from service.validation.soundness import last_sound


def ended(
    session: WriteSession, row: ValidationRow, judged: Judgement | None, *, now: float, settings: Settings
) -> None:
    """Say what a validation found; ``judged`` None: nothing was measured."""
    failure = None
    if judged is not None and judged.verdict is Verdict.FAIL:
        failure = _failure(session, row, judged, now)

    def look() -> list[Finding]:
        sound = localisation_telling.validated(session, row, judged, now=now)
        return [*_taken_back(session, row, now), *sound, *([] if failure is None else [failure])]

    insist(session, look, now=now, settings=settings)


def _failure(session: WriteSession, row: ValidationRow, judged: Judgement, now: float) -> Finding | None:
    time = row.finished_at or now
    wrong = validated.wrong_bits(judged)
    sound = last_sound(session, row.node, before=time, benchmarks=wrong) if wrong else None
    at, shown = (None, False) if sound is None else (sound.at, sound.shown)
    return validated.finding(row.node, row.suite, judged, time=time, sound_at=at, shown=shown)


def _taken_back(session: WriteSession, row: ValidationRow, now: float) -> list[Finding]:
    standing = session.get(NodeVerdictRow, row.node)
    if standing is None or standing.verdict != Verdict.PASS:
        return []
    said = of_node(row.node).where(FindingRow.detector == validated.NAME)
    return over(session, said, f"Over: validation {row.suite} passed after it.", now=now)
