"""Bursts of events: the first pass at once; one event reports the count of the rest. No event is dropped.

One job's clean-up can make eleven thousand XID 45 on a node, and a loose cable ten events a second; what they mean was
said by the first. ``EventRateLimiter`` counts what follows, ``DuplicateXidFilter`` says once what two sources saw: an
XID comes from NVML within milliseconds and from the kernel log with the details.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from mainstay.probes.core_types import Event, EventKind
from mainstay.probes.ids import uuid7
from mainstay.probes.samplers.base import SourceEvent

_BURST: Final = 3
"""Said at once: repeat rules that count to two or three see each of them."""
_TOGETHER_S: Final = 10.0
_CALM_S: Final = 60.0
"""After so long without one, the next is news again."""
_FLOWS: Final = 4096
"""Kinds of events told apart; eight GPUs with every GPC and TPC stay far below."""
_APART: Final = (
    "code", "fault", "what", "cleared", "link", "unit", "gpc", "tpc", "pci", "sampler", "channel", "recovery",
)  # fmt: skip
"""What makes two events different things and not the same thing twice."""
_ECHO_S: Final = 5.0
"""The two reports of one XID are this close."""
HOLD_S: Final = 0.3
"""How long a bare XID of NVML waits for the kernel's line: that is there within milliseconds unless a log floods."""

Key = tuple[object, ...]


@dataclass(slots=True)
class _Flow:
    """Events of one key: how many went through, and what is held back."""

    seen_at: float
    said_at: float = -math.inf
    through: int = 0
    held: Event | None = None
    count: int = 0
    first: float = 0.0
    due: float = 0.0
    flaps: int = 0
    """How often a link went down, where one event reports several."""


class EventRateLimiter:
    """Lets through, holds back, and says together. Times ``now`` are monotonic seconds; used from one thread."""

    def __init__(self, new_id: Callable[[], str] = uuid7) -> None:
        self._new_id = new_id
        self._flows: OrderedDict[Key, _Flow] = OrderedDict()

    def admit(self, event: Event, now: float) -> list[Event]:
        """What is to be sent for this event now: itself, or nothing, or what it pushed out."""
        key = (event.kind, event.device, *(event.data.get(name) for name in _APART))
        flow = self._flows.get(key)
        if flow is None or (now - flow.seen_at > _CALM_S and flow.held is None):
            flow = self._flows[key] = _Flow(now)
        self._flows.move_to_end(key)
        flow.seen_at = now
        if flow.through < _BURST or (flow.held is None and now - flow.said_at >= _TOGETHER_S):
            flow.through, flow.said_at = flow.through + 1, now
            return [event]
        if flow.held is None:
            flow.count, flow.flaps, flow.first, flow.due = 0, 0, event.time, flow.said_at + _TOGETHER_S
        flow.held = event
        flow.count += 1
        flow.flaps += _flaps(event)
        return self._make_room()

    def due(self, now: float) -> list[Event]:
        """What was held back long enough, in order of the last of each; a state that changed ends in its last state."""
        ready = [flow for flow in self._flows.values() if flow.held is not None and flow.due <= now]
        for flow in ready:
            flow.said_at = now
        return sorted((event for flow in ready for event in self._together(flow)), key=lambda event: event.time)

    def next_due(self) -> float | None:
        """When ``due`` will have something."""
        return min((flow.due for flow in self._flows.values() if flow.held is not None), default=None)

    def _together(self, flow: _Flow) -> list[Event]:
        event, flow.held = flow.held, None
        if event is None:
            return []
        data = event.data | {"count": flow.count, "first": flow.first, "last": event.time}
        if event.kind is EventKind.LINK_DOWN:
            data["flaps"] = flow.flaps
        return [replace(event, id=self._new_id(), data=data)]

    def _make_room(self) -> list[Event]:
        pushed: list[Event] = []
        while len(self._flows) > _FLOWS:
            pushed += self._together(self._flows.popitem(last=False)[1])
        return pushed


def _flaps(event: Event) -> int:
    told = event.data.get("flaps")
    return told if isinstance(told, int) and told > 0 else 1


class DuplicateXidFilter:
    """XIDs that two sources report: one event with the better text. Used from one thread.

    Times are as in ``EventRateLimiter``. ``hold`` is how long a report of NVML waits for the kernel's, in seconds; 0
    where no kernel log can be read.
    """

    def __init__(self, hold: float) -> None:
        self.hold = hold
        self._waiting: list[tuple[float, Key, SourceEvent]] = []
        self._alone: dict[tuple[str, Key], list[float]] = {}

    def admit(self, happened: SourceEvent, now: float) -> list[SourceEvent]:
        """What is to be said now."""
        if happened.kind is EventKind.KERNEL_FAULT and happened.data.get("fault") == "oom":
            return self._oom(happened, now)
        if happened.kind is not EventKind.XID:
            return [happened]
        key = (happened.device, happened.data.get("code"))
        if happened.data.get("source") == "kernel":
            return self._from_kernel(happened, key, now)
        if self._other("kernel", key, now):
            return []
        self._waiting.append((now + self.hold, key, happened))
        return self.due(now)

    def due(self, now: float) -> list[SourceEvent]:
        """Reports whose duplicate from the other source did not come."""
        ready = [entry for entry in self._waiting if entry[0] <= now]
        self._waiting = [entry for entry in self._waiting if entry[0] > now]
        for _, key, _ in ready:
            self._remember("nvml", key, now)
        return [happened for _, _, happened in ready]

    def next_due(self) -> float | None:
        """When ``due`` will have something."""
        return min((at for at, _, _ in self._waiting), default=None)

    def _from_kernel(self, happened: SourceEvent, key: Key, now: float) -> list[SourceEvent]:
        for k, (_, waiting, _) in enumerate(self._waiting):
            if waiting == key:
                del self._waiting[k]
                return [happened]
        if self._other("nvml", key, now):  # said already, without the details
            return [SourceEvent(kind=happened.kind, t=happened.t, device=happened.device,
                             data=happened.data | {"duplicate": True})]  # fmt: skip
        self._remember("kernel", key, now)
        return [happened]

    def _oom(self, happened: SourceEvent, now: float) -> list[SourceEvent]:
        """The kernel writes two lines for each process that it kills."""
        key = ("oom", happened.data.get("fields", {}).get("pid"))
        if self._other("kernel", key, now):
            return []
        self._remember("kernel", key, now)
        return [happened]

    def _remember(self, source: str, key: Key, now: float) -> None:
        if len(self._alone) > _FLOWS:
            self._alone = {k: times for k, times in self._alone.items() if times[-1] > now - _ECHO_S}
        self._alone.setdefault((source, key), []).append(now)

    def _other(self, source: str, key: Key, now: float) -> bool:
        """Return whether ``source`` reported the same a moment ago without a match; the match is made now."""
        times = [at for at in self._alone.pop((source, key), []) if at > now - _ECHO_S]
        if times[1:]:
            self._alone[source, key] = times[1:]
        return bool(times)
