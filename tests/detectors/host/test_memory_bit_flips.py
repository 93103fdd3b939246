"""Memory in which snapshots change by themselves: once is an accident, again and again is evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mainstay.detectors.finding import Entity, FindingKind
from mainstay.detectors.host.memory_bit_flips import MemoryBitFlipDetector
from mainstay.probes.core_types import Event, EventKind, Severity

CORRUPTED = EventKind.SNAPSHOT_CORRUPTED
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


def numbers_of(events: list[Event]) -> list[tuple[float, ...]]:
    """Of each finding: occasions, damages, lost, confidence."""
    found = MemoryBitFlipDetector().update(events)
    return [(*(f.evidence.numbers[name] for name in ("occasions", "damages", "lost")), f.confidence) for f in found]


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        ((0.0, 299.0), []),  # one occasion lasts five minutes from its last damage
        ((0.0, 300.0), [(2, 2, 0, 0.8)]),
        ((0.0, 299.0, 598.0), []),
        ((0.0, 299.0, 599.0), [(2, 3, 0, 0.8)]),
        ((1000.0, 701.0, 401.0), [(2, 3, 0, 0.8)]),  # news from before it makes it start earlier
        ((1000.0, 701.0, 402.0), []),
        ((0.0, 400.0, 800.0), [(2, 2, 0, 0.8), (3, 3, 0, 0.95)]),
        ((0.0, 7 * DAY), []),
        ((0.0, 7 * DAY - 1), [(2, 2, 0, 0.8)]),
    ],
)
def test_what_is_an_occasion_and_how_many_are_sure(at: tuple[float, ...], expected: list[tuple[float, ...]]) -> None:
    assert numbers_of([damage(second) for second in at]) == expected


def test_the_newest_64_occasions_are_kept_and_160_characters_of_the_text() -> None:
    events = [damage(600.0 * k, flipped=2, lost=k, what="x" * 200) for k in range(70)]
    found = MemoryBitFlipDetector().update(events)
    assert [f.evidence.numbers["occasions"] for f in found] == [*map(float, range(2, 65)), *[64.0] * 6]
    assert found[-1].evidence.numbers == {
        "occasions": 64.0, "damages": 128.0, "lost": float(sum(range(6, 70))), "hours": 63 / 6,
    }  # fmt: skip
    assert found[-1].evidence.summary.endswith(f"in 128 places; the newest: {'x' * 160}.")


@pytest.mark.parametrize(("hours", "words"), [(47.9, "within 47.9 h"), (48.0, "within 2.0 days"), (60, "2.5 days")])
def test_long_times_are_told_in_days(hours: float, words: str) -> None:
    (found,) = MemoryBitFlipDetector().update([damage(0.0), damage(hours * 3600.0)])
    assert words in found.evidence.summary


def test_the_week_without_damage_counts_from_the_newest_and_is_told_in_days() -> None:
    detector = MemoryBitFlipDetector(MemoryBitFlipDetector.Config(window_seconds=3.5 * DAY))
    detector.update([damage(0.0), damage(3600.0), damage(7200.0)])
    assert detector.advance_clock(START + 7199.0 + 3.5 * DAY) == []
    (over,) = detector.advance_clock(START + 7200.0 + 3.5 * DAY)
    assert over.evidence.summary == "No memory of n1 was found changed for 3.5 days."


def test_of_stored_findings_only_its_own_that_hold_of_a_node_are_taken_back() -> None:
    (found,) = MemoryBitFlipDetector().update([damage(0.0), damage(3600.0)])
    others = [replace(found, detector=name) for name in ("a", "z")]
    no_node = replace(found, entity=Entity(job="j"))
    detector = MemoryBitFlipDetector()
    detector.restore_findings([*others, replace(found, active=False), no_node])
    assert detector.advance_clock(START + 99 * DAY) == []
    detector.restore_findings([found, replace(found, time=START + 5 * DAY)])
    (again,) = detector.update([damage(2 * 3600.0, lost=3)])
    assert again.evidence.numbers == {"occasions": 2.0, "damages": 2.0, "lost": 3.0, "hours": 1.0}


def test_events_of_other_kinds_say_nothing() -> None:
    events = [replace(damage(3600.0 * k), kind=kind) for k, kind in enumerate(EventKind) if kind is not CORRUPTED]
    assert MemoryBitFlipDetector().update(events) == []


def test_of_more_nodes_than_are_remembered_the_one_without_news_is_forgotten() -> None:
    detector = MemoryBitFlipDetector(MemoryBitFlipDetector.Config(remembered=2))
    detector.update([damage(float(k), node) for k, node in enumerate(("n1", "n2", "n1", "n3"))])
    assert [f.entity.node for f in detector.update([damage(3600.0, n) for n in ("n1", "n2", "n3")])] == ["n1"]
