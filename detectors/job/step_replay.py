"""A device that computed other bits than its replicas from the same state and data: a fact from replays.

The job itself replays and judges (``mainstay.detectors.job.replay_analysis``); its ``replayed`` event says who
differed, how often and in which steps. Unlike a digest that differs, or a norm, this leaves no doubt about the place:
nothing but the rank's own device and host was at work. The finding holds until the job ends; a replay that comes out
clean later does not take it back, since the rank has another device by then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mainstay.detectors.event_data import count_of, entries_of
from mainstay.detectors.finding import Cause, Entity, Evidence, Finding, FindingKind
from mainstay.detectors.job.held_findings import HeldFindings
from mainstay.probes.core_types import Event, EventKind, RecommendedAction, Severity


class StepReplayDetector(HeldFindings):
    """Says ``sdc_suspect`` of every culprit that replays named."""

    name = "step_replay"
    kinds = frozenset({FindingKind.SDC_SUSPECT})
    reads = frozenset({EventKind.STEP_REPLAY_FINISHED, EventKind.JOB_FINISHED})

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config:
        remembered: int = 4096
        """Event ids and findings that hold."""
        sure: float = 0.99
        """Of one culprit; of several that groups could not be told apart by, each gets its share."""

    config: Config

    def _judge(self, event: Event) -> list[Finding]:
        culprits = [c for c in entries_of(event.data.get("culprits")) if count_of(c.get("rank")) is not None]
        if event.data.get("outcome") != "found" or event.job is None:
            return []
        sure = self.config.sure / max(1, len(culprits))
        return [one for culprit in culprits for one in self._hold(self._finding(event, culprit, sure))]

    def _finding(self, event: Event, culprit: dict[str, Any], sure: float) -> Finding:
        rank, node = count_of(culprit["rank"]), culprit.get("node")
        where = node if isinstance(node, str) and node else None
        listed = culprit.get("steps")
        steps = [step for step in map(count_of, listed) if step is not None] if isinstance(listed, list) else []
        numbers = {
            "replays": count_of(culprit.get("replays")),
            "shown": count_of(culprit.get("shown")),
            "first_step": min(steps, default=None),
        }
        told = {name: float(value) for name, value in numbers.items() if value is not None}
        place = f"Rank {rank}" + (f" on {where}" if where else "")
        often = (
            f" in {told['shown']:.0f} of {told['replays']:.0f} replays" if {"shown", "replays"} <= told.keys() else ""
        )
        at = f", first at step {told['first_step']:.0f}" if "first_step" in told else ""
        summary = (
            f"{place} computed other bits than its replicas from the same state, data and seeds{often}{at}: its device "
            f"or host computes wrongly."
        )
        return Finding(
            kind=FindingKind.SDC_SUSPECT,
            entity=Entity(job=event.job, rank=rank, node=where),
            time=event.time,
            severity=Severity.CRITICAL,
            detector=self.name,
            confidence=sure,
            evidence=Evidence(summary=summary, numbers=told),
            event=event.id,
            recommended_action=RecommendedAction.INSPECT_NODE,
            cause=Cause.SILENT_CORRUPTION,
        )
