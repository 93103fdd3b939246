"""Bit flips in host memory: scrubs find changed snapshots at several times, although no process writes them.

Agents read all that they keep again and again (``mainstay.recovery.agent.scrub``), repair what has changed, and report
it. One flipped bit a year is what cosmic rays leave of good memory with ECC, and a stray write of the training process
looks the same: once is no evidence. Damage on a node that comes again is: errors in DRAM come from few machines, again
and again (Schroeder et al., SIGMETRICS 2009). Whether a drill failed is not asked here: that was wrong when it was
written.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from mainstay.detectors.base import EventDetector
from mainstay.detectors.event_data import whole_number
from mainstay.detectors.finding import Entity, Evidence, Finding, FindingKind
from mainstay.probes.core_types import Event, EventKind, RecommendedAction
from mainstay.probes.recent import Recent

_KEPT = 64  # occasions of a node: by then there is no doubt left
_TEXT = 160  # characters of what an agent says


@dataclass(slots=True)
class _Occasion:
    """Damage that was found at about the same time: one cause may have left all of it."""

    first: float
    last: float
    flipped: int
    lost: int


@dataclass(slots=True)
class _Memory:
    """What is known of one node's."""

    occasions: list[_Occasion] = field(default_factory=list)
    """By time."""
    said: Finding | None = None
    """What holds."""


class MemoryBitFlipDetector(EventDetector):
    """Says ``memory_bit_flips`` of a node whose snapshots change by themselves again and again."""

    name = "memory_bit_flips"
    kinds = frozenset({FindingKind.MEMORY_BIT_FLIPS})
    usual_causes = True
    usual_action = RecommendedAction.MONITOR
    reads = frozenset({EventKind.SNAPSHOT_CORRUPTED})

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config:
        remembered: int = 4096
        """Event ids, and nodes: few are ever in trouble."""
        apart_seconds: float = 300.0
        """What is found closer together is one occasion: a pass over all memory takes minutes."""
        least: int = 2
        """Occasions within ``window_seconds`` that are no accident."""
        sure: int = 3
        """Occasions after which a program that writes where it should not is the less likely reason."""
        window_seconds: float = 7 * 86_400.0
        """A node that had one error has the next within days more often than not; what is older counts no more."""
        maybe: float = 0.8
        certain: float = 0.95

    config: Config

    def reset(self) -> None:
        super().reset()
        self._nodes: Recent[str, _Memory] = Recent(self.config.remembered)

    def _handle(self, event: Event) -> list[Finding]:
        flipped = max(whole_number(event.data.get("flipped")) or 0, 0)
        if not event.node or not flipped:
            return []
        memory = self._nodes.setdefault(event.node, _Memory())
        self._nodes.move_to_end(event.node)
        fresh = self._note(memory, event.time, flipped, max(whole_number(event.data.get("lost")) or 0, 0))
        newest = memory.occasions[-1].last
        memory.occasions = [o for o in memory.occasions if newest - o.last < self.config.window_seconds][-_KEPT:]
        if not fresh or len(memory.occasions) < self.config.least:
            return []
        memory.said = self._say(event.node, memory, str(event.data.get("what", ""))[:_TEXT])
        return [memory.said]

    def advance_clock(self, now: float) -> list[Finding]:
        """See ``EventDetector.advance_clock``: a week without damage, with or without further scrubs."""
        over = [
            memory
            for memory in self._nodes.values()
            if memory.said is not None and now - memory.occasions[-1].last >= self.config.window_seconds
        ]
        return [self._end(memory, now) for memory in over]

    def restore_findings(self, findings: Iterable[Finding]) -> None:
        """See ``EventDetector.adopt``."""
        for finding in findings:
            node = finding.entity.node
            if finding.detector == self.name and finding.active and node is not None and node not in self._nodes:
                occasion = _Occasion(finding.time, finding.time, 1, 0)
                self._nodes[node] = _Memory([occasion], finding)

    def _note(self, memory: _Memory, time: float, flipped: int, lost: int) -> bool:
        """Whether it is a new occasion."""
        for occasion in memory.occasions:
            if occasion.first - self.config.apart_seconds < time < occasion.last + self.config.apart_seconds:
                occasion.first, occasion.last = min(occasion.first, time), max(occasion.last, time)
                occasion.flipped, occasion.lost = occasion.flipped + flipped, occasion.lost + lost
                return False
        memory.occasions.append(_Occasion(time, time, flipped, lost))
        memory.occasions.sort(key=lambda occasion: occasion.first)
        return True

    def _say(self, node: str, memory: _Memory, what: str) -> Finding:
        occasions = memory.occasions
        times, flipped = len(occasions), sum(o.flipped for o in occasions)
        hours = (occasions[-1].last - occasions[0].first) / 3600
        spread = f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"
        last = f"; the newest: {what}" if what else ""
        words = f"Memory of {node} had bit flips at {times} times within {spread}, in {flipped} places{last}."
        lost = float(sum(o.lost for o in occasions))
        numbers = {"occasions": float(times), "damages": float(flipped), "lost": lost, "hours": hours}
        sure = self.config.certain if times >= self.config.sure else self.config.maybe
        (kind,), evidence = self.kinds, Evidence(summary=words, numbers=numbers)
        return self._finding(kind, Entity(node=node), occasions[-1].last, evidence, confidence=sure)

    def _end(self, memory: _Memory, now: float) -> Finding:
        assert memory.said is not None
        said, memory.said, memory.occasions = memory.said, None, []
        days = self.config.window_seconds / 86_400
        over = said.ended(now, f"No memory of {said.entity.node} was found changed for {days:g} days.")
        return replace(over, recommended_action=RecommendedAction.NONE)
