"""One job as all parts of its coordinator share it: its state, what they use, and how they wait for a change.

An event that is applied changes the state (``state.reducer``), and its effects are carried out here and nowhere else.
What follows from a failure or an end only the coordinator decides: ``JobControl``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from mainstay.probes.core_types import EventKind
from mainstay.probes.ids import uuid7
from mainstay.recovery.calibration import Calibration
from mainstay.recovery.checkpoint.catalog import ResumeSource
from mainstay.recovery.controller.failure import GenerationFailure
from mainstay.recovery.controller.launcher_connection import LauncherConnection
from mainstay.recovery.controller.planning.measured_costs import MeasuredCosts
from mainstay.recovery.controller.recovery_record import RecoveryRecord
from mainstay.recovery.controller.rollback_history import RollbackHistory
from mainstay.recovery.controller.state.effects import Effect, SendToLauncher
from mainstay.recovery.controller.state.events import (
    GenerationBegun,
    JobEvent,
    PhaseChanged,
    StoreOpened,
    WarningsChanged,
)
from mainstay.recovery.controller.state.job_state import JobPhase, JobState
from mainstay.recovery.controller.state.reducer import reduce
from mainstay.recovery.membership.members import Members, NodeMember
from mainstay.recovery.node_warning import NodeWarnings
from mainstay.recovery.options import RunOptions
from mainstay.recovery.protocol.messages import FromLauncher, LauncherHello, ToLauncher
from mainstay.recovery.protocol.worker_messages import Regroup, RestoreOrder
from mainstay.recovery.save_intervals import FailureRate
from mainstay.recovery.telemetry.reporter import Reporter

log = logging.getLogger("mainstay.coordinator")
"""Of all parts of a coordinator."""

STEP_SECONDS: Final = 600.0
"""A step that takes longer is taken for a hang, and a planned change stops no rank."""


class JobControl(Protocol):
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

    def misfit(self, hello: LauncherHello) -> str:
        """Why a launcher is none of this job's; empty when it is."""

    def joined(self, node: NodeMember) -> None:
        """A launcher is part of the job from now on."""

    async def handle_message(self, node: NodeMember, message: FromLauncher) -> None:
        """A launcher said something."""

    def lose_node(self, node: NodeMember, reason: str) -> None:
        """A launcher's connection broke, or it is silent."""

    def run_once(self) -> None:
        """Called every second or so, while the coordinator may act."""


@dataclass(eq=False, slots=True)
class Job:
    """One a coordinator."""

    options: RunOptions
    """Of the launcher that coordinates."""
    reporter: Reporter
    control: JobControl
    """Who decides what follows from what happens."""
    term: int = 1
    """How many coordinators this job has had; see ``coordinator_election``."""
    state: JobState = field(init=False)
    connections: dict[str, LauncherConnection] = field(default_factory=dict)
    """Node -> connection to its launcher."""
    new_store: Callable[[], tuple[str, int]] = lambda: ("", 0)
    """Gives an empty store; set by whoever can start one before the job forms."""
    replicate_state: Callable[[], None] = lambda: None
    """Tells launchers what is to be known when this coordinator dies."""
    record: Callable[[JobEvent, list[Effect]], None] = lambda _, __: None
    """Keeps an event that was applied, and its effects."""
    source: ResumeSource | None = None
    """What the job continues from."""
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
        self.state = JobState.new(self.options, time.time(), uuid7())  # a run's id sorts by time

    def event(self, kind: EventKind, data: dict[str, Any], **about: Any) -> None:
        """Report an event of the job: of its present generation, unless ``about`` names another one."""
        self.reporter.event(kind, data, **({"generation": self.state.generation} | about))

    # State

    @property
    def members(self) -> Members:
        return self.state.members

    def apply(self, event: JobEvent) -> None:
        """Change the state by ``event``, and carry out its effects."""
        effects = reduce(self.state, event)
        self.record(event, effects)
        for effect in effects:
            if isinstance(effect, SendToLauncher):
                self.send(self.members.nodes[effect.node], effect.message)
            else:
                self.replicate_state()

    def send(self, node: NodeMember, message: ToLauncher) -> None:
        """Send ``message`` to the launcher of ``node``; nothing where it is lost."""
        if node.alive:
            self.connections[node.name].send(message)

    def broadcast(self, message: ToLauncher) -> None:
        """Send ``message`` to every launcher that is left."""
        for node in self.members.alive():
            self.send(node, message)

    def ask_ranks(self, asked: Collection[int], question: Callable[[tuple[int, ...]], ToLauncher]) -> None:
        """Send each launcher the ``question`` to those of the ranks that have a process there."""
        for node, here in self.members.alive_with_ranks():
            mine = tuple(rank.number for rank in here if rank.number in asked and rank.pid)
            if mine:
                self.send(node, question(mine))

    def move(self, phase: JobPhase) -> None:
        """Go to ``phase``; asking for what the table of transitions does not have is a bug."""
        if phase is not self.state.phase or phase is JobPhase.RECOVERING:
            self.apply(PhaseChanged(phase=phase, at=time.time()))
            self.control.report()

    def begin_generation(self, reason: str) -> None:
        """Number the generation that begins; a fence carries it to launchers and ranks."""
        self.apply(GenerationBegun(reason=reason))

    def open_store(self) -> None:
        """Have ranks meet in another store."""
        host, port = self.new_store()
        self.apply(StoreOpened(host=host, port=port))

    def warn(self, warnings: NodeWarnings) -> None:
        """Replace what is known of nodes that are not trusted."""
        if warnings != self.members.warnings:
            self.apply(WarningsChanged(warnings=warnings))

    def regroup_order(self, restore: RestoreOrder | None, **more: Any) -> Regroup:
        """The order to form the present generation with ``restore``; ``more`` are further fields of it."""
        host, port = self.state.store
        return Regroup(generation=self.state.generation, store_host=host, store_port=port, restore=restore, **more)

    @property
    def active(self) -> bool:
        """Whether a recovery is under way (its verification does not count)."""
        return self.recovery is not None

    @property
    def busy(self) -> bool:
        """Whether a recovery is under way, or its verification."""
        return self.attempt is not None and not self.attempt.done()

    @property
    def begun_at(self) -> int:
        """The epoch with which the run begins."""
        return 0 if self.source is None else self.source.manifest.epoch

    @property
    def failure_rate(self) -> FailureRate:
        """How often nodes fail: as was assumed, and as this job has seen."""
        hours = (time.time() - self.state.started_at) / 3600.0
        return FailureRate(len(self.members.nodes), self.options.mtbf_hours, self.state.recoveries, hours)

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
        target = self.state.committed + 1

        def over() -> bool:
            return all(rank.epoch >= target for rank in self.members.ranks) or self.state.disturbed

        if not await self.until(over, STEP_SECONDS):
            return f"no step was committed within {STEP_SECONDS:g} s"
        return "something failed meanwhile, which comes first" if self.state.disturbed else ""

    # Tasks

    def failed_soon(self, failure: GenerationFailure) -> None:
        """Report a failure from within a recovery, whose task the next one cancels."""
        asyncio.get_running_loop().call_soon(self.control.failed, failure)

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
                self.control.fail(f"the coordinator failed: {error}")

    def close(self) -> None:
        """Cancel all tasks."""
        for task in self._tasks:
            task.cancel()
