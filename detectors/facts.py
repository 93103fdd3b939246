"""Hardware facts that a node reports as events, said aloud: no event ends without a finding or a reason.

An event with ``data["cleared"]`` true takes the finding back. What an XID means for the device is later knowledge;
here an unexplained one is a warning, never nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from detectors.base import EventDetector
from detectors.finding import Entity, Evidence, Finding, FindingKind
from probes.words import Event, EventKind, Severity

_TABLE: dict[EventKind, tuple[FindingKind, Severity, str]] = {
    EventKind.XID: (FindingKind.XID, Severity.WARNING, "The driver reported XID {code}"),
    EventKind.LINK_DOWN: (FindingKind.NIC_DEGRADED, Severity.WARNING, "Link {link} went down"),
    EventKind.PROBE_SILENT: (FindingKind.PROBE_SILENT, Severity.WARNING, "The sampler stopped answering"),
}


class FactsDetector(EventDetector):
    """Turns XID, link and sampler events into findings by one table."""

    name = "facts"
    kinds = frozenset(kind for kind, _, _ in _TABLE.values())

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config:
        remembered: int = 4096
        """Event ids kept: retries of a spool come within minutes, thousands of facts do not."""

    def __init__(self, config: Config | None = None) -> None:
        self.config: FactsDetector.Config = config or self.Config()
        self.reset()

    def reset(self) -> None:
        self._seen: OrderedDict[str, None] = OrderedDict()

    def update(self, events: Sequence[Event]) -> list[Finding]:
        """See ``EventDetector.update``."""
        found: list[Finding] = []
        for event in events:
            if event.kind not in _TABLE or event.id in self._seen or not (event.node or event.device):
                continue
            self._seen[event.id] = None
            if len(self._seen) > self.config.remembered:
                self._seen.popitem(last=False)
            found.append(self._say(event))
        return found

    def _say(self, event: Event) -> Finding:
        kind, severity, text = _TABLE[event.kind]
        words = {"code": event.data.get("code", "of unknown number"), "link": event.data.get("link", "of unknown name")}
        place = " ".join(p for p in (event.node, event.device) if p)
        cleared = event.data.get("cleared") is True
        code = event.data.get("code")
        return Finding(
            kind=kind,
            entity=Entity(node=event.node, device=event.device),
            time=event.time,
            severity=severity,
            detector=self.name,
            confidence=1.0,
            evidence=Evidence(
                summary=f"{text.format(**words)} on {place}{': over' if cleared else ''}.",
                numbers={"code": float(code)} if isinstance(code, int) else {},
            ),
            active=not cleared,
            event=event.id,
        )
