"""The named stories of ``tests/scenarios/health`` as figures: false alarms, and how soon faults are found."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.report import Row
from tests.scenarios.health.faults import FAULTS, Fault
from tests.scenarios.health.quiet import QUIET, Quiet
from tests.scenarios.health.stage import stage


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """What came of one story."""

    name: str
    drains: int
    incidents: int
    allowed: int
    seconds: float | None = None
    """From the fault to its finding, by the clock of the control plane."""
    within: float = 0.0


def quiet(story: Quiet) -> ScenarioResult:
    with tempfile.TemporaryDirectory() as directory, stage(Path(directory), **story.stage) as played:
        story.play(played)
        return ScenarioResult(story.name, len(played.drains()), len(played.incidents()), story.incidents)


def fault(story: Fault) -> ScenarioResult:
    with tempfile.TemporaryDirectory() as directory, stage(Path(directory), **story.stage) as played:
        onset = story.play(played)
        before = {row.id for row in played.findings()}
        took = played.until(
            lambda: any(f.kind in story.kinds and f.id not in before for f in played.findings()), onset.seconds
        )
        played.run(max(0, onset.seconds - int(took or onset.seconds)))
        return ScenarioResult(
            story.name, len(played.drains()), len(played.incidents()), story.incidents, took, story.within
        )


def rows() -> list[Row]:
    """Play everything."""
    calm, faults = [quiet(story) for story in QUIET], [fault(story) for story in FAULTS]
    wolves = sum(heard.drains for heard in calm)
    shown = [heard for heard in calm if heard.incidents > heard.allowed]
    late = [heard for heard in faults if heard.seconds is None or heard.seconds > heard.within]
    times = ", ".join(f"{h.name} {'never' if h.seconds is None else f'{h.seconds:.0f} s'}" for h in faults)
    merged = [heard for heard in faults if heard.incidents != heard.allowed]
    return [
        Row(
            claim="Named false alarms: drains proposed",
            figure=wolves, unit="drains", target="0", holds=wolves == 0, kind="replayed", n=len(calm),
            note="stories: " + ", ".join(heard.name for heard in calm),
        ),
        Row(
            claim="Named false alarms: scenarios that show an operator more than they should",
            figure=len(shown), unit="stories", target="0", holds=not shown, kind="replayed", n=len(calm),
            note=", ".join(f"{h.name}: {h.incidents} incidents" for h in shown),
        ),
        Row(
            claim="Named faults found within their time",
            figure=len(faults) - len(late), unit=f"of {len(faults)}", target="all", holds=not late, kind="replayed",
            n=len(faults), note=times,
        ),
        Row(
            claim="Named faults that gave one incident each",
            figure=len(faults) - len(merged), unit=f"of {len(faults)}", target="all", holds=not merged,
            kind="replayed", n=len(faults), note=", ".join(f"{h.name}: {h.incidents} incidents" for h in merged),
        ),
    ]  # fmt: skip
