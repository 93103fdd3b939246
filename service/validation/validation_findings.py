"""What the end of a validation says about its node, as a finding that opens, feeds or ends an incident.

A failure opens a finding at once; only a PASS as the node's current verdict ends it: a weaker pass,
or a check that could not run, proves nothing.
"""

from __future__ import annotations

from mainstay.detectors.finding import Finding
from mainstay.detectors.validation import validation_finding
from mainstay.detectors.validation.verdict import RunVerdict
from mainstay.probes.core_types import Verdict
from mainstay.service.common.db import WriteSession
from mainstay.service.incidents.finding_retry import of_node, over, store_with_retry
from mainstay.service.incidents.models import FindingRow
from mainstay.service.localization import findings as localization_findings
from mainstay.service.settings import Settings
from mainstay.service.validation.last_known_good import last_sound
from mainstay.service.validation.models import NodeVerdictRow, ValidationRow


def ended(
    session: WriteSession, row: ValidationRow, judged: RunVerdict | None, *, now: float, settings: Settings
) -> None:
    """Create the findings of a validation; ``judged`` is None if nothing was measured."""
    failure = None
    if judged is not None and judged.verdict is Verdict.FAIL:
        failure = _failure(session, row, judged, now)

    def current_findings() -> list[Finding]:
        sound = localization_findings.validated(session, row, judged, now=now)
        return [*_taken_back(session, row, now), *sound, *([] if failure is None else [failure])]

    store_with_retry(session, current_findings, now=now, settings=settings)


def _failure(session: WriteSession, row: ValidationRow, judged: RunVerdict, now: float) -> Finding | None:
    time = row.finished_at or now
    wrong = validation_finding.has_wrong_bits(judged)
    sound = last_sound(session, row.node, before=time, benchmarks=wrong) if wrong else None
    at, shown = (None, False) if sound is None else (sound.at, sound.shown)
    return validation_finding.finding_of_validation(row.node, row.suite, judged, time=time, sound_at=at, shown=shown)


def _taken_back(session: WriteSession, row: ValidationRow, now: float) -> list[Finding]:
    current_verdict = session.get(NodeVerdictRow, row.node)
    if current_verdict is None or current_verdict.verdict != Verdict.PASS:
        return []
    said = of_node(row.node).where(FindingRow.detector == validation_finding.NAME)
    return over(session, said, f"Over: validation {row.suite} passed after it.", now=now)
