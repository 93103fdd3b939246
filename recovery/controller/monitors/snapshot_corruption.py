"""What scrubbing and drills find in snapshot memory, as the agents' inventories tell it: events, totals, whom to doubt.

An agent counts from its start; one that was started again begins at nothing, and what it found before stays counted.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mainstay.probes.core_types import EventKind
from mainstay.recovery.agent.messages import Inventory, ScrubState

_COUNTED: Final = ("found", "flipped", "repaired", "lost")
_MOST_TOLD: Final = 64
"""Nodes in one report; so many whose memory is damaged are another matter."""


@dataclass(slots=True)
class NodeCorruption:
    """Of one node, as far as its agents remember."""

    counts: Counter[str] = field(default_factory=Counter)
    """Of ``_COUNTED``, and ``drills`` that failed."""
    at: float = 0.0
    """Unix seconds: when bytes were last found changed by themselves."""
    what: str = ""
    """The newest, in words."""
    _heard: ScrubState | None = None

    def apply_scrub(self, told: ScrubState) -> dict[str, Any]:
        """Take what an agent says; what is new of it, as data of an event, empty where nothing is."""
        before, self._heard = self._heard, told
        first = before is None
        if before is None or told.found < before.found or told.passes < before.passes:
            before = ScrubState()
        if told.found <= before.found:
            return {}
        new = {name: getattr(told, name) - getattr(before, name) for name in _COUNTED}
        new["drills"] = told.drills_failed - before.drills_failed
        self.counts.update(new)
        self.what = told.last[:300]
        # What was there before this coordinator looked, another one has told.
        return {} if first else {**new, "what": self.what}


class CorruptionStats:
    """One a coordinator.

    Args:
        tell: writes an event (``Reporter.event``).
    """

    def __init__(self, tell: Callable[..., None]) -> None:
        self._tell = tell
        self._nodes: dict[str, NodeCorruption] = {}
        self._looked: dict[str, ScrubState] = {}

    def note(self, inventories: Mapping[str, Inventory]) -> None:
        """Hear all agents; each new damage is an event of its node."""
        self._looked = {node: told.scrub for node, told in inventories.items() if told.scrub is not None}
        for node, scrub in self._looked.items():
            damage = self._nodes.setdefault(node, NodeCorruption())
            new = damage.apply_scrub(scrub)
            if new:
                if new["flipped"]:
                    damage.at = time.time()
                self._tell(EventKind.SNAPSHOT_CORRUPTED, node=node, data=new)

    def flipped(self, since: float) -> dict[str, NodeCorruption]:
        """Nodes on which bytes were found changed after ``since``, Unix seconds."""
        return {node: damage for node, damage in self._nodes.items() if damage.counts["flipped"] and damage.at > since}

    def report(self) -> dict[str, Any] | None:
        """As a job report states it; None where no agent scrubs."""
        if not self._looked:
            return None
        total = sum((damage.counts for damage in self._nodes.values()), Counter[str]())
        bad = sorted((node, damage) for node, damage in self._nodes.items() if damage.counts["found"])
        return {
            "passes": min(scrub.passes for scrub in self._looked.values()),
            "bytes": sum(scrub.nbytes for scrub in self._looked.values()),
            "drills": sum(scrub.drills for scrub in self._looked.values()),
            "drills_failed": total["drills"],
            **{name: total[name] for name in _COUNTED},
            "nodes": [
                {"node": node, "last": d.what, **{name: d.counts[name] for name in _COUNTED}}
                for node, d in bad[:_MOST_TOLD]
            ],
        }
