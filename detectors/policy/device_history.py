"""What happened to one device so far, as much as rulings need: bursts of one code, and the times when it was repaired.

A fault prints many lines, and NVML and the kernel report it both: what comes within ``together_seconds`` is one burst.
Everything is bounded: bursts of a device, and what a burst remembers of each.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mainstay.detectors.event_data import number, whole_number
from mainstay.detectors.policy.model import Family, XidPolicy
from mainstay.probes.core_types import Event

KEPT_BURSTS: Final = 24
KEPT_MARKS: Final = 8
_KEPT_VALUES: Final = 8
_KEPT_TEXT: Final = 400
_REGISTERS: Final = re.compile(r"\(((?:0x[0-9a-f]+\s*,\s*)*0x[0-9a-f]+)\)", re.IGNORECASE)
_LINK: Final = re.compile(r"\blink\s*(\d{1,3})\b", re.IGNORECASE)
_PLACE: Final = re.compile(r"\bGPC\s*(\d{1,3})\W+TPC\s*(\d{1,3})\b", re.IGNORECASE)


@dataclass(slots=True)
class Burst:
    """Occurrences of one code that belong together."""

    family: Family
    code: int | None
    first: float
    last: float
    event: str
    """Id of the event that tells most."""
    counts: Counter[str] = field(default_factory=Counter)
    """Source → lines: two sources report the same lines."""
    jobs: set[str] = field(default_factory=set)
    processes: set[int] = field(default_factory=set)
    places: set[tuple[int, int]] = field(default_factory=set)
    links: set[int] = field(default_factory=set)
    text: str = ""
    fatal: bool | None = None
    uptime: float | None = None
    planned: bool = False
    """It fell into an orderly stop."""
    many: bool = False
    """Other GPUs had it at the same time."""
    closed: bool = False
    """A person said that it is over."""

    @property
    def count(self) -> int:
        return max(self.counts.values(), default=0)

    @property
    def message_text(self) -> str:
        """The line for comparing: without regard to case, and with the word that data gives instead of the text."""
        told = {None: "", True: " fatal", False: " nonfatal"}[self.fatal]
        return plain(self.text + told)

    @property
    def registers(self) -> tuple[int, ...]:
        """Numbers in the last parentheses that hold nothing but hexadecimal ones."""
        found = _REGISTERS.findall(self.text)
        return tuple(int(part, 16) for part in found[-1].split(",")[:16]) if found else ()

    def add_event(self, event: Event) -> None:
        """Add an event."""
        data = event.data
        lines = whole_number(data.get("count", data.get("repeats")))
        self.counts[str(data.get("source", ""))[:16]] += min(max(lines or 1, 1), 10**9)
        self.first, self.last = min(self.first, event.time), max(self.last, event.time)
        self._learn(event, data)

    def _learn(self, event: Event, data: dict[str, Any]) -> None:
        text = data.get("text")
        if isinstance(text, str) and len(text) > len(self.text) < _KEPT_TEXT:
            self.text, self.event = text[:_KEPT_TEXT], event.id
        if isinstance(data.get("fatal"), bool):
            self.fatal = bool(self.fatal) or data["fatal"]
        uptime = number(data.get("uptime"))
        if uptime is not None:
            self.uptime = uptime if self.uptime is None else min(self.uptime, uptime)
        line = text if isinstance(text, str) else ""
        _add(self.jobs, event.job)
        _add(self.processes, whole_number(data.get("pid")))
        _add(self.places, _place(data, line))
        _add(self.links, _link(data, line))


@dataclass(slots=True)
class DeviceHistory:
    """One device."""

    bursts: list[Burst] = field(default_factory=list)
    """In order of arrival."""
    resets: list[float] = field(default_factory=list)
    """When the GPU was reset without a reboot."""

    def record_event(
        self, event: Event, family: Family, code: int | None, policy: XidPolicy, boots: Sequence[float] = ()
    ) -> tuple[Burst, bool]:
        """The burst that the event belongs to, and whether it is a new one."""
        rule = policy.rule(family, code)
        # what follows from something else trickles in for as long as the cleaning up takes
        gap = policy.settings.together_seconds * (10 if rule.echo else 1)
        for burst in reversed(self.bursts):
            if (
                (burst.family, burst.code) == (family, code)
                and burst.first - gap <= event.time <= burst.last + gap
                and not any(burst.last < mark <= event.time for mark in (*boots, *self.resets))
                and not (rule.leads and _says_otherwise(burst, event))
            ):
                burst.add_event(event)
                return burst, False
        burst = Burst(family=family, code=code, first=event.time, last=event.time, event=event.id)
        burst.add_event(event)
        self.bursts.append(burst)
        if len(self.bursts) > KEPT_BURSTS:
            self._forget_one(policy)
        return burst, True

    def _forget_one(self, policy: XidPolicy) -> None:
        """The oldest of the mildest: what led to an action is needed to see that it did not help."""
        mildest = min(self.bursts[:-1], key=lambda b: (base_evicts(policy, b), b.last))
        self.bursts.remove(mildest)


def plain(text: str) -> str:
    """Text as words of a policy are compared with it."""
    return text.casefold().replace("non-fatal", "nonfatal")


def base_evicts(policy: XidPolicy, burst: Burst) -> bool:
    """Whether the code can take a node out of service at all."""
    worst = policy.rule(burst.family, burst.code).worst
    return worst is None or worst.recommended_action.evicts


def keep_mark(marks: list[float], time: float, *, apart: float = 30.0) -> bool:
    """Remember a reboot or reset; false when it is one that is known (clocks and uptimes differ by seconds)."""
    if any(abs(mark - time) < apart for mark in marks):
        return False
    marks.append(time)
    marks.sort()
    del marks[:-KEPT_MARKS]
    return True


def _says_otherwise(burst: Burst, event: Event) -> bool:
    """Whether two conclusions of the driver differ; one without text is that of the other source."""
    text = event.data.get("text")
    return isinstance(text, str) and bool(text) and bool(burst.text) and text[:_KEPT_TEXT] != burst.text


def _add(values: set[Any], value: Any) -> None:
    if value is not None and len(values) < _KEPT_VALUES:
        values.add(value)


def _place(data: dict[str, Any], text: str) -> tuple[int, int] | None:
    gpc, tpc = whole_number(data.get("gpc")), whole_number(data.get("tpc"))
    if gpc is not None and tpc is not None:
        return gpc, tpc
    found = _PLACE.search(text)
    return (int(found[1]), int(found[2])) if found else None


def _link(data: dict[str, Any], text: str) -> int | None:
    told = whole_number(data.get("link"))
    if told is not None:
        return told
    found = _LINK.search(text)
    return int(found[1]) if found else None
