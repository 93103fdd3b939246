"""Memory in which snapshots change by themselves: once is an accident, again and again is evidence."""

from __future__ import annotations

from typing import Any

import pytest

from mainstay.detectors.finding import FindingKind
from mainstay.detectors.host.memory_bit_flips import MemoryBitFlipDetector
from mainstay.probes.core_types import Event, EventKind, Severity

START = 1_700_000_000.0
DAY = 86_400.0


def damage(at: float, node: str | None = "n1", name: str = "", **data: Any) -> Event:
    told = {"found": 1, "flipped": 1, "repaired": 1, "lost": 0, "drills": 0, "what": "rank 0 epoch 7 was damaged"}
    told |= data
    return Event(id=name or f"{node}-{at}", time=START + at, kind=EventKind.SNAPSHOT_CORRUPTED, node=node, data=told)


def example(seed: int) -> list[Event]:
    nodes = ("n1", "n2", "n1", "n3", "n1", "n2", "n1")
    return [damage(7200.0 * k + seed, node, f"{seed}-{k}") for k, node in enumerate(nodes)]


def test_once_is_no_evidence_whatever_its_size() -> None:
    detector = MemoryBitFlipDetector()
    burst = [damage(10.0 * k, flipped=40) for k in range(20)]  # one stray write, found pass by pass
    assert detector.update(burst) == []


def test_again_and_again_is() -> None:
    detector = MemoryBitFlipDetector()
    assert detector.update([damage(0.0)]) == []
    (second,) = detector.update([damage(3600.0, flipped=2, lost=1)])
    assert (second.kind, second.entity.node, second.severity) == (FindingKind.MEMORY_BIT_FLIPS, "n1", Severity.WARNING)
    assert second.evidence.summary == (
        "Memory of n1 had bit flips at 2 times within 1.0 h, in 3 places; the newest: rank 0 epoch 7 was damaged."
    )
    assert second.evidence.numbers == {"occasions": 2.0, "damages": 3.0, "lost": 1.0, "hours": 1.0}
    assert detector.update([damage(3700.0)]) == [], "the same occasion"
    (third,) = detector.update([damage(5 * DAY)])
    assert third.key == second.key
    assert third.confidence > second.confidence


@pytest.mark.parametrize(
    "event",
    [
        damage(3600.0, flipped=0, drills=1),  # parity that was wrong from the start
        damage(3600.0, "n2"),
        damage(3600.0, None),
        damage(3600.0, flipped=True),
        damage(3600.0, flipped="3"),
        damage(3600.0, flipped=-3),
        damage(8 * DAY),
        damage(0.0),  # told twice
    ],
)
def test_what_says_nothing_of_this_memory_or_nothing_new(event: Event) -> None:
    detector = MemoryBitFlipDetector()
    detector.update([damage(0.0)])
    assert detector.update([event]) == []


def test_news_that_come_late_are_set_in_order() -> None:
    detector = MemoryBitFlipDetector()
    detector.update([damage(7200.0)])
    (found,) = detector.update([damage(0.0)])
    assert (found.time, found.evidence.numbers["hours"]) == (START + 7200.0, 2.0)


def test_it_ends_after_a_quiet_week() -> None:
    detector = MemoryBitFlipDetector()
    detector.update([damage(0.0), damage(3600.0)])
    assert detector.advance_clock(START + 6.9 * DAY) == []
    (over,) = detector.advance_clock(START + 3600.0 + 7 * DAY)
    assert (over.active, over.entity.node) == (False, "n1")
    assert detector.advance_clock(START + 99 * DAY) == []
    assert detector.update([damage(100 * DAY)]) == [], "the count restarts"


def test_what_holds_is_known_after_a_restart() -> None:
    before = MemoryBitFlipDetector()
    (found,) = before.update([damage(0.0), damage(3600.0)])
    after = MemoryBitFlipDetector()
    after.restore_findings([found])
    (again,) = after.update([damage(DAY)])
    assert again.key == found.key
    (over,) = after.advance_clock(START + 9 * DAY)
    assert not over.active
