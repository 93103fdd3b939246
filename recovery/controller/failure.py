"""Why a generation ends: something was lost, or the job itself wants all ranks to stop."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import StrEnum

from mainstay.recovery.membership.members import RankMember
from mainstay.recovery.protocol.messages import Exited


class WorkflowName(StrEnum):
    """Planned changes of a job, for which all ranks stop."""

    REPLAY = "replay"
    """All ranks replay steps: one may compute wrongly."""
    MIGRATE = "migrate"
    """Ranks move to other nodes."""
    RESHAPE = "reshape"
    """Ranks are started in another (dp, pp)."""
    SAVE = "save"
    """A step is written to disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTrigger:
    """Why ranks should replay."""

    reason: str
    before: int | None = None
    """The newest epoch that is sound; None: any may be."""
    odd: frozenset[int] = frozenset()
    """Ranks whose state differs from their replicas'."""
    asked: bool = False
    """By a person or a timetable, not by a finding."""


@dataclass(eq=False, slots=True, kw_only=True)
class GenerationFailure:
    """Why a generation ends."""

    reason: str
    ranks: set[int] = field(default_factory=set)
    """Those that are lost, or must go."""
    time: float = field(default_factory=lambda: time.time())  # noqa: PLW0108 - tests replace the clock
    """Unix seconds of the first sign; if not given, now."""
    exit_code: int = 1
    own: bool = False
    """The script's own doing: an exception, or an exit code that it chose."""
    exclude: frozenset[int] = frozenset()
    """Of ``ranks``: those whose devices compute wrongly."""
    replay: ReplayTrigger | None = None
    """Why all ranks are to replay."""
    counts: bool = True
    """Whether ``--max-restarts`` counts it."""
    before: int | None = None
    """The newest epoch that may be gone back to; None: any."""
    odd: frozenset[int] = frozenset()
    """Ranks whose state is unlike their replicas'."""

    erred: int | None = None
    """Rank whose process lives and raised, or first told of a broken collective."""
    workflow: WorkflowName | None = None
    """Nothing is lost, and this is to follow; None: what is lost is restored."""
    requested: bool = False
    """Nothing has failed: an operator or the service asked for it."""
    changes: bool = False
    """Nothing is lost: ranks that were away take part again, or work is assigned again."""

    @property
    def quiet(self) -> bool:
        """Nothing has failed, and there is nothing to report."""
        return not (self.counts or self.changes or self.ranks) or (self.replay is not None and self.replay.asked)

    @classmethod
    def of_exit(cls, rank: RankMember, message: Exited) -> GenerationFailure:
        """A rank's process ended when it should not have."""
        if message.signal is not None:
            return cls.of_signal(rank, message.pid, message.signal, message.time)
        why = f": {rank.error.error}" if rank.error is not None else ""
        reason = f"rank {rank.number} (pid {message.pid}) ended, exit code {message.exit_code}{why}"
        code = message.exit_code or 1
        return cls(ranks={rank.number}, time=message.time, reason=reason, exit_code=code, own=True)

    @classmethod
    def of_signal(cls, rank: RankMember, pid: int, number: int, time: float) -> GenerationFailure:
        """A rank's process was killed, or is being killed."""
        why = f": {rank.error.error}" if rank.error is not None else ""
        reason = f"rank {rank.number} (pid {pid}) ended, killed by signal {number}{why}"
        return cls(ranks={rank.number}, time=time, reason=reason, exit_code=128 + number)


@dataclass(frozen=True, slots=True)
class EndedGeneration:
    """A generation that was fenced."""

    failure: GenerationFailure
    """Why it ended."""
    victims: set[int]
    """Ranks that need a new process."""
    waiting: set[int]
    """The other ranks that live: they leave their collectives."""
