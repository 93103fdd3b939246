"""A rank whose device or host runs the same kernels more slowly than its peers': a fact from a speed check of its job.

The job compares (``mainstay.recovery.controller.workflows.speed_check``); this says what follows. A step time cannot
tell a slow device from more work, nor, of two replicas, which is the slow one: the check can, so the finding is certain
enough to move ranks. It holds until the job ends or another check of the rank on that node finds it fast.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from mainstay.detectors.event_data import count_of, entries_of, number, text
from mainstay.detectors.finding import Entity, Evidence, Finding, FindingKind
from mainstay.detectors.job.held_findings import HeldFindings
from mainstay.probes.core_types import Event, EventKind, RecommendedAction


class SpeedCheckDetector(HeldFindings):
    """Says ``device_slow`` of every rank that a check found slow."""

    name = "speed_check"
    kinds = frozenset({FindingKind.DEVICE_SLOW})
    usual_action = RecommendedAction.MIGRATE_RANKS
    reads = frozenset({EventKind.SPEED_CHECK_FINISHED, EventKind.JOB_FINISHED})

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config:
        remembered: int = 4096
        """Event ids and findings that hold."""
        confidence: float = 0.95
        """Kernels and moment are the same; what is left is a neighbor that takes a share of the same host."""

    config: Config

    def _judge(self, event: Event) -> list[Finding]:
        return [finding for entry in entries_of(event.data.get("ranks")) for finding in self._judge_rank(event, entry)]

    def _judge_rank(self, event: Event, entry: dict[str, Any]) -> list[Finding]:
        rank, node, ratios = count_of(entry.get("rank")), text(entry.get("node")), entry.get("ratios")
        if event.job is None or rank is None or node is None or not isinstance(ratios, dict):
            return []
        entity = Entity(job=event.job, rank=rank, node=node)
        if entry.get("slow") is not True:
            return self._close(event, "Another check found it as fast as its peers.", entity)
        told = {name: number(value) for name, value in ratios.items()}
        numbers = {name: value for name, value in told.items() if value is not None and 0 < value < math.inf}
        return self._hold(self._slow(event, entity, numbers)) if numbers else []

    def _slow(self, event: Event, entity: Entity, ratios: dict[str, float]) -> Finding:
        worst = max(ratios, key=ratios.__getitem__)
        summary = (
            f"Rank {entity.rank} on {entity.node} needs {ratios[worst]:.2f} times as long as its peers for the same "
            f"{worst} kernel: its device or host is slow, not its work."
        )
        (kind,), evidence, sure = self.kinds, Evidence(summary=summary, numbers=ratios), self.config.confidence
        return self._finding(kind, entity, event.time, evidence, confidence=sure, event=event.id)
