"""The state of one job, which all parts of its coordinator share, and how they wait for it to change.

What happened goes to ``JobEvents``: only the coordinator decides what follows from a failure or an end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from mainstay.probes.ids import uuid7
from mainstay.recovery.agent.messages import Group
from mainstay.recovery.calibration import Calibration
from mainstay.recovery.checkpoint.catalog import ResumeSource
from mainstay.recovery.controller.failure import GenerationFailure
from mainstay.recovery.controller.planning.measured_costs import MeasuredCosts
from mainstay.recovery.controller.recovery_record import RecoveryRecord
from mainstay.recovery.controller.rollback_history import RollbackHistory
from mainstay.recovery.membership.members import MOVES, CoordinatorJobState, Members
from mainstay.recovery.options import RunOptions
from mainstay.recovery.save_intervals import FailureRate
from mainstay.recovery.telemetry.reporter import Reporter

log = logging.getLogger("mainstay.coordinator")

STEP_SECONDS: Final = 600.0
"""A step that takes longer is taken for a hang, and a planned change stops no rank."""


class JobEvents(Protocol):
    """What the parts of a coordinator tell it."""

    def failed(self, failure: GenerationFailure) -> None:
        """Something is lost, or ranks that were away take part again: the generation ends and a recovery begins."""

    def replay(self, failure: GenerationFailure) -> None:
        """Nothing is lost: all ranks stop for a planned change. No recovery that counts."""

    def fail(self, reason: str, exit_code: int = 1) -> None:
        """The job cannot continue."""

    def finish(self) -> None:
        """All ranks have ended well."""

    def resign(self, reason: str) -> None:
        """Another launcher coordinates this job, or may."""

    def report(self) -> None:
        """What the job report tells has changed."""


@dataclass(eq=False, slots=True)
class Job:
    """One job as its coordinator knows it."""

    options: RunOptions
    """Of the launcher that coordinates."""
    reporter: Reporter
    events: JobEvents
    """Who decides what follows from what happens."""
    term: int = 1
    """How many coordinators this job has had; see ``coordinator_election``."""
    members: Members = field(init=False)
    state: CoordinatorJobState = CoordinatorJobState.FORMING
    generation: int = 0
    inheriting: bool = False
    """This coordinator takes over, and does not know yet what is left."""
    saving: bool = False
    """The last save is under way: the job is over for everybody else."""
    store: tuple[str, int] = ("", 0)
    new_store: Callable[[], tuple[str, int]] = lambda: ("", 0)
    """Gives an empty store; set by whoever can start one before the job forms."""
    started_at: float = field(default_factory=time.time)
    finished_at: float | None = None
    steps_total: int | None = None

    groups: tuple[Group, ...] = ()
    """As the agents were last told: parity and copies that exist belong to them."""
    disk_every: int = field(init=False)
    parity_every: int = field(init=False)
    run: str = field(default_factory=uuid7)
    """Of the checkpoints of this start. It sorts by time, and cannot be guessed."""
    source: ResumeSource | None = None
    """What the job continues from."""

    parameters_equal: bool = True
    """Whether data-parallel peers hold equal parameters at least; checked in the first step."""
    replicated: bool | None = None
    """Whether they hold equal parameters and buffers, as their digests said; None: not known yet."""

    formed_once: bool = False
    recoveries: int = 0
    recovery: RecoveryRecord | None = None
    """Under way; None: ranks train."""
    attempt: asyncio.Task[None] | None = None
    """The recovery, and then its verification."""
    history: RollbackHistory = field(default_factory=RollbackHistory)
    """What the job has gone back from: not to be planned with."""
    prices: MeasuredCosts = field(default_factory=MeasuredCosts)
    calibration: Calibration = field(default_factory=Calibration)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.members = Members(self.options.nnodes, self.options.nproc, self.options.spare_nodes)
        self.disk_every, self.parity_every = self.options.disk_every, self.options.parity_every

    # State

    def move(self, state: CoordinatorJobState) -> None:
        """Go to ``state``; asking for what the table does not have is a bug."""
        if state is self.state and state is not CoordinatorJobState.RECOVERING:
            return
        assert state in MOVES[self.state], f"{self.state} -> {state} is not in the table"
        self.state = state
        self.events.report()

    @property
    def over(self) -> bool:
        return self.saving or not MOVES[self.state]

    @property
    def active(self) -> bool:
        """Whether a recovery is under way (its verification does not count)."""
        return self.recovery is not None

    @property
    def busy(self) -> bool:
        """Whether a recovery is under way, or its verification."""
        return self.attempt is not None and not self.attempt.done()

    @property
    def last_good_epoch(self) -> int | None:
        """The newest epoch that is sound, where newer ones may hold wrong numbers; None: all are."""
        return None if self.recovery is None else self.recovery.before

    @property
    def committed(self) -> int:
        """The newest epoch that any rank is known to have committed."""
        return max((rank.epoch for rank in self.members.ranks), default=0)

    @property
    def begun_at(self) -> int:
        """The epoch with which the run begins."""
        return 0 if self.source is None else self.source.manifest.epoch

    @property
    def disturbed(self) -> bool:
        """Whether something comes before any planned change of the job."""
        return self.over or self.state is not CoordinatorJobState.RUNNING or any(r.gone for r in self.members.ranks)

    @property
    def failure_rate(self) -> FailureRate:
        """How often nodes fail: as was assumed, and as this job has seen."""
        hours = (time.time() - self.started_at) / 3600.0
        return FailureRate(len(self.members.nodes), self.options.mtbf_hours, self.recoveries, hours)

    # Waiting

    async def notify(self) -> None:
        """Something was heard: a task may wait for what just became true."""
        async with self._changed:
            self._changed.notify_all()

    async def until(self, happened: Callable[[], bool], seconds: float | None) -> bool:
        """Wait for something that messages bring about; whether it did within ``seconds``.

        Not by ``asyncio.wait_for``: before Python 3.12 it loses a cancellation that comes in the moment in which the
        thing happens, and a recovery that another failure has ended would continue deciding, with nothing known.
        """
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(happened)
        except TimeoutError:
            return False
        return True

    async def next_step(self) -> str:
        """Wait for the next step to be committed by all: then the least is thrown away. Why not, or nothing."""
        target = self.committed + 1

        def over() -> bool:
            return min(rank.epoch for rank in self.members.ranks) >= target or self.disturbed

        if not await self.until(over, STEP_SECONDS):
            return f"no step was committed within {STEP_SECONDS:g} s"
        return "something failed meanwhile, which comes first" if self.disturbed else ""

    # Tasks

    def failed_soon(self, failure: GenerationFailure) -> None:
        """Report a failure from within a recovery, whose task the next one cancels."""
        asyncio.get_running_loop().call_soon(self.events.failed, failure)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` beside everything else; its failure is the job's."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        with contextlib.suppress(asyncio.CancelledError):
            error = task.exception()
            if error is not None:
                log.error("the coordinator failed", exc_info=error)
                self.events.fail(f"the coordinator failed: {error}")

    def close(self) -> None:
        """Cancel all tasks."""
        for task in self._tasks:
            task.cancel()
