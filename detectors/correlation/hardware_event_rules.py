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
_HOUR: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRule:
    """What one kind of fact means. It ends with a new boot; the defaults are those of a kernel's line."""

    text: str
    kind: FindingKind = _K.KERNEL_FAULT
    severity: Severity = Severity.WARNING
    recommended_action: RecommendedAction = RecommendedAction.MONITOR
    cause: Cause | None = Cause.HOST
    quiet_seconds: float | None = 24 * _HOUR
    """Ends after so long without another; None: only by an event."""


_LOST: Final = EventRule(
    kind=_K.GPU_LOST,
    severity=Severity.CRITICAL,
    recommended_action=RecommendedAction.REBOOT_NODE,
    text="the GPU is gone",
    cause=USUAL[_K.GPU_LOST],
    quiet_seconds=None,
)
_LOSSES: Final = {
    "gpu_is_lost": replace(_LOST, text="the GPU is gone: it answers no call"),
    "not_listed": replace(_LOST, text="the GPU is gone: the driver no longer lists it"),
    "reset_required": replace(
        _LOST, text="the GPU answers only after a reset", recommended_action=RecommendedAction.RESET_GPU
    ),
}
"""What the sampler's reasons mean; the kernel's are words already."""
SILENT: Final = EventRule(kind=_K.PROBE_UNRESPONSIVE, text="the sampler gets no answer", cause=None, quiet_seconds=None)
NOTICES: Final = {
    "gpu_unavailable": replace(_LOST, text="the driver calls the GPU unavailable"),
    "ecc_burst": EventRule(
        kind=_K.ECC_CORRECTED,
        text="the driver reports a burst of corrected memory errors; calls to this GPU may hang",
        cause=USUAL[_K.ECC_CORRECTED],
        quiet_seconds=_HOUR,
    ),
}
_NODE_LOST: Final = EventRule(
    text="the node cannot continue", severity=Severity.CRITICAL, recommended_action=RecommendedAction.REBOOT_NODE
)
_PROCESS_LOST: Final = EventRule(
    text="a process crashed",
    severity=Severity.INFO,
    recommended_action=RecommendedAction.RESTART_JOB,
    cause=Cause.SOFTWARE,
    quiet_seconds=_HOUR,
)
_FAULTS: Final = {
    # The node cannot continue: a panic leaves by a boot anyway, a locked-up CPU comes back rarely and never well.
    "panic": replace(_NODE_LOST, text="the kernel panicked"),
    "hard_lockup": replace(_NODE_LOST, text="a CPU is locked up"),
    "machine_check": EventRule(text="the CPU reports a hardware error"),
    # One soft lock-up may be a busy hypervisor; a stuck task may be a slow disk.
    "soft_lockup": EventRule(text="a CPU did not schedule for seconds", quiet_seconds=_HOUR),
    "rcu_stall": EventRule(text="a CPU did not answer the kernel", quiet_seconds=_HOUR),
    "hung_task": EventRule(text="a task has been stuck for minutes", cause=None, quiet_seconds=_HOUR),
    "oops": EventRule(text="the kernel met a bug and continued"),
    "gpu_init": replace(_NODE_LOST, text="the driver cannot start the GPU", cause=Cause.FAULTY_GPU),
    "filesystem": EventRule(text="a file system has failed", cause=Cause.STORAGE),
    "read_only": EventRule(text="a file system became read-only", cause=Cause.STORAGE),
    "nvme": EventRule(text="an NVMe disk has failed or stalled", cause=Cause.STORAGE),
    "raid": EventRule(text="a RAID has lost a disk", cause=Cause.STORAGE),
    "disk": EventRule(text="a disk reports errors", cause=Cause.STORAGE),
    "nfs": EventRule(text="a file server does not answer", cause=Cause.STORAGE),
    "edac_uncorrected": EventRule(text="the host's memory has an uncorrectable error"),
    "memory_failure": EventRule(text="a page of the host's memory was given up"),
    "pci_reset": EventRule(text="a PCIe device did not come back from its reset", cause=None),
    "pcie_uncorrected": EventRule(text="a PCIe device reports uncorrected errors", cause=None),
    "pcie_unrecovered": EventRule(text="a PCIe device did not recover from an error", cause=None),
    "nic_health": EventRule(text="a network adapter calls itself sick", cause=Cause.NIC),
    "nic_temperature": EventRule(text="a network adapter is too hot", cause=Cause.NIC),
    # A group that reaches its own limit is its job's affair; which of the two it was the line does not always say.
    "oom": replace(
        _PROCESS_LOST,
        text="a process was killed for want of memory",
        kind=_K.OUT_OF_MEMORY,
        cause=USUAL[_K.OUT_OF_MEMORY],
    ),
    "segfault": _PROCESS_LOST,
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
    return EventRule(text=f"the kernel reports {name or 'a fault'}", severity=severity, cause=None)


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
        text=text + (f": {message}" if message else ""), cause=None, quiet_seconds=None,
    )  # fmt: skip


def quiet_seconds(kind: FindingKind) -> float | None:
    return {_K.KERNEL_FAULT: 24 * _HOUR, _K.OUT_OF_MEMORY: _HOUR, _K.ECC_CORRECTED: _HOUR}.get(kind)


def single_line(value: Any) -> str:
    """Foreign text as part of a sentence: one line, not too long, without its full stop."""
    text = " ".join(value.split()) if isinstance(value, str) else ""
    return (text if len(text) <= _TEXT else f"{text[: _TEXT - 1]}…").rstrip(".")
