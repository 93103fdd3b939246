"""Memory of the XID detector: who is forgotten, what several devices met at once, and which start is a boot."""

from __future__ import annotations

from typing import Any

from mainstay.detectors.gpu.xid import XidDetector
from mainstay.detectors.policy.device_history import Burst, DeviceHistory
from mainstay.detectors.policy.model import Family
from mainstay.probes.core_types import Event, EventKind

T = 1_000_000.0


def xid(code: int, at: float, device: str, node: str = "n", **data: Any) -> Event:
    return Event(
        id=f"{code}-{at}-{device}-{node}", time=T + at, kind=EventKind.XID, node=node, device=device,
        data={"code": code, "uptime": 86_400.0, **data},
    )  # fmt: skip


def test_whoever_is_forgotten_is_no_longer_watched() -> None:
    detector = XidDetector(XidDetector.Config(remembered=2))
    found = detector.update([xid(79, 0.0, "a"), xid(79, 1000.0, "b")])
    assert [one.active for one in found] == [True, True]
    detector.update([xid(79, 2000.0, "a")])
    gone, new = sorted(detector.update([xid(79, 3000.0, "c")]), key=lambda one: one.active)
    assert (gone.entity.device, gone.active, new.entity.device) == ("b", False, "c"), "a was heard of later"
    assert gone.evidence.summary == "It is no longer watched: too many others are."
    assert sorted(place.device or "" for place in detector._histories) == ["a", "c"]


def test_only_bursts_of_that_code_and_moment_were_met_by_many() -> None:
    detector = XidDetector()
    event = xid(31, 0.0, "a")
    detector.update([event])
    (place,) = detector._histories

    def burst(code: int, last: float, *, many: bool = False) -> Burst:
        return Burst(family=Family.XID, code=code, first=last, last=last, event="", many=many)

    bursts = [burst(31, 0.0), burst(31, 60.0), burst(31, 60.1), burst(13, 0.0), burst(31, 0.0, many=True)]
    detector._histories[place] = DeviceHistory(bursts=bursts)
    assert detector._mark_many(place, 31, 0.0)
    assert [one.many for one in bursts] == [True, True, False, False, True]
    assert not detector._mark_many(place, 31, 0.0), "they are marked already"
    assert not detector._mark_many(place, 48, 0.0)
