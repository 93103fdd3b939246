"""Findings that a fact of a job opens and that hold until the job ends: the base of detectors of such facts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable

from mainstay.detectors.base import EventDetector
from mainstay.detectors.finding import Entity, Finding
from mainstay.probes.core_types import Event, EventKind
from mainstay.probes.recent import Recent


class HeldFindings(EventDetector):
    """Keeps what it said. Its ``Config.remembered`` also bounds how many findings it keeps."""

    def reset(self) -> None:
        super().reset()
        self._open: Recent[str, Finding] = Recent(self.config.remembered)

    def restore_findings(self, findings: Iterable[Finding]) -> None:
        """Those that hold end with their job, also after a restart."""
        for finding in findings:
            if finding.kind in self.kinds and finding.detector == self.name:
                self._open[finding.key] = finding

    def _handle(self, event: Event) -> list[Finding]:
        if event.kind is EventKind.JOB_FINISHED:
            return self._close(event, "The job ended.")
        return self._judge(event)

    @abstractmethod
    def _judge(self, event: Event) -> list[Finding]:
        """What another event says."""

    def _hold(self, finding: Finding) -> list[Finding]:
        """Say it, unless it holds already."""
        if finding.key in self._open:
            return []
        self._open[finding.key] = finding
        return [finding]

    def _close(self, event: Event, why: str, entity: Entity | None = None) -> list[Finding]:
        """End what holds of ``entity``, or of the whole job of ``event``."""
        held = [one for one in self._open.values() if one.entity.job == event.job and entity in {None, one.entity}]
        for one in held:
            del self._open[one.key]
        return [one.ended(event.time, why, one.event) for one in held]
