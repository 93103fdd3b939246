"""The coordinator of one job: who is in it, which generation it is in, and what happens when something is lost.

It runs in the launcher of node rank 0 and needs no service: it makes the plan and reports it to the service. States
and what may follow what: ``membership.MOVES``. Every failure, at any moment, leads to the same thing: the generation is
raised, and ``executor`` starts over with what is there then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any, Final

from mainstay.detectors.hang.detector import HangDetector
from mainstay.detectors.job.numeric_anomalies import NumericAnomalyDetector
from mainstay.probes.core_types import EventKind
from mainstay.recovery.launcher.admission_gate import AdmissionGate
from mainstay.recovery.launcher.checkpointing import END_SECONDS, STOP_SECONDS, CheckpointManager
from mainstay.recovery.launcher.coordinator_election import EXIT_LOST, ElectionResult
from mainstay.recovery.launcher.coordinator_lease import CoordinatorLease
from mainstay.recovery.launcher.coordinator_server import CoordinatorServer
from mainstay.recovery.launcher.coordinator_takeover import CoordinatorTakeover
from mainstay.recovery.launcher.exit_handler import ExitHandler
from mainstay.recovery.launcher.hang_monitor import HangMonitor
from mainstay.recovery.launcher.interval_tuning import IntervalTuner
from mainstay.recovery.launcher.launcher_commands import LauncherCommands
from mainstay.recovery.launcher.membership import MOVES, CoordinatorJobState, GenerationFailure, Members, NodeMember
from mainstay.recovery.launcher.messages import (
    AgentUp,
    Dying,
    Exited,
    Fenced,
    FromLauncher,
    FromRank,
    NodeProgress,
    PrefetchResult,
    RankReports,
    Saved,
    Stacks,
    StandbysReady,
    StopJob,
    WorkerUp,
)
from mainstay.recovery.launcher.migration_controller import MigrationController
from mainstay.recovery.launcher.numeric_monitor import NumericMonitor
from mainstay.recovery.launcher.options import RunOptions
from mainstay.recovery.launcher.rank_message_handler import RankMessageHandler
from mainstay.recovery.launcher.recovery_executor import RecoveryExecutor
from mainstay.recovery.launcher.report import job_report
from mainstay.recovery.launcher.reporter import Reporter
from mainstay.recovery.launcher.step_replay import StepReplayController

log = logging.getLogger("mainstay.coordinator")

STEP_SECONDS: Final = 600.0
"""A step that takes longer is taken for a hang, and a planned change stops no rank."""
_FUTILE: Final = 3
"""Failures of the script's own in a row without a single committed step: what failed will fail again."""


class Coordinator:
    """One job. ``start`` listens; ``outcome`` is set when the job is over."""

    def __init__(self, options: RunOptions, reporter: Reporter, term: int = 1) -> None:
        self.options = options
        self.term = term
        """How many coordinators this job has had; see ``election``."""
        self.reporter = reporter
        self.store = ("", 0)
        self.new_store: Callable[[], tuple[str, int]] = lambda: ("", 0)
        """Gives an empty store; set by whoever can start one before ``start``."""
        self.members = Members(options.nnodes, options.nproc, options.spare_nodes)
        self.generation = 0
        self.state = CoordinatorJobState.FORMING
        self.started_at = time.time()
        self.finished_at: float | None = None
        self.steps_total: int | None = None
        self.recoveries = 0
        self.changed = asyncio.Condition()
        self.outcome: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.tuning = IntervalTuner(self)
        self.disk = CheckpointManager(self)
        self.orders = LauncherCommands(self)
        self.executor = RecoveryExecutor(self)
        self.exits = ExitHandler(self)
        self.hangs = HangMonitor(self, HangDetector())
        self.replays = StepReplayController(self)
        self.sick = NumericMonitor(self, NumericAnomalyDetector())
        self.migrations = MigrationController(self)
        self.lease = CoordinatorLease(self)
        self.admission = AdmissionGate(self)
        self.inheritance: CoordinatorTakeover | None = None
        self._inbox = RankMessageHandler(self)
        self._coordinator_server = CoordinatorServer(self)
        self._futile = 0
        self._resigned = False
        self._epoch_at_failure = -1
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> int:
        """Listen for launchers; returns the port.

        Raises:
            OSError: the port is taken.
        """
        port = await self._coordinator_server.open(host, port)
        self.spawn(self.hangs.run())
        self.spawn(self.tuning.run())
        self.spawn(self.admission.run())
        return port

    async def succeed(self, won: ElectionResult, host: str) -> int:
        """Take a job over whose coordinator is lost; returns the port.

        Raises:
            OSError: this node cannot listen on ``host``.
        """
        self.inheritance = CoordinatorTakeover(self, won)
        port = await self.start(host, 0)
        self.spawn(self.inheritance.run())
        return port

    async def close(self) -> None:
        self._coordinator_server.close()
        for task in self._tasks:
            task.cancel()
        for node in self.members.nodes.values():
            node.hang_up()

    # State

    def move(self, state: CoordinatorJobState) -> None:
        """Go to ``state``; asking for what the table does not have is a bug."""
        if state is self.state and state is not CoordinatorJobState.RECOVERING:
            return
        assert state in MOVES[self.state], f"{self.state} -> {state} is not in the table"
        self.state = state
        self.report()

    @property
    def over(self) -> bool:
        return self.disk.saving or not MOVES[self.state]

    @property
    def inheriting(self) -> bool:
        """It takes over, and does not know yet what is left."""
        return self.inheritance is not None and self.inheritance.open

    @property
    def committed(self) -> int:
        """The newest epoch that any rank is known to have committed."""
        return max((rank.epoch for rank in self.members.ranks), default=0)

    @property
    def disturbed(self) -> bool:
        """Whether something comes before any planned change of the job."""
        return self.over or self.state is not CoordinatorJobState.RUNNING or any(r.gone for r in self.members.ranks)

    async def next_step(self) -> str:
        """Wait for the next step to be committed by all: then the least is thrown away. Why not, or nothing."""
        target = self.committed + 1

        def over() -> bool:
            return min(rank.epoch for rank in self.members.ranks) >= target or self.disturbed

        if not await self.executor.until(over, STEP_SECONDS):
            return f"no step was committed within {STEP_SECONDS:g} s"
        return "something failed meanwhile, which comes first" if self.disturbed else ""

    def report(self) -> None:
        """Tell where the job stands, once ranks and their places are known."""
        if self.members.ranks and not self.inheriting and not self._resigned:
            self.reporter.job(job_report(self))

    def end(self, state: CoordinatorJobState, exit_code: int, reason: str) -> None:
        """The job is over, well or not; what would be lost is saved before the ranks learn of it."""
        if self.over:
            return
        self.executor.cancel()
        if self.disk.should_save():
            self.disk.saving = True
            self.spawn(self._save_and_end(state, exit_code, reason))
        else:
            self._end(state, exit_code, reason)

    async def _save_and_end(self, state: CoordinatorJobState, exit_code: int, reason: str) -> None:
        try:
            await self.disk.save_last(END_SECONDS if state is CoordinatorJobState.FINISHED else STOP_SECONDS)
        finally:
            self.disk.saving = False
            self._end(state, exit_code, reason)

    def finish(self) -> None:
        """All ranks have ended well."""
        self.end(CoordinatorJobState.FINISHED, 0, "")

    def _end(self, state: CoordinatorJobState, exit_code: int, reason: str) -> None:
        self.finished_at = time.time()
        self.move(state)
        data = {"state": state.value, "exit_code": exit_code, "reason": reason, "epoch": self.committed}
        self.reporter.event(EventKind.JOB_FINISHED, generation=self.generation, data=data)
        for node in self.members.alive():
            node.send(StopJob(exit_code=exit_code, reason=reason))
        if not self.outcome.done():
            self.outcome.set_result(exit_code)

    def resign(self, reason: str) -> None:
        """Another launcher coordinates this job, or may: end this node's part, and say nothing of the job."""
        if self.over:
            return
        self._resigned, self.state = True, CoordinatorJobState.FAILED
        log.warning("node %s coordinates no more: %s", self.options.node, reason)
        self.executor.cancel()
        for node in self.members.alive():
            if node.name == self.options.node:
                node.send(StopJob(exit_code=EXIT_LOST, reason=f"{reason}: this node ends its ranks"))
            else:
                node.hang_up()
        if not self.outcome.done():
            self.outcome.set_result(EXIT_LOST)

    def fail(self, reason: str, exit_code: int = 1) -> None:
        """Give the job up, in one clear line."""
        self.end(CoordinatorJobState.FAILED, exit_code or 1, f"job {self.options.job} failed: {reason}")

    def stopped(self, exit_code: int) -> None:
        """This launcher was asked to end."""
        self.end(CoordinatorJobState.FAILED, exit_code, f"job {self.options.job} was stopped at step {self.committed}")

    # Nodes

    def lose_node(self, node: NodeMember, reason: str) -> None:
        """A node is gone with its memory; its launcher ends its ranks as soon as it notices the same."""
        if not node.alive or (self.over and not self.disk.saving):
            return
        node.alive = False
        node.hang_up()
        if self.disk.saving:  # what is saved is saved without it
            self.spawn(self._notify())
            return
        if self.inheriting:
            return
        if not self.members.ranks:
            del self.members.nodes[node.name]
        elif self.lease.is_uncertain:
            self.spawn(self._lose_after_a_look(node, reason))
        else:
            self._lose(node, reason)

    async def _lose_after_a_look(self, node: NodeMember, reason: str) -> None:
        if await self.lease.check():
            self._lose(node, reason)

    def _lose(self, node: NodeMember, reason: str) -> None:
        ranks = {rank.number for rank in self.members.on(node.name)}
        data = {"reason": reason, "ranks": sorted(ranks)}
        self.reporter.event(EventKind.NODE_LOST, node=node.name, generation=self.generation, data=data)
        log.warning("node %s is lost: %s", node.name, reason)
        if self.options.spare_nodes and not ranks:
            self.spawn(self.orders.lose_spare_node())
        else:
            self.failed(GenerationFailure(ranks=ranks, time=time.time(), reason=f"node {node.name} was lost: {reason}"))

    # Forming

    def form(self) -> None:
        """All nodes are here: hand out the ranks."""
        self.members.reassign(self.options.world_size)
        self.generation = 1
        self.started_at = time.time()
        command = [self.options.script, *self.options.argv]
        data = {"command": command, "world_size": self.options.world_size, "run": self.disk.run}
        self.reporter.event(EventKind.JOB_STARTED, generation=1, data=data)
        self.store = self.new_store()
        self.orders.replicate_state()
        for rank in self.members.ranks:
            self.orders.start(rank)

    def formed(self) -> None:
        """Every rank has voted for its epoch: training runs, and what protects it is set up for this membership."""
        self.move(CoordinatorJobState.RUNNING)
        self.orders.protect()
        self.disk.configure()
        self.executor.prepare()
        self.orders.replicate_state()

    # Messages

    async def handle_message(self, node: NodeMember, message: FromLauncher) -> None:
        """One message of a launcher."""
        match message:
            case FromRank():
                self._inbox.handle(message)
            case NodeProgress():
                self.hangs.progress(message)
                return  # no caller waits for it
            case Stacks():
                self.hangs.stacks(node, message)
            case Dying() | Exited() | WorkerUp() | RankReports():
                self._hear_of_processes(node, message)
            case Fenced():
                node.confirms_fence(message.generation, message.inventory)
            case Saved():
                self.disk.saved[node.name] = message.problem
            case PrefetchResult():
                self.migrations.brought(message)
            case StandbysReady():
                node.standbys = message.count
            case AgentUp():
                node.endpoint = message.endpoint
                self._agent_up(node)
            case _:
                return
        await self._notify()

    async def _notify(self) -> None:
        """A task may wait for what just became true."""
        async with self.changed:
            self.changed.notify_all()

    def _hear_of_processes(self, node: NodeMember, message: Dying | Exited | WorkerUp | RankReports) -> None:
        if isinstance(message, Dying):
            self.exits.dying(node, message)
        elif isinstance(message, Exited):
            self.exits.exited(node, message)
        elif isinstance(message, WorkerUp):
            self.members.up(message.rank, message.pid)
            self.report()
        elif self.inheritance is not None and self.inheriting:
            self.inheritance.add_reports(node, message)

    def _agent_up(self, node: NodeMember) -> None:
        """A new agent must be told of its group again, and the others of its new address."""
        if self.state is CoordinatorJobState.RUNNING and self.members.shape is not None:
            log.info("node %s has a new agent at %s", node.name, node.endpoint)
            self.orders.replicate_state()
            self.orders.protect()
            self.disk.configure()

    # Failures

    def failed(self, failure: GenerationFailure) -> None:
        """Something is lost. The generation ends in any case and recovery begins, unless it is hopeless."""
        if self.over:
            return None
        for number in failure.ranks:
            self.members.ranks[number].lost = True
            self.members.ranks[number].live = False
        if self.inheriting or self.executor.participation.can_absorb(failure):
            return None  # recovered with all that is lost, as soon as that is known; or no rank waits for it
        self.recoveries += failure.counts
        if self.committed > self._epoch_at_failure:
            self._futile = 0
        self._futile += failure.own
        self._epoch_at_failure = self.committed
        if self.recoveries > self.options.max_restarts:
            return self.fail(
                f"{failure.reason}; --max-restarts {self.options.max_restarts} are used up", failure.exit_code
            )
        if self._futile >= _FUTILE:
            why = f"{failure.reason}; the script failed {_FUTILE} times in a row without a committed step between"
            return self.fail(why, failure.exit_code)
        log.warning("%s", failure.reason)
        self.move(CoordinatorJobState.RECOVERING)
        self.generation += 1
        self.executor.begin_recovery(failure)
        return None

    def store_ended(self, status: str) -> None:
        """Nothing is lost: all ranks meet again, in another store."""
        if self.over:
            return
        self.store = self.new_store()
        self.failed(GenerationFailure(ranks=set(), time=time.time(), reason=f"the store ended ({status})"))

    def replay(self, failure: GenerationFailure) -> None:
        """Nothing is lost: the generation ends so that all ranks can replay. No recovery that counts."""
        self.move(CoordinatorJobState.RECOVERING)
        self.generation += 1
        self.executor.begin_recovery(failure)

    # Tasks

    def spawn(self, work: Any) -> asyncio.Task[None]:
        """Run ``work`` beside everything else; its failure is the job's."""
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        with contextlib.suppress(asyncio.CancelledError):
            error = task.exception()
            if error is not None:
                log.error("the coordinator failed", exc_info=error)
                self.fail(f"the coordinator failed: {error}")
