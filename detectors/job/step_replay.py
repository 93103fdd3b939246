"""A device that computed other bits than its replicas from the same state and data: a fact from replays.

The job itself replays and judges (``mainstay.detectors.job.replay_analysis``); its ``replayed`` event says who
differed, how often and in which steps. Unlike a digest that differs, or a norm, this leaves no doubt about the place:
nothing but the rank's own device and host was at work. The finding holds until the job ends; a replay that comes out
clean later does not take it back, since the rank has another device by then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mainstay.detectors.event_data import count_of, entries_of, text
from mainstay.detectors.finding import Cause, Entity, Evidence, Finding, FindingKind
from mainstay.detectors.job.held_findings import HeldFindings
from mainstay.probes.core_types import Event, EventKind, RecommendedAction, Severity


class StepReplayDetector(HeldFindings):
    """Says ``sdc_suspect`` of every culprit that replays named."""

    name = "step_replay"
    kinds = frozenset({FindingKind.SDC_SUSPECT})
    usual_severity = Severity.CRITICAL
    usual_action = RecommendedAction.INSPECT_NODE
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
        return [one for culprit in culprits for one in self._hold(self._suspect(event, culprit, sure))]

    def _suspect(self, event: Event, culprit: dict[str, Any], sure: float) -> Finding:
        rank, where = count_of(culprit["rank"]), text(culprit.get("node"))
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
        (kind,), entity = self.kinds, Entity(job=event.job, rank=rank, node=where)
        evidence, cause = Evidence(summary=summary, numbers=told), Cause.SILENT_CORRUPTION
        return self._finding(kind, entity, event.time, evidence, confidence=sure, cause=cause, event=event.id)
