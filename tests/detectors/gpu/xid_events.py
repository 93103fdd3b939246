"""Events for the XID detector, and what its findings of them ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mainstay.detectors.finding import Finding
from mainstay.detectors.gpu.xid import XidDetector
from mainstay.probes.core_types import Event, EventKind

NUMBER = iter(range(10**9))
HOUR, DAY = 3600.0, 86_400.0
T = 1_800_000_000.0


def event(kind: EventKind, at: float = 0.0, device: str | None = None, *, node: str = "n1", **data: Any) -> Event:
    job = data.pop("job", None)
    return Event(id=f"e{next(NUMBER)}", time=T + at, kind=kind, node=node, device=device, job=job, data=data)


def xid(code: int, at: float = 0.0, device: str = "GPU-1", **data: Any) -> Event:
    return event(EventKind.XID, at, device, code=code, **{"source": "kernel", "uptime": DAY, **data})


def boot(at: float, *, node: str = "n1", uptime: float = 40.0) -> Event:
    return event(EventKind.NODE_STARTED, at, node=node, uptime=uptime, boot_id=f"boot-{at}")


def findings_of(*events: Event, detector: XidDetector | None = None) -> list[Finding]:
    return (detector or XidDetector()).update(list(events))


def statements_of(found: Sequence[Finding]) -> list[tuple[str, str, bool]]:
    return [(f.severity.value, f.recommended_action.value, f.active) for f in found]


INFO, WARN = ("info", "restart_job", True), ("warning", "monitor", True)
RESET, REBOOT = ("critical", "reset_gpu", True), ("critical", "reboot_node", True)
INSPECT, REPLACE = ("critical", "inspect_node", True), ("critical", "replace", True)
