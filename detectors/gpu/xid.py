"""Error codes of the GPU and NVSwitch drivers, judged by the policy: one statement a device, about what weighs most.

- One device has one finding of kind ``xid`` (a switch one of kind ``sxid``), for any number of codes that it reports:
  the heaviest speaks. XID 45 and its like speak for their node, so that a clean-up of thousands is one finding.
- The same error told by NVML and by the kernel is one; the kernel's line, which says more, wins.
- A finding is repeated with the same key when something is news: a further occasion, a heavier code, a better text.
- It ends: information after an hour without a repeat, a suspicion after a day, what a reset repairs when the driver
  says that nothing is left to do (XID 154) or the GPU was reset, that and what a reboot repairs when the node boots.
  ``inspect`` and ``replace`` end by a person, who closes the incident; ``release`` tells the detector.
- Time passes with ``advance_clock``: events alone cannot tell how long it was quiet. What was reported before a restart
  and has left the memory is taken over by ``adopt``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from mainstay.detectors.base import EventDetector
from mainstay.detectors.event_data import boot_time, text, whole_number
from mainstay.detectors.finding import Entity, Evidence, Finding, FindingKind
from mainstay.detectors.job.exit_taxonomy import CAUSE_OF
from mainstay.detectors.policy.device_history import Burst, DeviceHistory, keep_mark
from mainstay.detectors.policy.explanation import explain
from mainstay.detectors.policy.load import builtin
from mainstay.detectors.policy.model import Family, XidPolicy
from mainstay.detectors.policy.rule_evaluation import BurstEvaluation, leading_burst, own
from mainstay.probes.core_types import Event, EventKind, RecommendedAction, Severity
from mainstay.probes.pci import canonical
from mainstay.probes.recent import Recent

_FAMILY: Final = {EventKind.XID: Family.XID, EventKind.SXID: Family.SXID}
_KIND: Final = {Family.XID: FindingKind.XID, Family.SXID: FindingKind.SXID}
_KEPT_ADDRESSES: Final = 32
_LOOK_SECONDS: Final = 60.0
"""How often the detector checks whether old statements have become quiet: hours are counted, not seconds."""


@dataclass(frozen=True, slots=True)
class XidTarget:
    """What has one finding."""

    family: Family
    node: str | None
    device: str | None


@dataclass(slots=True)
class _NodeState:
    boots: list[float] = field(default_factory=list)
    boot_id: str | None = None
    stopped: list[float] = field(default_factory=list)
    places: set[XidTarget] = field(default_factory=set)
    addresses: dict[str, str] = field(default_factory=dict)
    """PCI address → device."""


class XidDetector(EventDetector):
    """States what a driver's error codes mean for a device, and the recommended action."""

    name = "xid"
    kinds = frozenset(_KIND.values())
    reads = frozenset({*_FAMILY, EventKind.NODE_STARTED, EventKind.NODE_STOPPING, EventKind.GPU_EVENT})

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config:
        remembered: int = 16_384
        """Event ids, nodes and devices kept: more than a fleet of 10,000 GPUs has in trouble within days."""
        policy: XidPolicy = field(default_factory=builtin)

    config: Config

    def reset(self) -> None:
        super().reset()
        self._histories: OrderedDict[XidTarget, DeviceHistory] = OrderedDict()
        self._nodes: Recent[str, _NodeState] = Recent(self.config.remembered)
        self._said: dict[str, Finding] = {}
        self._places: dict[str, XidTarget] = {}
        self._adopted: dict[str, Finding] = {}
        self._elsewhere: Recent[tuple[str, str, int], dict[XidTarget, float]] = Recent(self.config.remembered)
        """(scope, family, code) → where it was met last: a fault of many GPUs at once is their program's."""
        self._looked_at = 0.0

    def _handle(self, event: Event) -> list[Finding]:
        if event.kind in _FAMILY:
            return self._take_code(event, _FAMILY[event.kind])
        return [] if event.node is None else self._take_context(event, event.node)

    # what the service reports in addition to events

    def advance_clock(self, now: float) -> list[Finding]:
        """See ``EventDetector.advance_clock``."""
        if 0 <= now - self._looked_at < _LOOK_SECONDS:
            return []
        self._looked_at = now
        found: list[Finding] = []
        for key in [key for key, finding in self._said.items() if self._is_quiet(finding, now)]:
            found += self._speak(self._places[key], now, "It stayed quiet.")
        for key in [key for key, finding in self._adopted.items() if self._is_quiet(finding, now)]:
            found.append(self._adopted.pop(key).ended(now, "It stayed quiet."))
        return found

    def follow(self, policy: XidPolicy, now: float) -> list[Finding]:
        """Judge by another policy from now on; the known events stay, and their new meaning becomes a finding."""
        self.config = replace(self.config, policy=policy)
        return [f for place in list(self._histories) for f in self._speak(place, now, "The policy changed.")]

    def restore_findings(self, findings: Iterable[Finding]) -> None:
        """See ``EventDetector.adopt``."""
        for finding in findings:
            if finding.detector == self.name and finding.active and finding.about not in self._said:
                self._adopted[finding.about] = finding

    def release(self, held: Collection[str], *, before: float) -> None:
        """Forget statements from before ``before`` that the store does not hold any more: an operator closed them."""
        for key in [k for k, f in self._said.items() if f.time < before and f.key not in held]:
            for burst in self._histories[self._places[key]].bursts:
                burst.closed = burst.closed or burst.last < before
            del self._said[key], self._places[key]
        for key in [k for k, f in self._adopted.items() if f.key not in held]:
            del self._adopted[key]

    # events

    def _take_code(self, event: Event, family: Family) -> list[Finding]:
        code = _code_of(event)
        rule = self.config.policy.rule(family, code)
        device = None if rule.echo and event.node else self._device_of(event)
        if event.node is None and device is None:
            return []  # no device to report on
        place = XidTarget(family, event.node, device)
        node = self._node(event.node or "")
        found = self._remember(place, node)
        history = self._histories[place]
        burst, new = history.record_event(event, family, code, self.config.policy, node.boots)
        self._place_in_time(burst, node)
        others = self._compare(place, burst, event, many=rule.many)
        if rule.leads and own(self.config.policy, rule, history, burst).recommended_action is RecommendedAction.NONE:
            keep_mark(history.resets, event.time, apart=1.0)
        found += self._speak(place, event.time, "It is over.", event, again=new)
        for other in others:
            found += self._speak(other, event.time, "Other GPUs met it too: the program did it.")
        return found

    def _take_context(self, event: Event, name: str) -> list[Finding]:
        node = self._node(name)
        if event.kind is EventKind.GPU_EVENT:
            return self._was_reset(event, XidTarget(Family.XID, name, self._device_of(event)))
        if event.kind is EventKind.NODE_STOPPING:
            node.stopped = [*node.stopped, event.time][-4:]
            for place in node.places:
                for burst in self._histories[place].bursts:
                    self._place_in_time(burst, node)
            return self._speak_for(node, event, "The node was being stopped in order.")
        return self._booted(event, name, node)

    def _was_reset(self, event: Event, place: XidTarget) -> list[Finding]:
        history = self._histories.get(place)
        done = event.data.get("what") == "reset" and event.data.get("success") not in {"false", False}
        if not done or history is None or not keep_mark(history.resets, event.time):
            return []
        return self._speak(place, event.time, "The GPU was reset.", event)

    def _booted(self, event: Event, name: str, node: _NodeState) -> list[Finding]:
        boot = boot_time(event, node.boot_id)
        node.boot_id = text(event.data.get("boot_id")) or node.boot_id
        if boot is None or not keep_mark(node.boots, boot):
            return []
        found = self._speak_for(node, event, "The node rebooted.")
        for key, finding in list(self._adopted.items()):
            reset = finding.recommended_action in {RecommendedAction.RESET_GPU, RecommendedAction.REBOOT_NODE}
            if finding.entity.node == name and reset and finding.time < boot:
                found.append(self._adopted.pop(key).ended(event.time, "The node rebooted.", event.id))
        return found

    def _speak_for(self, node: _NodeState, event: Event, why: str) -> list[Finding]:
        order = sorted(node.places, key=lambda place: (place.family, place.device or ""))
        return [f for place in order for f in self._speak(place, event.time, why, event)]

    def _place_in_time(self, burst: Burst, node: _NodeState) -> None:
        """Whether it fell into an orderly stop, and how long the node had been up."""
        reach = self.config.policy.settings.planned_seconds
        burst.planned = burst.planned or any(
            burst.first - reach <= stop <= burst.last + reach
            and not any(stop < boot <= burst.first for boot in node.boots)
            for stop in node.stopped
        )
        if burst.uptime is None:
            up = [burst.first - boot for boot in node.boots if boot <= burst.first]
            burst.uptime = min(up, default=None)

    def _compare(self, place: XidTarget, burst: Burst, event: Event, *, many: bool) -> list[XidTarget]:
        """Mark what several GPUs of a node, or of a job, met at once; the others whose meaning that changes."""
        if not many or burst.code is None:
            return []
        near: dict[XidTarget, float] = {}
        for scope in [f"node {event.node}", *([f"job {event.job}"] if event.job else [])]:
            met = self._elsewhere.get((scope, place.family.value, burst.code), {})
            met = {p: t for p, t in met.items() if self._at_once(t, event.time)}
            near |= {p: t for p, t in met.items() if p != place}
            met[place] = event.time
            self._elsewhere[scope, place.family.value, burst.code] = met
        if not near:
            return []
        burst.many = True
        changed = [p for p in near if p in self._histories and self._mark_many(p, burst.code, event.time)]
        return sorted(changed, key=lambda p: (p.node or "", p.device or ""))

    def _mark_many(self, place: XidTarget, code: int, time: float) -> bool:
        alone = [
            b for b in self._histories[place].bursts if b.code == code and not b.many and self._at_once(b.last, time)
        ]
        for burst in alone:
            burst.many = True
        return bool(alone)

    def _at_once(self, one: float, other: float) -> bool:
        return abs(one - other) <= self.config.policy.settings.together_seconds

    # memory

    def _node(self, name: str) -> _NodeState:
        node = self._nodes.get(name) or _NodeState()
        self._nodes[name] = node
        return node

    def _remember(self, place: XidTarget, node: _NodeState) -> list[Finding]:
        """Make room for a device; whoever is forgotten is no longer watched."""
        if place in self._histories:
            self._histories.move_to_end(place)
        else:
            self._histories[place] = DeviceHistory()
        node.places.add(place)
        if len(self._histories) <= self.config.remembered:
            return []
        gone = next(iter(self._histories))
        del self._histories[gone]
        self._nodes.get(gone.node or "", node).places.discard(gone)
        said = self._said.pop(_key(gone), None)
        self._places.pop(_key(gone), None)
        return [] if said is None else [said.ended(said.time, "It is no longer watched: too many others are.")]

    def _device_of(self, event: Event) -> str | None:
        """The device; by its PCI address where the kernel names nothing else."""
        address = _address(event.data.get("pci"))
        if event.node is None or address is None:
            return event.device
        known = self._node(event.node).addresses
        if event.device is not None and (address in known or len(known) < _KEPT_ADDRESSES):
            known[address] = event.device
        return event.device or known.get(address)

    # findings

    def _speak(
        self, place: XidTarget, now: float, why: str, event: Event | None = None, *, again: bool = False
    ) -> list[Finding]:
        """What holds for a place now, if that is news."""
        history, key = self._histories[place], _key(place)
        one = leading_burst(self.config.policy, history, self._node(place.node or "").boots, now)
        said = self._said.get(key)
        if one is None or _much_milder(said, one):
            if said is None:
                return []
            del self._said[key], self._places[key]
            return [said.ended(now, why, event.id if event else None)]
        summary = explain(one, history, place.node, place.device)
        new = again and event is not None and one.burst.last == event.time
        if said is not None and said.evidence.summary == summary and not new:
            return []
        self._adopted.pop(key, None)
        self._places[key] = place
        self._said[key] = finding = self._finding_of(place, one, summary)
        return [finding]

    def _finding_of(self, place: XidTarget, one: BurstEvaluation, summary: str) -> Finding:
        evidence = Evidence(summary=summary, numbers=_numbers(one))
        return self._finding(
            _KIND[place.family], _entity(place), one.burst.last, evidence, severity=one.ruling.severity,
            confidence=0.9 if one.ruling.severity is Severity.WARNING else 1.0,
            recommended_action=one.ruling.recommended_action, cause=CAUSE_OF.get(one.rule.group), event=one.burst.event,
        )  # fmt: skip

    def _is_quiet(self, finding: Finding, now: float) -> bool:
        settings = self.config.policy.settings
        hours = settings.quiet_info_hours if finding.severity is Severity.INFO else settings.quiet_warning_hours
        return now - finding.time >= hours * 3600 and not finding.recommended_action.evicts


def _much_milder(said: Finding | None, one: BurstEvaluation) -> bool:
    """What opened an incident has become mere information: that ends it."""
    return said is not None and said.severity is not Severity.INFO and one.ruling.severity is Severity.INFO


def _numbers(one: BurstEvaluation) -> dict[str, float]:
    burst = one.burst
    numbers = {"count": float(burst.count), "times": float(one.times), "tries": float(one.tries)}
    if burst.code is not None:
        numbers["code"] = float(burst.code)
    if len(burst.links) == 1:
        numbers["link"] = float(min(burst.links))
    if burst.uptime is not None:
        numbers["uptime_seconds"] = burst.uptime
    return numbers


def _entity(place: XidTarget) -> Entity:
    return Entity(node=place.node, device=place.device)


def _key(place: XidTarget) -> str:
    return f"{_KIND[place.family]}:{_entity(place).key}"


def _code_of(event: Event) -> int | None:
    told = event.data.get("code")
    code = int(told) if isinstance(told, str) and told.isdecimal() and len(told) < 6 else whole_number(told)
    return code if code is not None and 0 <= code < 10**6 else None


def _address(value: Any) -> str | None:
    """``00000000:3B:00.0`` and ``0000:3b:00`` are one card."""
    address = text(value)
    return None if address is None else canonical(address.removeprefix("PCI:"))
