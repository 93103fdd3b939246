"""The last line of a replay: how many findings, and what of it is kept where."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from mainstay.detectors.finding import Entity, Evidence, Finding, FindingKind
from mainstay.detectors.recording.cli import summary, table
from mainstay.probes.core_types import Severity

BEGUN = Finding(
    kind=FindingKind.POWER_BRAKE, entity=Entity(node="n1", device="gpu0"), time=1.0, severity=Severity.WARNING,
    detector="throttle", confidence=0.9, evidence=Evidence(summary="slowed"),
)  # fmt: skip
OTHER = replace(BEGUN, entity=Entity(node="n2", device="gpu0"), severity=Severity.CRITICAL)
ENDED = replace(BEGUN, active=False, time=2.0)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ([], "No findings. --output FILE keeps them."),
        ([BEGUN], "1 findings (1 warning); 1 are still active at the end. --output FILE keeps them."),
        ([BEGUN, ENDED], "1 findings (1 warning). --output FILE keeps them."),
        (
            [BEGUN, OTHER, ENDED],
            "2 findings (1 warning, 1 critical); 1 are still active at the end. --output FILE keeps them.",
        ),
    ],
)
def test_the_summary_counts_what_began_and_what_still_holds(found: list[Finding], text: str) -> None:
    assert summary(found, None).plain.strip() == text


def test_the_summary_names_the_file_and_how_many_are_shown() -> None:
    many = [replace(BEGUN, entity=Entity(node=f"n{k}")) for k in range(201)]
    told = summary(many, Path("out.json")).plain.strip()
    assert told == (
        "201 findings (201 warning); 201 are still active at the end; the first 200 are shown. All are in out.json."
    )
    assert "shown" not in summary(many[:200], None).plain


def test_the_table_shows_what_began_in_seconds_since_the_start() -> None:
    advice = replace(OTHER, kind=FindingKind.GC_JITTER, severity=Severity.INFO, time=12.34)
    shown = Console(width=120)
    with shown.capture() as captured:
        shown.print(table([BEGUN, ENDED, replace(OTHER, time=3.26), advice], 0.5))
    rows = [line.split() for line in captured.get().splitlines()]
    assert rows[:3] == [
        ["after", "severity", "kind", "who", "what"],
        ["0.5", "s", "warning", "power_brake", BEGUN.entity.key, "slowed"],
        ["2.8", "s", "critical", "power_brake", OTHER.entity.key, "slowed"],
    ]
    assert rows[3] == ["11.8", "s", "advice", "gc_jitter", OTHER.entity.key, "slowed"]
    assert len(rows) == 4
    assert table([BEGUN] * 201, 0.0).row_count == 200
