"""Hardware facts that a node or another monitor reports, said aloud: no event ends without a finding or a reason.

One finding a kind and device: several facts of one kind (two samplers, five checks of a foreign monitor) are held side
by side and the heaviest speaks. What ends each: an event that says so (``cleared``, a healthy report); a new boot for
what does not outlive one; for what happens once, a time of quiet (``pass_time``).

Not here: XID and SXID (``detectors.xid``), ports (``detectors.links``). NODE_STARTED and NODE_STOPPING are no findings,
they only tell what others mean. Of NVML's notices two speak; the others come as XIDs as well (double bit 48, retirement
63, 64, 156 and 157, poison 94 and 95, recovery action 154) and two findings of one trouble would end one another.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from detectors.base import EventDetector
from detectors.finding import Entity, Evidence, Finding, FindingKind
from probes.words import Event, EventKind, Remedy, Severity

_K: Final = FindingKind
_SEVERITY: Final = {Severity.INFO: 0, Severity.WARNING: 1, Severity.CRITICAL: 2}
_TEXT: Final = 160  # characters of a foreign message
_NUMBERS: Final = {"seconds": "seconds", "uptime": "uptime_seconds", "count": "count"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What one kind of fact means."""

    kind: FindingKind
    severity: Severity
    remedy: Remedy
    text: str
    boot: bool = False
    """Ends with a new boot."""
    quiet_seconds: float | None = None
    """Ends after so long without another; None: only by an event."""


_LOST: Final = Said(
    kind=_K.GPU_LOST, severity=Severity.CRITICAL, remedy=Remedy.REBOOT_NODE, text="the GPU is gone", boot=True
)
_LOSSES: Final = {
    "gpu_is_lost": replace(_LOST, text="the GPU is gone: it answers no call"),
    "not_listed": replace(_LOST, text="the GPU is gone: the driver no longer lists it"),
    "reset_required": replace(_LOST, text="the GPU answers only after a reset", remedy=Remedy.RESET_GPU),
}
"""What the sampler's reasons mean; the kernel's are words already."""
_SILENT: Final = Said(
    kind=_K.PROBE_SILENT, severity=Severity.WARNING, remedy=Remedy.WATCH, text="the sampler gets no answer", boot=True
)
_NOTICES: Final = {
    "gpu_unavailable": replace(_LOST, text="the driver calls the GPU unavailable"),
    "ecc_storm": Said(
        kind=_K.ECC_CORRECTED,
        severity=Severity.WARNING,
        remedy=Remedy.WATCH,
        text="the driver reports a storm of corrected memory errors; calls to this GPU may hang",
        boot=True,
        quiet_seconds=3600.0,
    ),
}


def _fault(severity: Severity, remedy: Remedy, text: str, hours: float, *, kind: FindingKind = _K.KERNEL_FAULT) -> Said:
    return Said(kind=kind, severity=severity, remedy=remedy, text=text, boot=True, quiet_seconds=hours * 3600)


_DAY: Final = 24.0


def _watch(text: str) -> Said:
    return _fault(Severity.WARNING, Remedy.WATCH, text, _DAY)


_FAULTS: Final = {
    # The machine cannot go on: a panic leaves by a boot anyway, a locked-up CPU comes back rarely and never well.
    "panic": _fault(Severity.CRITICAL, Remedy.REBOOT_NODE, "the kernel panicked", _DAY),
    "hard_lockup": _fault(Severity.CRITICAL, Remedy.REBOOT_NODE, "a CPU is locked up", _DAY),
    "machine_check": _watch("the CPU reports a hardware error"),
    # One soft lock-up may be a busy hypervisor; a stuck task may be a slow disk.
    "soft_lockup": _fault(Severity.WARNING, Remedy.WATCH, "a CPU did not schedule for seconds", 1.0),
    "rcu_stall": _fault(Severity.WARNING, Remedy.WATCH, "a CPU did not answer the kernel", 1.0),
    "hung_task": _fault(Severity.WARNING, Remedy.WATCH, "a task has been stuck for minutes", 1.0),
    "oops": _watch("the kernel met a bug and went on"),
    "gpu_init": _fault(Severity.CRITICAL, Remedy.REBOOT_NODE, "the driver cannot start the GPU", _DAY),
    "filesystem": _watch("a file system has failed"),
    "read_only": _watch("a file system became read-only"),
    "nvme": _watch("an NVMe disk has failed or stalled"),
    "raid": _watch("a RAID has lost a disk"),
    "disk": _watch("a disk reports errors"),
    "nfs": _watch("a file server does not answer"),
    "edac_uncorrected": _watch("the host's memory has an uncorrectable error"),
    "memory_failure": _watch("a page of the host's memory was given up"),
    "pci_reset": _watch("a PCIe device did not come back from its reset"),
    "pcie_uncorrected": _watch("a PCIe device reports uncorrected errors"),
    "pcie_unrecovered": _watch("a PCIe device did not recover from an error"),
    "nic_health": _watch("a network adapter calls itself sick"),
    "nic_temperature": _watch("a network adapter is too hot"),
    # A group that reaches its own limit is its job's affair; which of the two it was the line does not always say.
    "oom": _fault(
        Severity.INFO, Remedy.RESTART_APP, "a process was killed for want of memory", 1.0, kind=_K.OUT_OF_MEMORY
    ),
    "segfault": _fault(Severity.INFO, Remedy.RESTART_APP, "a process crashed", 1.0),
}
_ALIASES: Final = {"fs": "filesystem", "bug": "oops"}


@dataclass(slots=True)
class _Held:
    said: Said
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


class FactsDetector(EventDetector):
    """Turns what nodes and foreign monitors report into findings by tables."""

    name = "facts"
    kinds = frozenset(
        {_LOST.kind, _SILENT.kind, _K.HEALTH_REPORT, *(s.kind for s in (*_NOTICES.values(), *_FAULTS.values()))}
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

    def __init__(self, config: Config | None = None) -> None:
        self.config: FactsDetector.Config = config or self.Config()
        self.reset()

    def reset(self) -> None:
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._places: OrderedDict[str, _Place] = OrderedDict()
        self._nodes: OrderedDict[str, _Node] = OrderedDict()

    def update(self, events: Sequence[Event]) -> list[Finding]:
        """See ``EventDetector.update``."""
        found: list[Finding] = []
        for event in events:
            handler = _HANDLERS.get(event.kind)
            if handler is None or event.id in self._seen or not (event.node or event.device):
                continue
            self._seen[event.id] = None
            if len(self._seen) > self.config.remembered:
                self._seen.popitem(last=False)
            found += handler(self, event)
        return found

    def pass_time(self, now: float) -> list[Finding]:
        """See ``EventDetector.pass_time``."""
        found: list[Finding] = []
        for key, place in list(self._places.items()):
            for item, held in list(place.held.items()):
                quiet = held.said.quiet_seconds
                if quiet is not None and now - held.finding.time >= quiet:
                    del place.held[item]
            found += self._speak(key, now, "It stayed quiet.")
        return found

    def adopt(self, findings: Iterable[Finding]) -> None:
        """See ``EventDetector.adopt``."""
        for finding in findings:
            if finding.detector == self.name and finding.active and finding.about not in self._places:
                text = finding.evidence.summary
                said = Said(kind=finding.kind, severity=finding.severity, remedy=finding.remedy, text=text, boot=True)
                held = _Held(replace(said, quiet_seconds=_quiet(finding.kind)), finding)
                self._keep(finding.about, _Place({"": held}, finding))

    # events

    def _lost(self, event: Event) -> list[Finding]:
        reason = _words(event.data.get("reason"))
        other = replace(_LOST, text=_LOST.text + (f" ({reason})" if reason else ""))
        return self._take(event, "", _LOSSES.get(reason, other))

    def _silent(self, event: Event) -> list[Finding]:
        data, reason = event.data, _words(event.data.get("reason"))
        text = _SILENT.text + (f": {reason}" if reason else "")
        return self._take(event, f"{data.get('sampler', '')}/{data.get('lane', '')}", replace(_SILENT, text=text))

    def _notice(self, event: Event) -> list[Finding]:
        said = _NOTICES.get(str(event.data.get("what")))
        return [] if said is None else self._take(event, "", said)

    def _fault(self, event: Event) -> list[Finding]:
        name = str(event.data.get("fault", ""))[:40]
        said = _FAULTS.get(_ALIASES.get(name, name)) or _unknown_fault(event, name)
        if event.data.get("severity") == Severity.INFO:
            said = replace(said, severity=Severity.INFO, remedy=min(said.remedy, Remedy.WATCH, key=_rung))
        told = _words(event.data.get("text"))
        return self._take(event, name, replace(said, text=said.text + (f": {told}" if told else "")))

    def _report(self, event: Event) -> list[Finding]:
        data = event.data
        item = f"{data.get('source', '')}/{data.get('check', '')}"[:200]
        return self._take(event, item, _foreign(data), over=data.get("healthy") is True)

    def _node_event(self, event: Event) -> list[Finding]:
        if event.node is None:
            return []
        node = self._node(event.node)
        if event.kind is EventKind.NODE_STOPPING:
            node.stopping = event.time
            return []
        node.stopping = None
        booted = _boot_time(event, node)
        if booted is None:
            return []
        node.boot = booted
        found: list[Finding] = []
        for key, place in list(self._places.items()):
            if place.told is None or place.told.entity.node != event.node:
                continue
            for item, held in list(place.held.items()):
                if held.said.boot and held.finding.time < booted:
                    del place.held[item]
            found += self._speak(key, event.time, "The node rebooted.", event)
        return found

    # findings

    def _take(self, event: Event, item: str, said: Said, *, over: bool = False) -> list[Finding]:
        entity = Entity(node=event.node, device=event.device)
        key = f"{said.kind}:{entity.key}"
        place = self._places.get(key, _Place())
        if over or event.data.get("cleared") is True:
            place.held.pop(item, None)
            place.held.pop("", None)  # what was taken over after a restart
            return self._speak(key, event.time, "It is over.", event) if place.told is not None else []
        evidence = Evidence(summary=f"{_who(event)}: {said.text}.", numbers=_numbers(event.data))
        finding = Finding(
            kind=said.kind,
            entity=entity,
            time=event.time,
            severity=said.severity,
            detector=self.name,
            confidence=1.0 if said.severity is Severity.CRITICAL else 0.9,
            evidence=evidence,
            remedy=said.remedy,
            event=event.id,
        )
        if len(place.held) < self.config.checks or item in place.held:
            place.held[item] = _Held(said, finding, self._grace(event) if said.kind is _K.HEALTH_REPORT else 0.0)
        self._keep(key, place)
        return self._speak(key, event.time, "It is over.", event)

    def _speak(self, key: str, now: float, why: str, event: Event | None = None) -> list[Finding]:
        """The heaviest of what holds for a place, if that is news."""
        place = self._places[key]
        told = place.told
        if not place.held:
            del self._places[key]
            ended = Evidence(summary=why)
            by = event.id if event else None
            return [] if told is None else [replace(told, active=False, time=now, evidence=ended, event=by)]
        heaviest = max((_now(held, now) for held in place.held.values()), key=_weight)
        if told is not None and (told.event, told.severity) == (heaviest.event, heaviest.severity):
            return []
        place.told = heaviest
        return [heaviest]

    def _grace(self, event: Event) -> float:
        """Until when a foreign report is only information: its node boots, or is being stopped."""
        node, uptime = self._node(event.node or ""), _number(event.data.get("uptime"))
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
        self._nodes.move_to_end(name)
        if len(self._nodes) > self.config.remembered:
            self._nodes.popitem(last=False)
        return node

    def _keep(self, key: str, place: _Place) -> None:
        self._places[key] = place
        self._places.move_to_end(key)
        if len(self._places) > self.config.remembered:
            self._places.popitem(last=False)


_HANDLERS: Final = {
    EventKind.GPU_LOST: FactsDetector._lost,  # noqa: SLF001 - its own table
    EventKind.PROBE_SILENT: FactsDetector._silent,  # noqa: SLF001 - its own table
    EventKind.GPU_NOTICE: FactsDetector._notice,  # noqa: SLF001 - its own table
    EventKind.KERNEL_FAULT: FactsDetector._fault,  # noqa: SLF001 - its own table
    EventKind.HEALTH_REPORT: FactsDetector._report,  # noqa: SLF001 - its own table
    EventKind.NODE_STARTED: FactsDetector._node_event,  # noqa: SLF001 - its own table
    EventKind.NODE_STOPPING: FactsDetector._node_event,  # noqa: SLF001 - its own table
}


def _unknown_fault(event: Event, name: str) -> Said:
    """By the severity that the node gives, but never more than a warning."""
    severity = Severity.INFO if event.data.get("severity") == Severity.INFO else Severity.WARNING
    return _fault(severity, Remedy.WATCH, f"the kernel reports {name or 'a fault'}", _DAY)


def _foreign(data: dict[str, Any]) -> Said:
    """Another monitor's word: it takes a node out of service only by a fatal fault and a remedy that does."""
    named = data.get("remedy")
    remedy = Remedy(named) if isinstance(named, str) and named in set(Remedy) else Remedy.WATCH
    severity = Severity.WARNING
    if data.get("severity") == Severity.INFO or remedy in {Remedy.NONE, Remedy.RESTART_APP}:
        severity = Severity.INFO
    elif data.get("fatal") is True and remedy.evicts:
        severity = Severity.CRITICAL
    if severity is not Severity.CRITICAL and remedy.evicts:
        remedy = Remedy.WATCH
    message = _words(data.get("message"))
    text = f"{_words(data.get('source')) or 'another monitor'} reports {_words(data.get('check')) or 'a fault'}"
    return Said(
        kind=_K.HEALTH_REPORT, severity=severity, remedy=remedy, text=text + (f": {message}" if message else ""),
        boot=True,
    )  # fmt: skip


def _now(held: _Held, now: float) -> Finding:
    """The finding as it counts now: within its grace it is information."""
    if now >= held.grace_until or held.finding.severity is Severity.INFO:
        return held.finding
    remedy = Remedy.WATCH if held.finding.remedy.evicts else held.finding.remedy
    return replace(held.finding, severity=Severity.INFO, remedy=remedy)


def _weight(finding: Finding) -> tuple[int, int, float]:
    return (_SEVERITY[finding.severity], finding.remedy.rung, finding.time)


def _quiet(kind: FindingKind) -> float | None:
    hours = {_K.KERNEL_FAULT: _DAY, _K.OUT_OF_MEMORY: 1.0, _K.ECC_CORRECTED: 1.0}.get(kind)
    return None if hours is None else hours * 3600


def _rung(remedy: Remedy) -> int:
    return remedy.rung


def _who(event: Event) -> str:
    return " on ".join(part for part in (event.device, event.node) if part)


def _words(value: Any) -> str:
    """Foreign text as part of a sentence: one line, not too long, without its full stop."""
    text = " ".join(value.split()) if isinstance(value, str) else ""
    return (text if len(text) <= _TEXT else f"{text[: _TEXT - 1]}…").rstrip(".")


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _numbers(data: dict[str, Any]) -> dict[str, float]:
    told = {name: _number(data.get(key)) for key, name in _NUMBERS.items()}
    return {name: value for name, value in told.items() if value is not None}


def _boot_time(event: Event, node: _Node) -> float | None:
    """When the node booted; None when it is the boot that was known, or nobody can tell."""
    boot_id, uptime = event.data.get("boot_id"), _number(event.data.get("uptime"))
    known = isinstance(boot_id, str) and boot_id == node.boot_id
    fresh = isinstance(boot_id, str) and node.boot_id is not None
    node.boot_id = boot_id if isinstance(boot_id, str) else node.boot_id
    if known:
        return None
    if uptime is not None and uptime >= 0:
        return event.time - uptime
    return event.time if fresh else None
