"""Findings from hardware events that a node or another monitor reports: each event ends in a finding or a reason.

One finding a kind and device: several facts of one kind (two samplers, five checks of a foreign monitor) are held side
by side and the heaviest speaks. What ends each: an event that ends it (``cleared``, a healthy report); a new boot for
what does not outlive one; for what happens once, a time of quiet (``advance_clock``).

Not here: XID and SXID (``mainstay.detectors.gpu.xid``), ports (``mainstay.detectors.network.link_state``). NODE_STARTED
and NODE_STOPPING are no findings, they only tell what others mean. Of NVML's notices two speak; the others come as XIDs
as well (double bit 48, retirement 63, 64, 156 and 157, poison 94 and 95, recovery action 154) and two findings of one
trouble would end one another.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Final

from mainstay.detectors.base import EventDetector
from mainstay.detectors.correlation.hardware_event_rules import (
    KINDS,
    NOTICES,
    SILENT,
    EventRule,
    foreign,
    kernel_fault,
    lost,
    quiet_seconds,
    single_line,
)
from mainstay.detectors.event_data import boot_time, number, text
from mainstay.detectors.finding import Entity, Evidence, Finding, FindingKind
from mainstay.probes.core_types import Event, EventKind, RecommendedAction, Severity
from mainstay.probes.recent import Recent

_K: Final = FindingKind
_NUMBERS: Final = {"seconds": "seconds", "uptime": "uptime_seconds", "count": "count"}


@dataclass(slots=True)
class _Held:
    said: EventRule
    finding: Finding
    grace_until: float = 0.0
    """Information until then: its node was booting or being stopped."""


@dataclass(slots=True)
class _Node:
    stopping: float | None = None
    boot: float | None = None
    boot_id: str | None = None


@dataclass(slots=True)
class _Place:
    held: dict[str, _Held] = field(default_factory=dict)
    """What it is about (sampler, check, fault) → what holds."""
    told: Finding | None = None


class HardwareEventDetector(EventDetector):
    """Turns what nodes and foreign monitors report into findings by tables."""

    name = "hardware_events"
    kinds = KINDS
    reads = frozenset(
        {EventKind.GPU_LOST, EventKind.PROBE_UNRESPONSIVE, EventKind.GPU_EVENT, EventKind.KERNEL_FAULT}
        | {EventKind.HEALTH_REPORT, EventKind.NODE_STARTED, EventKind.NODE_STOPPING}
    )

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config:
        remembered: int = 4096
        """Event ids, nodes and findings kept: retries of a spool come within minutes, thousands of facts do not."""
        checks: int = 64
        """Facts of one kind held for one device: a foreign monitor has a few dozen checks."""
        boot_grace_seconds: float = 300.0
        """Foreign monitors call a node sick whose links and services still start: 1-4 min."""
        stopping_seconds: float = 900.0
        """How long an announced stop explains a report: an orderly shutdown takes minutes."""

    config: Config

    def reset(self) -> None:
        super().reset()
        self._places: Recent[str, _Place] = Recent(self.config.remembered)
        self._nodes: Recent[str, _Node] = Recent(self.config.remembered)

    def _handle(self, event: Event) -> list[Finding]:
        handlers = {
            EventKind.GPU_LOST: self._lost,
            EventKind.PROBE_UNRESPONSIVE: self._silent,
            EventKind.GPU_EVENT: self._notice,
            EventKind.KERNEL_FAULT: self._fault,
            EventKind.HEALTH_REPORT: self._report,
        }
        if not (event.node or event.device):
            return []
        return handlers.get(event.kind, self._node_event)(event)

    def advance_clock(self, now: float) -> list[Finding]:
        """See ``EventDetector.advance_clock``."""
        found: list[Finding] = []
        for key, place in list(self._places.items()):
            for item, held in list(place.held.items()):
                quiet = held.said.quiet_seconds
                if quiet is not None and now - held.finding.time >= quiet:
                    del place.held[item]
            found += self._speak(key, now, "It stayed quiet.")
        return found

    def restore_findings(self, findings: Iterable[Finding]) -> None:
        """See ``EventDetector.adopt``."""
        for finding in findings:
            if finding.detector == self.name and finding.active and finding.about not in self._places:
                said = EventRule(
                    kind=finding.kind,
                    severity=finding.severity,
                    recommended_action=finding.recommended_action,
                    text=finding.evidence.summary,
                    cause=finding.cause,
                    quiet_seconds=quiet_seconds(finding.kind),
                )
                held = _Held(said, finding)
                self._places[finding.about] = _Place({"": held}, finding)

    # events

    def _lost(self, event: Event) -> list[Finding]:
        return self._take(event, "", lost(single_line(event.data.get("reason"))))

    def _silent(self, event: Event) -> list[Finding]:
        data, reason = event.data, single_line(event.data.get("reason"))
        said = replace(SILENT, text=SILENT.text + (f": {reason}" if reason else ""))
        return self._take(event, f"{data.get('sampler', '')}/{data.get('lane', '')}", said)

    def _notice(self, event: Event) -> list[Finding]:
        said = NOTICES.get(str(event.data.get("what")))
        return [] if said is None else self._take(event, "", said)

    def _fault(self, event: Event) -> list[Finding]:
        name = str(event.data.get("fault", ""))[:40]
        said = kernel_fault(event, name)
        if event.data.get("severity") == Severity.INFO:
            said = replace(
                said,
                severity=Severity.INFO,
                recommended_action=min(said.recommended_action, RecommendedAction.MONITOR, key=attrgetter("level")),
            )
        told = single_line(event.data.get("text"))
        return self._take(event, name, replace(said, text=said.text + (f": {told}" if told else "")))

    def _report(self, event: Event) -> list[Finding]:
        data = event.data
        item = f"{data.get('source', '')}/{data.get('check', '')}"[:200]
        return self._take(event, item, foreign(data), over=data.get("healthy") is True)

    def _node_event(self, event: Event) -> list[Finding]:
        if event.node is None:
            return []
        node = self._node(event.node)
        if event.kind is EventKind.NODE_STOPPING:
            node.stopping = event.time
            return []
        node.stopping = None
        booted = boot_time(event, node.boot_id)
        node.boot_id = text(event.data.get("boot_id")) or node.boot_id
        if booted is None:
            return []
        node.boot = booted
        found: list[Finding] = []
        for key, place in list(self._places.items()):
            if place.told is None or place.told.entity.node != event.node:
                continue
            for item, held in list(place.held.items()):
                if held.finding.time < booted:
                    del place.held[item]
            found += self._speak(key, event.time, "The node rebooted.", event)
        return found

    # findings

    def _take(self, event: Event, item: str, said: EventRule, *, over: bool = False) -> list[Finding]:
        entity = Entity(node=event.node, device=event.device)
        key = f"{said.kind}:{entity.key}"
        place = self._places.get(key, _Place())
        if over or event.data.get("cleared") is True:
            place.held.pop(item, None)
            place.held.pop("", None)  # what was taken over after a restart
            return self._speak(key, event.time, "It is over.", event) if place.told is not None else []
        evidence = Evidence(summary=f"{_who(event)}: {said.text}.", numbers=_numbers(event.data))
        finding = self._finding(
            said.kind, entity, event.time, evidence, severity=said.severity,
            confidence=1.0 if said.severity is Severity.CRITICAL else 0.9,
            recommended_action=said.recommended_action, cause=said.cause, event=event.id,
        )  # fmt: skip
        if len(place.held) < self.config.checks or item in place.held:
            place.held[item] = _Held(said, finding, self._grace(event) if said.kind is _K.HEALTH_REPORT else 0.0)
        self._places[key] = place
        return self._speak(key, event.time, "It is over.", event)

    def _speak(self, key: str, now: float, why: str, event: Event | None = None) -> list[Finding]:
        """The heaviest of what holds for a place, if that is news."""
        place = self._places[key]
        told = place.told
        if not place.held:
            del self._places[key]
            return [] if told is None else [told.ended(now, why, event.id if event else None)]
        heaviest = max((_now(held, now) for held in place.held.values()), key=_weight)
        if told is not None and (told.event, told.severity) == (heaviest.event, heaviest.severity):
            return []
        place.told = heaviest
        return [heaviest]

    def _grace(self, event: Event) -> float:
        """Until when a foreign report is only information: its node boots, or is being stopped."""
        node, uptime = self._node(event.node or ""), number(event.data.get("uptime"))
        if uptime is None and node.boot is not None:
            uptime = event.time - node.boot
        if uptime is not None and 0 <= uptime < self.config.boot_grace_seconds:
            return event.time - uptime + self.config.boot_grace_seconds
        if node.stopping is not None and 0 <= event.time - node.stopping < self.config.stopping_seconds:
            return node.stopping + self.config.stopping_seconds
        return 0.0

    def _node(self, name: str) -> _Node:
        node = self._nodes.get(name) or _Node()
        self._nodes[name] = node
        return node


def _now(held: _Held, now: float) -> Finding:
    """The finding as it counts now: within its grace it is information."""
    if now >= held.grace_until or held.finding.severity is Severity.INFO:
        return held.finding
    recommended_action = (
        RecommendedAction.MONITOR if held.finding.recommended_action.evicts else held.finding.recommended_action
    )
    return replace(held.finding, severity=Severity.INFO, recommended_action=recommended_action)


def _weight(finding: Finding) -> tuple[int, int, float]:
    return (finding.severity.level, finding.recommended_action.level, finding.time)


def _who(event: Event) -> str:
    return " on ".join(part for part in (event.device, event.node) if part)


def _numbers(data: dict[str, Any]) -> dict[str, float]:
    told = {name: number(data.get(key)) for key, name in _NUMBERS.items()}
    return {name: value for name, value in told.items() if value is not None}
