"""Tables of hardware events: the kind, severity, recommended action, cause, and text of each finding.

The cause is the usual one of the kind (``mainstay.detectors.correlation.root_causes``) unless the fact tells a nearer
one; a fact behind which several may stand (a stuck task, a PCIe device that is not named) and another monitor's word
tell none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from mainstay.detectors.correlation.root_causes import USUAL
from mainstay.detectors.finding import Cause, FindingKind
from mainstay.probes.core_types import NIC_PREFIX, Event, RecommendedAction, Severity

_K: Final = FindingKind
_TEXT: Final = 160  # characters of a foreign message


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRule:
    """What one kind of fact means."""

    kind: FindingKind
    severity: Severity
    recommended_action: RecommendedAction
    text: str
    cause: Cause | None = None
    boot: bool = False
    """Ends with a new boot."""
    quiet_seconds: float | None = None
    """Ends after so long without another; None: only by an event."""


_LOST: Final = EventRule(
    kind=_K.GPU_LOST,
    severity=Severity.CRITICAL,
    recommended_action=RecommendedAction.REBOOT_NODE,
    text="the GPU is gone",
    cause=USUAL[_K.GPU_LOST],
    boot=True,
)
_LOSSES: Final = {
    "gpu_is_lost": replace(_LOST, text="the GPU is gone: it answers no call"),
    "not_listed": replace(_LOST, text="the GPU is gone: the driver no longer lists it"),
    "reset_required": replace(
        _LOST, text="the GPU answers only after a reset", recommended_action=RecommendedAction.RESET_GPU
    ),
}
"""What the sampler's reasons mean; the kernel's are words already."""
SILENT: Final = EventRule(
    kind=_K.PROBE_UNRESPONSIVE,
    severity=Severity.WARNING,
    recommended_action=RecommendedAction.MONITOR,
    text="the sampler gets no answer",
    boot=True,
)
NOTICES: Final = {
    "gpu_unavailable": replace(_LOST, text="the driver calls the GPU unavailable"),
    "ecc_burst": EventRule(
        kind=_K.ECC_CORRECTED,
        severity=Severity.WARNING,
        recommended_action=RecommendedAction.MONITOR,
        text="the driver reports a burst of corrected memory errors; calls to this GPU may hang",
        cause=USUAL[_K.ECC_CORRECTED],
        boot=True,
        quiet_seconds=3600.0,
    ),
}


def _fault(
    severity: Severity,
    recommended_action: RecommendedAction,
    text: str,
    hours: float,
    *,
    kind: FindingKind = _K.KERNEL_FAULT,
    cause: Cause | None = Cause.HOST,
) -> EventRule:
    quiet = hours * 3600
    return EventRule(
        kind=kind,
        severity=severity,
        recommended_action=recommended_action,
        text=text,
        cause=cause,
        boot=True,
        quiet_seconds=quiet,
    )


_DAY: Final = 24.0


def _watch(text: str, cause: Cause | None = Cause.HOST) -> EventRule:
    return _fault(Severity.WARNING, RecommendedAction.MONITOR, text, _DAY, cause=cause)


_FAULTS: Final = {
    # The node cannot continue: a panic leaves by a boot anyway, a locked-up CPU comes back rarely and never well.
    "panic": _fault(Severity.CRITICAL, RecommendedAction.REBOOT_NODE, "the kernel panicked", _DAY),
    "hard_lockup": _fault(Severity.CRITICAL, RecommendedAction.REBOOT_NODE, "a CPU is locked up", _DAY),
    "machine_check": _watch("the CPU reports a hardware error"),
    # One soft lock-up may be a busy hypervisor; a stuck task may be a slow disk.
    "soft_lockup": _fault(Severity.WARNING, RecommendedAction.MONITOR, "a CPU did not schedule for seconds", 1.0),
    "rcu_stall": _fault(Severity.WARNING, RecommendedAction.MONITOR, "a CPU did not answer the kernel", 1.0),
    "hung_task": _fault(
        Severity.WARNING, RecommendedAction.MONITOR, "a task has been stuck for minutes", 1.0, cause=None
    ),
    "oops": _watch("the kernel met a bug and continued"),
    "gpu_init": _fault(
        Severity.CRITICAL,
        RecommendedAction.REBOOT_NODE,
        "the driver cannot start the GPU",
        _DAY,
        cause=Cause.FAULTY_GPU,
    ),
    "filesystem": _watch("a file system has failed", Cause.STORAGE),
    "read_only": _watch("a file system became read-only", Cause.STORAGE),
    "nvme": _watch("an NVMe disk has failed or stalled", Cause.STORAGE),
    "raid": _watch("a RAID has lost a disk", Cause.STORAGE),
    "disk": _watch("a disk reports errors", Cause.STORAGE),
    "nfs": _watch("a file server does not answer", Cause.STORAGE),
    "edac_uncorrected": _watch("the host's memory has an uncorrectable error"),
    "memory_failure": _watch("a page of the host's memory was given up"),
    "pci_reset": _watch("a PCIe device did not come back from its reset", None),
    "pcie_uncorrected": _watch("a PCIe device reports uncorrected errors", None),
    "pcie_unrecovered": _watch("a PCIe device did not recover from an error", None),
    "nic_health": _watch("a network adapter calls itself sick", Cause.NIC),
    "nic_temperature": _watch("a network adapter is too hot", Cause.NIC),
    # A group that reaches its own limit is its job's affair; which of the two it was the line does not always say.
    "oom": _fault(
        Severity.INFO,
        RecommendedAction.RESTART_JOB,
        "a process was killed for want of memory",
        1.0,
        kind=_K.OUT_OF_MEMORY,
        cause=USUAL[_K.OUT_OF_MEMORY],
    ),
    "segfault": _fault(Severity.INFO, RecommendedAction.RESTART_JOB, "a process crashed", 1.0, cause=Cause.SOFTWARE),
}
_ALIASES: Final = {"fs": "filesystem", "bug": "oops"}
_PCIE: Final = frozenset({"pci_reset", "pcie_uncorrected", "pcie_unrecovered"})


KINDS: Final = frozenset(
    {_LOST.kind, SILENT.kind, _K.HEALTH_REPORT, *(s.kind for s in (*NOTICES.values(), *_FAULTS.values()))}
)
"""What facts can become."""


def lost(reason: str) -> EventRule:
    other = replace(_LOST, text=_LOST.text + (f" ({reason})" if reason else ""))
    return _LOSSES.get(reason, other)


def kernel_fault(event: Event, name: str) -> EventRule:
    """A kernel's line of a known class, or what its node thinks of it."""
    known = _ALIASES.get(name, name)
    said = _FAULTS.get(known) or _unknown_fault(event, name)
    if known in _PCIE and event.device:  # a card's or an adapter's own link
        said = replace(said, cause=Cause.NIC if event.device.startswith(NIC_PREFIX) else Cause.GPU_LINK)
    return said


def _unknown_fault(event: Event, name: str) -> EventRule:
    """By the severity that the node gives, but never more than a warning."""
    severity = Severity.INFO if event.data.get("severity") == Severity.INFO else Severity.WARNING
    return _fault(severity, RecommendedAction.MONITOR, f"the kernel reports {name or 'a fault'}", _DAY, cause=None)


def foreign(data: dict[str, Any]) -> EventRule:
    """Another monitor's word: only a fatal fault whose action evicts takes a node out of service."""
    named = data.get("recommended_action")
    recommended_action = (
        RecommendedAction(named)
        if isinstance(named, str) and named in set(RecommendedAction)
        else RecommendedAction.MONITOR
    )
    severity = Severity.WARNING
    if data.get("severity") == Severity.INFO or recommended_action in {
        RecommendedAction.NONE,
        RecommendedAction.RESTART_JOB,
    }:
        severity = Severity.INFO
    elif data.get("fatal") is True and recommended_action.evicts:
        severity = Severity.CRITICAL
    if severity is not Severity.CRITICAL and recommended_action.evicts:
        recommended_action = RecommendedAction.MONITOR
    message = single_line(data.get("message"))
    text = (
        f"{single_line(data.get('source')) or 'another monitor'} reports {single_line(data.get('check')) or 'a fault'}"
    )
    return EventRule(
        kind=_K.HEALTH_REPORT, severity=severity, recommended_action=recommended_action,
        text=text + (f": {message}" if message else ""),
        boot=True,
    )  # fmt: skip


def quiet_seconds(kind: FindingKind) -> float | None:
    hours = {_K.KERNEL_FAULT: _DAY, _K.OUT_OF_MEMORY: 1.0, _K.ECC_CORRECTED: 1.0}.get(kind)
    return None if hours is None else hours * 3600


def single_line(value: Any) -> str:
    """Foreign text as part of a sentence: one line, not too long, without its full stop."""
    text = " ".join(value.split()) if isinstance(value, str) else ""
    return (text if len(text) <= _TEXT else f"{text[: _TEXT - 1]}…").rstrip(".")
