"""What a localisation says of nodes and of what is between them, as findings that open, feed or end incidents.

A culprit is said at once. It is taken back by a later localisation that tells the same thing to be sound, or by a
standing PASS of a validation that looked for this kind of defect; by nothing else.
"""

from __future__ import annotations

import msgspec
from sqlalchemy import or_, select

from detectors.finding import Finding
from detectors.localise import findings as pure
from detectors.localise.model import Verdict
from detectors.verdict import Judgement
from probes.words import Verdict as Standing
from service.incidents.insisting import insist, of_node, over
from service.incidents.models import FindingRow
from service.kit.db import WriteSession
from service.settings import Settings
from service.validation.localisation import Document
from service.validation.localisation_models import LocalisationRow, LocalisationState
from service.validation.models import NodeVerdictRow, ValidationRow
from service.validation.suites import require_suite


def ended(session: WriteSession, row: LocalisationRow | None, *, now: float, settings: Settings) -> None:
    """Say what a localisation found; nothing of one that goes on or was called off."""
    if row is None or row.state != LocalisationState.DONE or row.verdict is None:
        return
    verdict = msgspec.convert(row.verdict, Verdict, str_keys=True)
    state = msgspec.json.decode(row.document, type=Document).state
    nodes, between = pure.sound(state, verdict)
    key = row.id

    def look() -> list[Finding]:
        said = select(FindingRow).where(
            FindingRow.detector == pure.NAME,
            FindingRow.active,
            or_(
                FindingRow.node.in_(nodes),
                FindingRow.node.is_(None) & FindingRow.device.in_(between),
            ),
        )
        sound = over(session, said, f"Over: localisation {key} measured it and found it sound.", now=now)
        return [*sound, *pure.findings(verdict, time=now)]

    insist(session, look, now=now, settings=settings)


def validated(session: WriteSession, row: ValidationRow, judged: Judgement | None, *, now: float) -> list[Finding]:
    """Findings about the node that its validation takes back: it passed, and looked where they point."""
    standing = session.get(NodeVerdictRow, row.node)
    if judged is None or standing is None or standing.verdict != Standing.PASS:
        return []
    passed = {v.benchmark for v in judged.verdicts if v.verdict is Standing.PASS}
    looked = {defect for b in require_suite(row.suite).benchmarks if b.name in passed for defect in b.defects}
    causes = [cause.value for cause, classes in pure.SHOWN_BY.items() if classes <= looked]
    said = of_node(row.node).where(FindingRow.detector == pure.NAME, FindingRow.cause.in_(causes))
    return over(session, said, f"Over: validation {row.suite} looked for it and passed.", now=now)
