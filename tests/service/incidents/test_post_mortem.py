"""Post-mortems as data and as Markdown, without a service: unknown is never 0, and text stays text."""

from __future__ import annotations

from typing import Any

import pytest
from markdown_it import MarkdownIt

from mainstay.detectors.finding import Entity, Evidence, Finding, FindingKind
from mainstay.probes.core_types import Severity
from mainstay.service.common.time_texts import duration_text
from mainstay.service.fleet.models import DeviceRow, NodeRow
from mainstay.service.incidents import findings, serializers
from mainstay.service.incidents.models import IncidentRow
from mainstay.service.incidents.schemas import IncidentDetail, TimelineEntry
from mainstay.service.jobs.models import JobRow, RecoveryRow
from mainstay.service.post_mortems.markdown import escape, to_markdown
from mainstay.service.post_mortems.post_mortem import build
from mainstay.service.post_mortems.repository import Sources
from mainstay.service.post_mortems.schemas import PostMortemRead

START = 1_800_000_000.0
URL = "https://mainstay.example/incidents/i1"
RENDERER = MarkdownIt("commonmark", {"html": True}).enable("table")
HOSTILE = (
    "<img src=x onerror=alert(1)> [link](javascript:alert(1)) **bold** _under_ `code` | cell | ~~gone~~ &amp; "
    "![x](y) https://evil.example www.evil.example <https://evil.example> \\ $x$ # no ## heading"
)


def entry(kind: str, seconds: float, text: str = "", **data: Any) -> TimelineEntry:
    return TimelineEntry(time=START + seconds, kind=kind, text=text or kind, data=data)


def detail(**changes: Any) -> IncidentDetail:
    row = IncidentRow(
        id="i1", title="XID 79", summary="GPU fell off the bus", state="recovered", severity="critical",
        needs_operator=False, opened_at=START, recovering_at=START + 1, recovered_at=START + 90, verified_at=None,
        closed_at=None, acknowledged_at=None, acknowledged_by=None, assignee=None, job="demo", node="n1",
        device="gpu3", ranks=[3], kinds=["xid"], cause="faulty_gpu",
    )  # fmt: skip
    found = Finding(
        kind=FindingKind.XID, entity=Entity(node="n1", device="gpu3", job="demo", rank=3), time=START - 2,
        severity=Severity.CRITICAL, detector="xid", confidence=0.95,
        evidence=Evidence(summary="XID 79 on GPU 3", numbers={"code": 79.0, "slowdown": 0.25}),
    )  # fmt: skip
    values: dict[str, Any] = {
        "timeline": [
            entry("finding", -2, "XID 79 on GPU 3"),
            entry("opened", 0),
            entry("recovered", 90, to="recovered"),
            entry("comment", 95, "ada: replaced\nit", actor="ada"),
        ],
        "findings": [findings.read(findings.to_row(found, "i1"))],
        "findings_total": 1, "plan": None, "actions": [], "where": "node n1", "impact": "", "next_step": "",
    }  # fmt: skip
    return IncidentDetail(**serializers.read(row).model_dump() | values | changes)


def recovery(start: float, end: float | None, **changes: Any) -> RecoveryRow:
    values: dict[str, Any] = {
        "id": f"r{start}", "job": "demo", "failed_at": START + start,
        "recovered_at": None if end is None else START + end, "failed_ranks": [3], "restore_strategy": "peer_copy",
        "steps_lost": 2, "planned_seconds": 4.0, "seconds": None if end is None else end - start,
        "parts": {"detect": 1.5}, "outcome": "verified", "strategy": None, "predicted_seconds": None,
        "excess_cost_seconds": None,
    }  # fmt: skip
    return RecoveryRow(**values | changes)


def sources(*recoveries: RecoveryRow, jobs: tuple[str, ...] = ("demo",), known: bool = True) -> Sources:
    rows = [JobRow(id=name, name=f"{name} training", topology={"world_size": 8}) for name in jobs] if known else []
    return Sources(
        node=NodeRow(name="n1", rack="r4"),
        device=DeviceRow(node="n1", id="gpu3", index=3, kind="gpu", serial="S-1"),
        jobs=rows, job_ids=list(jobs), recoveries=list(recoveries), remediations=[],
    )  # fmt: skip


def build_from(*recoveries: RecoveryRow, **changes: Any) -> PostMortemRead:
    return build(detail(**changes), sources(*recoveries), START + 100)


def test_times_culprit_and_cost() -> None:
    found = build_from(recovery(-3, 87))
    assert found.culprit.model_dump() == {"node": "n1", "rack": "r4", "device": "gpu3", "gpu": 3, "serial": "S-1"}
    times = found.times
    assert (times.failed_at, times.first_finding_at) == (START - 3, START - 2)
    assert (times.detection_seconds, times.acknowledge_seconds, times.recovery_seconds) == (1.5, None, 90.0)
    (job,) = found.impact.jobs
    assert (job.gpus, job.stopped_seconds, job.idle_gpu_hours, job.steps_lost) == (8, 90.0, 0.2, 2)
    assert not found.impact.is_partial
    (cost,) = found.recoveries
    assert (cost.measured_from, cost.predicted_seconds, cost.actual_seconds) == ("decision", 4.0, 88.5)
    assert [(one.author, one.text) for one in found.comments] == [("ada", "replaced\nit")]


def test_a_prediction_from_the_failure_is_compared_with_the_whole_time() -> None:
    (cost,) = build_from(
        recovery(-3, 87, predicted_seconds=80.0, excess_cost_seconds=1.0, strategy="respawn")
    ).recoveries
    assert (cost.measured_from, cost.predicted_seconds, cost.actual_seconds) == ("failure", 80.0, 90.0)
    assert (cost.strategy, cost.excess_cost_seconds) == ("respawn", 1.0)


def test_recoveries_that_overlap_count_once() -> None:
    (job,) = build_from(recovery(0, 60), recovery(30, 90), recovery(200, 210)).impact.jobs
    assert (job.stopped_seconds, job.steps_lost) == (100.0, 6)


def test_unknown_is_never_zero() -> None:
    (job,) = build_from(recovery(0, 60), recovery(70, None, steps_lost=None)).impact.jobs
    assert (job.stopped_seconds, job.idle_gpu_hours, job.steps_lost) == (None, None, None), "one has not ended"
    found = build(detail(), sources(recovery(0, 90), jobs=("demo", "other")), START)
    assert found.impact.is_partial
    assert (found.impact.gpus, found.impact.idle_gpu_hours, found.impact.steps_lost) == (16, 0.2, 2)
    text = to_markdown(found, URL)
    assert "| Total | at least 16 |  | at least 0.2 | at least 2 |" in text
    assert "| other training | 8 | unknown | unknown | unknown |" in text
    nothing = build(detail(timeline=[], findings=[], findings_total=0), sources(known=False), START)
    assert (nothing.impact.gpus, nothing.times.first_finding_at, nothing.times.detection_seconds) == (None, None, None)
    assert "| Total | unknown |  | unknown | unknown |" in to_markdown(nothing, URL)
    assert "| Time to recover | not recovered |" in to_markdown(nothing, URL)


def test_a_fault_that_came_back_has_not_recovered() -> None:
    ends = [entry("recovered", 90, to="recovered"), entry("relapsed", 95, to="open"), entry("closed", 99, to="closed")]
    assert build_from(timeline=ends).times.recovery_seconds is None
    assert build_from(timeline=[ends[0], ends[2]]).times.recovery_seconds == 90.0


def test_a_finding_after_the_opening_says_nothing_about_detection() -> None:
    found = build_from(timeline=[entry("opened", 0), entry("finding", 5)])
    assert (found.times.first_finding_at, found.times.detection_seconds) == (START + 5, None)
    assert build_from(timeline=[entry("finding", -5)]).times.detection_seconds == 5.0


def rendered_text(markdown: str) -> list[str]:
    """Texts of all inline tokens; every token that is no text fails the test."""
    texts = []
    for token in RENDERER.parse(markdown):
        assert token.type != "html_block"
        for child in token.children or ():
            assert child.type in {"text", "text_special", "softbreak", "hardbreak"}, child
        if token.type == "inline":
            texts.append("".join(child.content for child in token.children or ()))
    return texts


@pytest.mark.parametrize(
    "text",
    [HOSTILE, "- item", "+ item", "1. item", "12) item", "# heading", "> quote", "---", "===", "~~~", "    code", "|"],
)
def test_text_from_outside_renders_as_itself(text: str) -> None:
    shown = " ".join(text.split())
    assert rendered_text(escape(text)) == [shown]
    assert [cell for cell in rendered_text(f"| a |\n| --- |\n| {escape(text)} |") if cell != "a"] == [shown]


def test_a_document_with_hostile_names_has_only_its_own_structure() -> None:
    plain = build_from(recovery(-3, 87))
    timeline = [
        entry("finding", -2, HOSTILE),
        entry("comment", 1, f"<b>eve</b>: {HOSTILE}\n# x\n- y", actor="<b>eve</b>"),
    ]
    hostile = build_from(
        recovery(-3, 87, job="demo"), title=HOSTILE, summary=HOSTILE, assignee=HOSTILE, timeline=timeline
    )
    for found in (plain, hostile):
        tokens = RENDERER.parse(to_markdown(found, URL))
        headings = [tokens[at + 1].content for at, token in enumerate(tokens) if token.type == "heading_open"]
        assert headings[1:] == ["Summary", "Impact", "Timeline", "Evidence", "Decisions", "Cost", "Comments",
                                "Follow-up actions"]  # fmt: skip
        assert not any(token.type in {"html_block", "bullet_list_open", "fence", "code_block"} for token in tokens)
        children = [child for token in tokens for child in token.children or ()]
        assert [child.attrGet("href") for child in children if child.type == "link_open"] == [URL]
        assert not any(child.type in {"html_inline", "image", "code_inline"} for child in children)


def test_the_markdown_of_a_whole_incident() -> None:
    text = to_markdown(build_from(recovery(-3, 87)), URL)
    for line in (
        "# Post-mortem: XID 79",
        "| Cause | faulty gpu |",
        "| GPU | 3 |",
        "| Serial number | S-1 |",
        "| Opened | 2027-01-15T08:00:00.000Z |",
        "| Acknowledged | not acknowledged |",
        "| Time to recover | 1 min 30 s |",
        "| demo training | 8 | 1 min 30 s | 0.2 | 2 |",
        "| 2027-01-15T07:59:58.000Z | finding | XID 79 on GPU 3 |",
        "No recovery plan was made.",
        "| demo | peer copy | verified | decision | 4 s | 1 min 28 s | unknown |",
        "> replaced  \n> it  ",
        "| Action | Owner | Due |",
    ):
        assert line in text, line
    assert "95% | xid | XID 79 on GPU 3 (code: 79, slowdown: 0.25) |" in text
    assert text.endswith("|  |  |  |\n")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.0123, "0.0123 s"), (59.4, "59.4 s"), (60, "1 min"), (200, "3 min 20 s"), (7500, "2 h 5 min"),
     (90_000, "1 d 1 h"), (86_400, "1 d")],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
