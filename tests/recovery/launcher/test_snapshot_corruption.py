"""What agents find in snapshot memory: each damage an event, all of it counted, over restarts of agents."""

from __future__ import annotations

import time
from typing import Any

import pytest

from mainstay.probes.core_types import EventKind
from mainstay.recovery.agent.messages import Inventory, ScrubState, TransferRates
from mainstay.recovery.controller.monitors.snapshot_corruption import CorruptionStats


@pytest.fixture
def sent_events() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def damages(sent_events: list[dict[str, Any]]) -> CorruptionStats:
    return CorruptionStats(lambda kind, **what: sent_events.append({"kind": kind, **what}))


def state(**changes: Any) -> ScrubState:
    values: dict[str, Any] = {
        "passes": 3, "nbytes": 1000, "found": 0, "repaired": 0, "lost": 0, "drills": 1, "drills_failed": 0, "last": "",
        "flipped": 0,
    }  # fmt: skip
    return ScrubState(**{**values, **changes})


def inventory(node: str, scrub: ScrubState | None) -> Inventory:
    return Inventory(node=node, slots=(), parity=(), disk=(), rates=TransferRates(), degraded=(), scrub=scrub)


def note(damages: CorruptionStats, **scrubs: ScrubState | None) -> None:
    damages.note({node: inventory(node, scrub) for node, scrub in scrubs.items()})


def test_each_new_damage_is_an_event_of_its_node(damages: CorruptionStats, sent_events: list[dict[str, Any]]) -> None:
    note(damages, n1=state(), n2=None)
    assert sent_events == []
    for _ in range(2):
        note(damages, n1=state(found=2, flipped=2, repaired=1, lost=1, last="rank 0"), n2=state())
    note(damages, n1=state(found=3, flipped=2, repaired=1, lost=1, drills_failed=1, last="drill"), n2=state())
    assert sent_events == [
        {"kind": EventKind.SNAPSHOT_CORRUPTED, "node": "n1",
         "data": {"found": 2, "flipped": 2, "repaired": 1, "lost": 1, "drills": 0, "what": "rank 0"}},
        {"kind": EventKind.SNAPSHOT_CORRUPTED, "node": "n1",
         "data": {"found": 1, "flipped": 0, "repaired": 0, "lost": 0, "drills": 1, "what": "drill"}},
    ]  # fmt: skip


def test_an_agent_that_starts_again_counts_from_nothing(
    damages: CorruptionStats, sent_events: list[dict[str, Any]]
) -> None:
    note(damages, n1=state())
    note(damages, n1=state(passes=9, found=2, flipped=2, repaired=2, last="a"))
    note(damages, n1=state(passes=1, found=2, flipped=2, repaired=2, last="b"))  # as many, and others
    note(damages, n1=state(passes=2, found=3, flipped=3, repaired=2, lost=1, last="c"))
    assert [event["data"]["found"] for event in sent_events] == [2, 2, 1]
    report = damages.report()
    assert report is not None
    assert report["nodes"] == [{"node": "n1", "found": 5, "flipped": 5, "repaired": 4, "lost": 1, "last": "c"}]


def test_what_a_coordinator_finds_told_is_counted_and_not_told_again(
    damages: CorruptionStats, sent_events: list[dict[str, Any]]
) -> None:
    """One that succeeds another: the same damage at another time would be further evidence."""
    for _ in range(2):
        note(damages, n1=state(found=4, flipped=4, repaired=4, last="a"))
    assert sent_events == []
    assert damages.flipped(0.0) == {}
    report = damages.report()
    assert report is not None
    assert (report["found"], report["nodes"][0]["last"]) == (4, "a")
    note(damages, n1=state(found=5, flipped=5, repaired=5, last="b"))
    assert [event["data"]["flipped"] for event in sent_events] == [1]


def test_whose_memory_flips_and_since_when(damages: CorruptionStats) -> None:
    before = time.time()
    note(damages, n1=state(), n2=state())
    note(damages, n1=state(found=1, flipped=1, last="x"), n2=state(found=1, drills_failed=1, last="drill"))
    assert list(damages.flipped(before - 1.0)) == ["n1"]
    assert damages.flipped(time.time() + 1.0) == {}


def test_the_report_adds_up(damages: CorruptionStats) -> None:
    assert damages.report() is None, "no agent scrubs"
    note(damages, n1=state(passes=5, found=1, flipped=1, repaired=1, last="x"), n2=state(nbytes=5))
    assert damages.report() == {
        "passes": 3, "bytes": 1005, "drills": 2, "drills_failed": 0, "found": 1, "flipped": 1, "repaired": 1, "lost": 0,
        "nodes": [{"node": "n1", "found": 1, "flipped": 1, "repaired": 1, "lost": 0, "last": "x"}],
    }  # fmt: skip
