"""The state of one job: its phase and generation, its nodes and ranks. ``reducer`` is the only module that changes it.

Data and questions about it. What depends on a clock, a file, or a connection is ``controller.job``'s.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Final

from mainstay.recovery.agent.messages import Group
from mainstay.recovery.membership.members import Members
from mainstay.recovery.options import RunOptions
from mainstay.recovery.work_assignment import LossPolicy

WORTH_STEPS: Final = 5
"""Fewer steps before the end are not worth stopping for: to take ranks back may repeat one."""


class JobPhase(StrEnum):
    """``TRANSITIONS`` is the table of what may follow what."""

    FORMING = "forming"
    RUNNING = "running"
    RECOVERING = "recovering"
    FINISHED = "finished"
    FAILED = "failed"


TRANSITIONS: dict[JobPhase, dict[JobPhase, str]] = {
    JobPhase.FORMING: {
        JobPhase.RUNNING: "every rank has voted for the first epoch, or the script does not use the SDK",
        JobPhase.RECOVERING: "a rank or node was lost before training began",
        JobPhase.FINISHED: "every rank has ended well",
        JobPhase.FAILED: "nodes did not come in time, or the job was stopped",
    },
    JobPhase.RUNNING: {
        JobPhase.RECOVERING: "a rank or node was lost, or a collective failed",
        JobPhase.FINISHED: "every rank has ended well",
        JobPhase.FAILED: "the job was stopped",
    },
    JobPhase.RECOVERING: {
        JobPhase.RECOVERING: "another failure: the same again with a higher generation",
        JobPhase.RUNNING: "every rank has voted for the restored epoch",
        JobPhase.FINISHED: "every rank has ended well",
        JobPhase.FAILED: "no plan is feasible, or too many recoveries, or the job was stopped",
    },
    JobPhase.FINISHED: {},
    JobPhase.FAILED: {},
}


@dataclass(eq=False, slots=True)
class JobState:
    """One job as its coordinator knows it."""

    members: Members
    started_at: float
    """Unix seconds."""
    run: str
    """Of the checkpoints of this start."""
    disk_every: int = 0
    parity_every: int = 0
    on_loss: LossPolicy = LossPolicy.WAIT
    """As the job was started; a request to continue without a node may change it."""
    dp: int = 0
    """As the job was started, until its script has said its shape; 0: not given."""
    pp: int = 0
    tp: int = 0
    phase: JobPhase = JobPhase.FORMING
    generation: int = 0
    inheriting: bool = False
    """This coordinator takes over, and does not know yet what is left."""
    saving: bool = False
    """The last save is under way: the job is over for everybody else."""
    store: tuple[str, int] = ("", 0)
    """Host and port where ranks meet."""
    finished_at: float | None = None
    steps_total: int | None = None
    groups: tuple[Group, ...] = ()
    """As the agents were last told: parity and copies that exist belong to them."""
    parameters_equal: bool = True
    """Whether data-parallel peers hold equal parameters and optimizer tensors; checked in the first step."""
    replicated: bool | None = None
    """Whether they hold equal buffers too, as their digests said; None: not known yet."""
    formed_once: bool = False
    recoveries: int = 0
    """Failures that ``--max-restarts`` counts."""

    @classmethod
    def new(cls, options: RunOptions, started_at: float, run: str) -> JobState:
        """The state of a job that begins with ``options``."""
        members = Members(options.nnodes, options.nproc, options.spare_nodes)
        return cls(
            members, started_at, run, options.disk_every, options.parity_every, options.on_loss,
            options.dp, options.pp, options.tp,
        )  # fmt: skip

    @property
    def over(self) -> bool:
        return self.saving or not TRANSITIONS[self.phase]

    @property
    def committed(self) -> int:
        """The newest epoch that any rank is known to have committed."""
        return max((rank.epoch for rank in self.members.ranks), default=0)

    @property
    def ends_soon(self) -> bool:
        """The end is too near to change anything."""
        late = self.steps_total is not None and self.committed + WORTH_STEPS > self.steps_total
        return late or self.over or any(rank.gone for rank in self.members.ranks)

    @property
    def disturbed(self) -> bool:
        """Whether something comes before any planned change of the job."""
        return self.over or self.phase is not JobPhase.RUNNING or any(r.gone for r in self.members.ranks)


FIELDS: Final = frozenset(field.name for field in fields(JobState))
"""By their names: the state that is replicated, a recording's header, and some events have part of them."""
