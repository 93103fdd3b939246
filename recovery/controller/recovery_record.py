"""One recovery as the outside sees it: what it is about, how long each phase took, and what is reported about it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mainstay.probes.core_types import EventKind
from mainstay.recovery.cost_inputs import CostInputs
from mainstay.recovery.protocol.worker_messages import RestoreOrder, Resumed
from mainstay.recovery.recovery_plan import RecoveryStrategyName, RestoreSource
from mainstay.recovery.strategy_choice import ExecutionCapabilities, StrategyDecision


@dataclass(frozen=True, slots=True)
class BadSource:
    """A restore that was tried and failed: not to be planned again in this recovery."""

    rank: int
    epoch: int
    source: RestoreSource


def failed_sources(rank: int, restore: RestoreOrder, blame: int | None = None) -> BadSource:
    """What a failed restore says about its source. A peer's slot is the peer's own slot, and so is a replica's part."""
    if blame is not None:
        return BadSource(blame, restore.epoch, RestoreSource.LOCAL_SLOT)
    if restore.source is RestoreSource.PEER_COPY and restore.from_rank is not None:
        return BadSource(restore.from_rank, restore.epoch, RestoreSource.LOCAL_SLOT)
    return BadSource(rank, restore.epoch, restore.source)


@dataclass(slots=True)
class FailureAssessment:
    """One failure as it was judged."""

    cost_inputs: CostInputs
    means: ExecutionCapabilities
    decision: StrategyDecision
    seconds: float
    """That deciding took."""
    ready: bool
    """It was decided ahead."""
    strategy: RecoveryStrategyName | None = None
    """That is carried out, once the planner has said from where state comes."""
    parts: dict[str, float] = field(default_factory=dict)
    """What the planner predicts of it, by phase."""

    @property
    def first(self) -> RecoveryStrategyName | None:
        """What the decision begins with; None: nothing is feasible."""
        return None if self.decision.chosen is None else self.decision.chosen[0]


@dataclass(slots=True)
class RecoveryRecord:
    """One recovery as the outside sees it: from the first failure until steps commit again."""

    id: str
    failed_at: float
    step_before: int
    """The newest committed epoch when it began."""
    acted_at: float
    report: Callable[[EventKind, dict[str, Any]], None]
    """Makes an event of the job, in its present generation."""
    replayed: float = 0.0
    """Seconds that ranks have replayed in it."""
    waited: float = 0.0
    """Seconds in which ranks had no place, and waited for another node."""
    marks: list[tuple[str, float]] = field(default_factory=list)
    """Phase and the Unix time at which it ended; of the last attempt."""
    before: int | None = None
    """The newest epoch that is sound, where newer ones may hold wrong numbers."""
    odd: frozenset[int] = frozenset()
    """Ranks whose newer state is unlike their replicas'."""
    apart: bool = False
    """Ranks have restored what was not theirs, or replicas differed."""
    quiet: bool = False
    """Nothing has failed: requested replays that have found no rank are no recovery to report."""
    requested: bool = False
    """All that it is about was requested: no incident."""
    verdict: FailureAssessment | None = None
    """How the last failure in it was judged; None: nothing was lost, or too little is known."""
    bad: set[BadSource] = field(default_factory=set)
    """Sources that turned out not to hold what they promised."""
    chances: int = 3
    """How often all of them are believed once more, where nothing else is left: an agent that was killed while it
    brought a slot back takes nothing with it, and the next one serves what it held."""

    @property
    def cold(self) -> bool:
        """Not every lost rank had a warm standby, as far as that is known."""
        return self.verdict is not None and self.verdict.cost_inputs.pool.standbys < self.verdict.cost_inputs.gone

    @property
    def fenced_from(self) -> float:
        """When the last attempt began, as far as is known."""
        return self.acted_at + self.waited

    def seconds(self) -> dict[str, float]:
        """Phase -> seconds, and their total from the first failure."""
        result = {"detect": max(0.0, self.acted_at - self.failed_at)}
        result |= {"replay": self.replayed} if self.replayed else {}
        result |= {"wait": self.waited} if self.waited else {}
        last = self.fenced_from + self.replayed
        for phase, at in self.marks:
            result[phase] = result.get(phase, 0.0) + at - last  # two fences where a shape changes
            last = at
        return result | {"total": last - self.failed_at}

    def is_uncounted(self) -> bool:
        """Whether there is something that failed, and is to be tried again; it is then forgotten."""
        again = bool(self.bad) and self.chances > 0
        if again:
            self.chances -= 1
            self.bad.clear()
        return again

    def mark(self, phase: str) -> None:
        """``phase`` ends now."""
        self.marks.append((phase, time.time()))

    def emit(self, kind: EventKind, data: dict[str, Any]) -> None:
        """An event of this recovery."""
        if not self.quiet:
            self.report(kind, {"recovery": self.id, **data})

    def begins(self, action: str, detail: str) -> None:
        """``action`` is under way."""
        self.emit(EventKind.ACTION_STARTED, {"action": action, "detail": detail})

    def ends(self, action: str, *, ok: bool, seconds: float | None = None, detail: str = "") -> None:
        """``action`` is over, well or not."""
        took = {} if seconds is None else {"seconds": seconds}
        self.emit(EventKind.ACTION_FINISHED, {"action": action, "detail": detail, "ok": ok, **took})

    def ends_restore(self, rank: int, restore: RestoreOrder, vote: Resumed | None) -> None:
        """Report what ``rank`` answered to ``restore``; a source that failed is left out of further plans."""
        name = f"restore rank {rank}"
        if vote is None:
            self.ends(name, ok=False, detail="no answer")
        elif vote.ok:
            self.ends(name, ok=True, seconds=vote.seconds, detail=f"{vote.nbytes} bytes from {vote.source}")
        else:
            self.ends(name, ok=False, seconds=vote.seconds, detail=vote.reason)
            self.bad.add(failed_sources(rank, restore, vote.blame))
