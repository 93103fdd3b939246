"""What two policies say of one event: which differences count, and how what each says is counted."""

from __future__ import annotations

from typing import Any

import pytest

from mainstay.detectors.finding import Entity, Evidence, Finding, FindingKind
from mainstay.detectors.policy.comparison import NOTHING, Statements, describe, differences
from mainstay.probes.core_types import Event, EventKind, RecommendedAction, Severity

T = 1_800_000_000.0


def found(summary: str = "It is broken.", numbers: dict[str, float] | None = None, **over: Any) -> Finding:
    given: dict[str, Any] = {
        "kind": FindingKind.XID, "entity": Entity(node="n1"), "time": T, "severity": Severity.CRITICAL,
        "detector": "xid", "confidence": 1.0, "recommended_action": RecommendedAction.RESET_GPU,
        "evidence": Evidence(summary=summary, numbers=numbers or {}),
    }  # fmt: skip
    return Finding(**(given | over))


@pytest.mark.parametrize(
    ("told", "code"),
    [(0, 0), (79, 79), (999_999, 999_999), (1_000_000, -1), (-1, -1), (True, -1), ("79", -1), (None, -1)],
)
def test_a_change_without_a_code_of_its_own_has_that_of_its_event(told: Any, code: int) -> None:
    event = Event(id="e", time=T, kind=EventKind.XID, node="n1", device="GPU-1", data={"code": told})
    (change,) = differences(event, [found()], [])
    assert (change.code, change.event, change.time) == (code, "e", T)
    assert (change.node, change.device) == ("n1", None), "whom the statement is about"
    assert (change.before, change.after) == ("critical, reset_gpu: It is broken.", NOTHING)
    (change,) = differences(event, [found(numbers={"code": 48.0})], [found(active=False, numbers={"code": 13.0})])
    assert (change.code, change.after) == (13, "over: It is broken."), "of two codes the newer policy's"


def test_only_what_differs_in_more_than_words_is_a_change() -> None:
    event = Event(id="e", time=T, kind=EventKind.XID, node="n1")
    assert differences(event, [found("It broke.")], [found("It is broken.")]) == []
    for over in ({"active": False}, {"severity": Severity.WARNING}, {"recommended_action": RecommendedAction.MONITOR}):
        assert len(differences(event, [found()], [found(**over)])) == 1
    assert len(describe(found("x" * 500))) == 300


def test_statements_count_when_they_begin_to_be_loud_or_to_drain() -> None:
    info, loud, drain = (
        found(severity=severity, recommended_action=action)
        for severity, action in (
            (Severity.INFO, RecommendedAction.MONITOR),
            (Severity.WARNING, RecommendedAction.MONITOR),
            (Severity.WARNING, RecommendedAction.RESET_GPU),
        )
    )
    said, tallies = Statements(), []
    for finding in (info, loud, loud, drain, drain, loud, drain, found(active=False), drain):
        said.count_findings([finding])
        tallies.append((said.tally.findings, said.tally.drains))
    assert tallies == [(0, 0), (1, 0), (1, 0), (1, 1), (1, 1), (1, 1), (1, 2), (1, 2), (2, 3)]
