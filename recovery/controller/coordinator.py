"""The coordinator of one job: who is in it, which generation it is in, and what happens when something is lost.

It runs in the launcher of node rank 0 and needs no service: it makes the plan and reports it to the service. Phases
and what may follow what: ``state.job_state``. Every failure, at any moment, leads to the same thing: the generation is
raised, and ``executor`` starts over with what is there then.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from functools import partial
from typing import Final

from mainstay.detectors.hang.detector import HangDetector
from mainstay.detectors.job.numeric_anomalies import NumericAnomalyDetector
from mainstay.probes.core_types import EventKind
from mainstay.recovery.controller.admission_gate import AdmissionGate
from mainstay.recovery.controller.checkpointing import END_SECONDS, STOP_SECONDS, CheckpointManager
from mainstay.recovery.controller.coordinator_lease import CoordinatorLease
from mainstay.recovery.controller.coordinator_server import CoordinatorServer
from mainstay.recovery.controller.coordinator_takeover import CoordinatorTakeover
from mainstay.recovery.controller.exit_handler import ExitHandler
from mainstay.recovery.controller.failure import GenerationFailure
from mainstay.recovery.controller.job import Job, log
from mainstay.recovery.controller.monitors.checkpoint_monitor import LAST_LOOK_SECONDS, CheckpointMonitor
from mainstay.recovery.controller.monitors.durability_monitor import DurabilityMonitor
from mainstay.recovery.controller.monitors.flight_recorder import FlightRecorderCollector
from mainstay.recovery.controller.monitors.hang_monitor import HangMonitor
from mainstay.recovery.controller.monitors.interval_tuning import IntervalTuner
from mainstay.recovery.controller.monitors.numeric_monitor import NumericMonitor
from mainstay.recovery.controller.monitors.start_monitor import StartMonitor
from mainstay.recovery.controller.participation import ParticipationPolicy
from mainstay.recovery.controller.planning.planner_input_builder import PlannerInputBuilder
from mainstay.recovery.controller.planning.strategy_controller import StrategyController
from mainstay.recovery.controller.rank_message_handler import RankMessageHandler
from mainstay.recovery.controller.recovery_executor import RecoveryExecutor
from mainstay.recovery.controller.report import job_report
from mainstay.recovery.controller.state.events import (
    FailureCounted,
    LauncherMessageReceived,
    NodeForgotten,
    NodeLost,
    RanksAssigned,
    RanksLost,
    SavingChanged,
)
from mainstay.recovery.controller.state.job_state import JobPhase
from mainstay.recovery.controller.state_replication import replicate_state
from mainstay.recovery.controller.workflows.registry import Workflows
from mainstay.recovery.membership.coordinator_election import EXIT_LOST, ElectionResult
from mainstay.recovery.membership.members import NodeMember, misfit
from mainstay.recovery.options import RunOptions
from mainstay.recovery.protocol import messages
from mainstay.recovery.telemetry.reporter import Reporter

_REPORT_SECONDS: Final = 0.1  # thousands of ranks start at once: not every new process is a report of all ranks
_FUTILE: Final = 3
"""Failures of the script's own in a row without a single committed step: what failed will fail again."""


class Coordinator:
    """One job: it builds the parts, and decides what follows from what they tell (``JobControl``).

    ``start`` listens; ``outcome`` is set when the job is over.
    """

    def __init__(self, options: RunOptions, reporter: Reporter, term: int = 1) -> None:
        self.job = job = Job(options, reporter, self, term)
        self.outcome: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.checkpoints = CheckpointManager(job)
        job.replicate_state = partial(replicate_state, job, itertools.count(1))
        self.inputs = PlannerInputBuilder(job, self.checkpoints)
        self.participation = ParticipationPolicy(job, self.inputs)
        self.durability = DurabilityMonitor(job, self.participation, self.inputs)
        self.intervals = IntervalTuner(job, self.checkpoints, self.inputs, self.durability)
        self.checkpoint_monitor = CheckpointMonitor(job, self.checkpoints, self.inputs, self.durability)
        self.strategies = StrategyController(job, self.inputs, self.participation, self.durability)
        self.lease = CoordinatorLease(job)
        self.executor = RecoveryExecutor(
            job, self.checkpoints, self.inputs, self.participation, self.durability, self.strategies, self.lease
        )
        self.workflows = Workflows(self.executor)
        self.recorder = FlightRecorderCollector(job)
        self.hangs = HangMonitor(job, HangDetector(), self.recorder)
        self.numerics = NumericMonitor(job, NumericAnomalyDetector(), self.workflows.replays.request_replay)
        self.starts = StartMonitor(job)
        self.exits = ExitHandler(job, self.hangs)
        self.admission = AdmissionGate(job, self.participation, self.inputs, self.form)
        self.takeover: CoordinatorTakeover | None = None
        self.executor.on_rollback.append(self.numerics.went_back)
        self._rank_messages = RankMessageHandler(self.executor, self.numerics, self.workflows, self.recorder)
        self._server = CoordinatorServer(job, self.lease)
        self._futile = 0
        self._resigned = False
        self._report_due = False
        self._epoch_at_failure = -1

    async def start(self, host: str, port: int) -> int:
        """Listen for launchers; returns the port.

        Raises:
            OSError: the port is taken.
        """
        port = await self._server.open(host, port)
        self.job.spawn(self.hangs.run())
        self.job.spawn(self.intervals.run())
        self.job.spawn(self.checkpoint_monitor.run())
        self.job.spawn(self.admission.run())
        return port

    async def succeed(self, won: ElectionResult, host: str) -> int:
        """Take a job over whose coordinator is lost; returns the port.

        Raises:
            OSError: this node cannot listen on ``host``.
        """
        self.takeover = CoordinatorTakeover(self.job, self.executor, self.exits, won)
        port = await self.start(host, 0)
        self.job.spawn(self.takeover.run())
        return port

    async def close(self) -> None:
        self._server.close()
        self.job.close()
        for connection in self.job.connections.values():
            connection.close()

    # The end

    def report(self) -> None:
        """Tell where the job stands, once ranks and their places are known."""
        self._report_due = False
        if self.job.members.ranks and not self.job.state.inheriting and not self._resigned:
            report = job_report(self.job, self.durability.report(), self.workflows.requests)
            self.job.reporter.job(report | self.checkpoint_monitor.report())

    def end(self, state: JobPhase, exit_code: int, reason: str) -> None:
        """The job is over, well or not; what would be lost is saved before the ranks learn of it."""
        if self.job.state.over:
            return
        self.executor.cancel()
        if self.checkpoints.should_save():
            self.job.apply(SavingChanged(saving=True))
            self.job.spawn(self._save_and_end(state, exit_code, reason))
        else:
            self._end(state, exit_code, reason)

    async def _save_and_end(self, state: JobPhase, exit_code: int, reason: str) -> None:
        try:
            await self.checkpoints.save_last(END_SECONDS if state is JobPhase.FINISHED else STOP_SECONDS)
            await self.checkpoint_monitor.refresh(LAST_LOOK_SECONDS)
        finally:
            self.job.apply(SavingChanged(saving=False))
            self._end(state, exit_code, reason)

    def finish(self) -> None:
        """All ranks have ended well."""
        self.end(JobPhase.FINISHED, 0, "")

    def _end(self, state: JobPhase, exit_code: int, reason: str) -> None:
        job = self.job
        job.move(state)
        data = {"state": state.value, "exit_code": exit_code, "reason": reason, "epoch": job.state.committed}
        job.event(EventKind.JOB_FINISHED, data)
        job.broadcast(messages.StopJob(exit_code=exit_code, reason=reason))
        if not self.outcome.done():
            self.outcome.set_result(exit_code)

    def resign(self, reason: str) -> None:
        """Another launcher coordinates this job, or may: end this node's part, and say nothing of the job."""
        job = self.job
        if job.state.over:
            return
        self._resigned = True
        job.move(JobPhase.FAILED)
        log.warning("node %s coordinates no more: %s", job.options.node, reason)
        self.executor.cancel()
        for node in job.members.alive():
            if node.name == job.options.node:
                job.send(node, messages.StopJob(exit_code=EXIT_LOST, reason=f"{reason}: this node ends its ranks"))
            else:
                job.connections[node.name].close()
        if not self.outcome.done():
            self.outcome.set_result(EXIT_LOST)

    def fail(self, reason: str, exit_code: int = 1) -> None:
        """Give the job up, in one clear line."""
        self.end(JobPhase.FAILED, exit_code or 1, f"job {self.job.options.job} failed: {reason}")

    def stopped(self, exit_code: int) -> None:
        """This launcher was asked to end."""
        reason = f"job {self.job.options.job} was stopped at step {self.job.state.committed}"
        self.end(JobPhase.FAILED, exit_code, reason)

    # Nodes

    def misfit(self, hello: messages.LauncherHello) -> str:
        """Why a launcher is none of this job's; empty when it is."""
        if self.takeover is not None:
            return self.takeover.misfit(hello)
        return misfit(hello, self.job.options, self.job.members)

    def joined(self, node: NodeMember) -> None:
        """A launcher is part of the job from now on: it is the last one to come, or it comes back."""
        if self.job.members.ranks and not self.job.state.inheriting:
            self.admission.rejoin(node)
        elif self.takeover is None and self.job.members.complete:
            if problem := self.checkpoints.resolve_on_nodes():
                self.fail(problem, exit_code=2)
            else:
                self.admission.open()

    def run_once(self) -> None:
        """Called every second or so, while this coordinator may act."""
        self.workflows.run_once()
        self.starts.run_once()
        self.report()

    def lose_node(self, node: NodeMember, reason: str) -> None:
        """A node is gone with its memory; its launcher ends its ranks as soon as it notices the same."""
        if not node.alive or (self.job.state.over and not self.job.state.saving):
            return
        self.job.apply(NodeLost(node=node.name, reason=reason))
        self.job.connections[node.name].close()
        self.job.spawn(self.job.notify())
        if self.job.state.saving or self.job.state.inheriting:
            return  # what is saved is saved without it; a takeover recovers all that is lost at once
        if not self.job.members.ranks:
            self.job.apply(NodeForgotten(node=node.name))
            del self.job.connections[node.name]
        elif len(self.lease.unknown()) >= self.job.options.quorum:
            self.job.spawn(self._lose_after_a_look(node, reason))
        else:
            self._lose(node, reason)

    async def _lose_after_a_look(self, node: NodeMember, reason: str) -> None:
        if await self.lease.check():
            self._lose(node, reason)

    def _lose(self, node: NodeMember, reason: str) -> None:
        ranks = {rank.number for rank in self.job.members.on(node.name)}
        self.job.event(EventKind.NODE_LOST, {"reason": reason, "ranks": sorted(ranks)}, node=node.name)
        log.warning("node %s is lost: %s", node.name, reason)
        if ranks or not self.job.options.spare_nodes:
            self.failed(GenerationFailure(ranks=ranks, reason=f"node {node.name} was lost: {reason}"))
            return
        # No rank stops, and a recovery that is under way does not wait for it.
        self.job.replicate_state()
        if self.job.state.phase is JobPhase.RUNNING:
            self.durability.protect()

    # Forming

    def form(self) -> None:
        """All nodes are here: hand out the ranks."""
        job, options = self.job, self.job.options
        data = {"command": [options.script, *options.argv], "world_size": options.world_size, "run": job.state.run}
        job.event(EventKind.JOB_STARTED, data, generation=1)
        job.open_store()
        job.apply(RanksAssigned(homes=job.members.homes(options.world_size), started_at=time.time()))
        self.checkpoints.prefetch()

    # Messages

    async def handle_message(self, node: NodeMember, message: messages.FromLauncher) -> None:
        """One message of a launcher."""
        match message:
            case messages.FromRank():
                self._rank_messages.handle(message)
            case messages.NodeProgress():
                self.hangs.progress(message)
                return  # no caller waits for it
            case messages.Stacks():
                self.hangs.stacks(node, message)
            case messages.Dying():
                self.exits.dying(node, message)
            case messages.Exited():
                self.exits.exited(node, message)
            case messages.RankReports() if self.takeover is not None and self.job.state.inheriting:
                self.takeover.add_reports(node, message)
            case messages.AgentUp() | messages.Fenced() | messages.StandbysReady() | messages.WorkerUp():
                self._hear_of_node(node, message)
            case messages.Saved() | messages.PrefetchResult() | messages.NodeChecked():
                self._handle_answer(node, message)
            case _:
                return
        await self.job.notify()

    def _hear_of_node(
        self, node: NodeMember, message: messages.AgentUp | messages.Fenced | messages.StandbysReady | messages.WorkerUp
    ) -> None:
        if self.job.members.nodes.get(node.name) is not node:
            return  # another launcher has its name now
        self.job.apply(LauncherMessageReceived(node=node.name, message=message))
        if isinstance(message, messages.AgentUp):
            self._agent_up(node)
        elif isinstance(message, messages.WorkerUp) and not self._report_due:
            self._report_due = True
            asyncio.get_running_loop().call_later(_REPORT_SECONDS, self.report)

    def _handle_answer(
        self, node: NodeMember, message: messages.Saved | messages.PrefetchResult | messages.NodeChecked
    ) -> None:
        if isinstance(message, messages.Saved):
            self.checkpoints.saved[node.name] = message.problem
        elif isinstance(message, messages.PrefetchResult):
            self.workflows.migrations.brought(message)
        else:
            self.admission.preflight.answer(message)

    def _agent_up(self, node: NodeMember) -> None:
        """A new agent must be told of its group again, and the others of its new address; the last one may prefetch."""
        self.checkpoints.prefetch()
        if self.job.state.phase is JobPhase.RUNNING and self.job.members.shape is not None:
            log.info("node %s has a new agent at %s", node.name, node.endpoint)
            self.job.replicate_state()
            self.durability.protect()
            self.checkpoints.configure()

    # Failures

    def failed(self, failure: GenerationFailure) -> None:
        """Something is lost. The generation ends in any case and recovery begins, unless it is hopeless."""
        if self.job.state.over:
            return None
        if failure.ranks:
            self.job.apply(RanksLost(ranks=tuple(sorted(failure.ranks))))
        if self.job.state.inheriting or self.participation.can_absorb(failure):
            return None  # recovered with all that is lost, as soon as that is known; or no rank waits for it
        if failure.counts:
            self.job.apply(FailureCounted())
        if self.job.state.committed > self._epoch_at_failure:
            self._futile = 0
        self._futile += failure.own
        self._epoch_at_failure = self.job.state.committed
        if self.job.state.recoveries > self.job.options.max_restarts:
            why = f"{failure.reason}; --max-restarts {self.job.options.max_restarts} are used up"
            return self.fail(why, failure.exit_code)
        if self._futile >= _FUTILE:
            why = f"{failure.reason}; the script failed {_FUTILE} times in a row without a committed step between"
            return self.fail(why, failure.exit_code)
        log.warning("%s", failure.reason)
        return self.replay(failure)

    def store_ended(self, status: str) -> None:
        """Nothing is lost: all ranks meet again, in another store."""
        if self.job.state.over:
            return
        self.job.open_store()
        self.failed(GenerationFailure(reason=f"the store ended ({status})"))

    def replay(self, failure: GenerationFailure) -> None:
        """Nothing is lost: the generation ends so that all ranks can replay. No recovery that counts."""
        self.job.move(JobPhase.RECOVERING)
        self.job.begin_generation(failure.reason)
        self.executor.begin_recovery(failure)
