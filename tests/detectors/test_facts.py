"""Hardware events are said aloud, and taken back when they are over."""

from __future__ import annotations

from dataclasses import replace

from detectors.facts import FactsDetector
from detectors.finding import FindingKind
from probes.words import Event, EventKind


def example(seed: int) -> list[Event]:
    return [
        Event(id=f"x{seed}", time=1.0, kind=EventKind.XID, node="a", device="GPU-1", data={"code": 79}),
        Event(id=f"l{seed}", time=2.0, kind=EventKind.LINK_DOWN, node="a", data={"link": "mlx5_0"}),
        Event(id=f"p{seed}", time=3.0, kind=EventKind.PROBE_SILENT, node="b"),
        Event(id=f"q{seed}", time=4.0, kind=EventKind.PROBE_SILENT, node="b", data={"cleared": True}),
    ]


def later(events: list[Event], lap: int) -> list[Event]:
    return [replace(e, id=f"{e.id}-{lap}") for e in events]


def test_each_event_becomes_its_finding() -> None:
    found = FactsDetector().update(example(0))
    assert [(f.kind, f.active) for f in found] == [
        (FindingKind.XID, True),
        (FindingKind.NIC_DEGRADED, True),
        (FindingKind.PROBE_SILENT, True),
        (FindingKind.PROBE_SILENT, False),
    ]
    assert found[0].evidence.summary == "The driver reported XID 79 on a GPU-1."
    assert found[0].evidence.numbers == {"code": 79.0}


def test_retries_and_events_about_nobody_say_nothing() -> None:
    detector = FactsDetector()
    detector.update(example(0))
    assert detector.update(example(0)) == []
    assert detector.update([Event(id="n", time=1.0, kind=EventKind.XID)]) == []
