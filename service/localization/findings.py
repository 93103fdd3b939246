"""Results of a fault localization as findings about nodes and the links between them, which change incidents.

A culprit opens a finding at once. A later localization that finds the same part sound ends it, or a current PASS
of a validation that tests for this kind of defect; nothing else does.
"""

from __future__ import annotations

import msgspec
from sqlalchemy import or_, select

from mainstay.detectors.finding import Finding
from mainstay.detectors.localize import findings as pure
from mainstay.detectors.localize.model import LocalizationVerdict
from mainstay.detectors.validation.verdict import RunVerdict
from mainstay.probes.core_types import Verdict as Status
from mainstay.probes.decoding import build_decoders
from mainstay.service.common.db import WriteSession
from mainstay.service.incidents.finding_retry import of_node, over, store_with_retry
from mainstay.service.incidents.models import FindingRow
from mainstay.service.localization.document import DOCUMENT
from mainstay.service.localization.models import LocalizationRow, LocalizationRunState
from mainstay.service.settings import Settings
from mainstay.service.validation.models import NodeVerdictRow, ValidationRow
from mainstay.service.validation.suites import require_suite

build_decoders(LocalizationVerdict)


def ended(session: WriteSession, row: LocalizationRow | None, *, now: float, settings: Settings) -> None:
    """Store the findings of a localization; a running or cancelled one has none."""
    if row is None or row.state != LocalizationRunState.DONE or row.verdict is None:
        return
    verdict = msgspec.convert(row.verdict, LocalizationVerdict, str_keys=True)
    state = DOCUMENT.decode(row.document).state
    nodes, between = pure.sound(state, verdict)
    key = row.id

    def current_findings() -> list[Finding]:
        said = select(FindingRow).where(
            FindingRow.detector == pure.NAME,
            FindingRow.active,
            or_(
                FindingRow.node.in_(nodes),
                FindingRow.node.is_(None) & FindingRow.device.in_(between),
            ),
        )
        sound = over(session, said, f"Over: localization {key} measured it and found it sound.", now=now)
        return [*sound, *pure.findings(verdict, time=now)]

    store_with_retry(session, current_findings, now=now, settings=settings)


def validated(session: WriteSession, row: ValidationRow, judged: RunVerdict | None, *, now: float) -> list[Finding]:
    """Findings about the node that its validation takes back: it passed, and looked where they point."""
    status = session.get(NodeVerdictRow, row.node)
    if judged is None or status is None or status.verdict != Status.PASS:
        return []
    passed = {v.benchmark for v in judged.verdicts if v.verdict is Status.PASS}
    looked = {defect for b in require_suite(row.suite).benchmarks if b.name in passed for defect in b.defects}
    causes = [cause.value for cause, classes in pure.SHOWN_BY.items() if classes <= looked]
    said = of_node(row.node).where(FindingRow.detector == pure.NAME, FindingRow.cause.in_(causes))
    return over(session, said, f"Over: validation {row.suite} looked for it and passed.", now=now)
