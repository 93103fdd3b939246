"""A coordinator that takes over: it waits for the launchers that are left, learns what runs, and recovers the rest.

The last coordinator's state comes from a replica, and reports of ranks from the launchers. From then on it is
as after any loss: the generation is raised, ranks that are gone move to standbys, survivors meet them.
"""

from __future__ import annotations

import asyncio
import time

from mainstay.probes.core_types import EventKind
from mainstay.recovery.calibration import Calibration
from mainstay.recovery.controller.exit_handler import ExitHandler
from mainstay.recovery.controller.failure import GenerationFailure
from mainstay.recovery.controller.job import Job, log
from mainstay.recovery.controller.launcher_connection import LauncherConnection
from mainstay.recovery.controller.planning.measured_costs import MeasuredCosts
from mainstay.recovery.controller.recovery_executor import RecoveryExecutor
from mainstay.recovery.controller.state.events import (
    NodeReportReceived,
    RankReportReceived,
    RanksLost,
    TakeoverCompleted,
    TakeoverStarted,
)
from mainstay.recovery.controller.state_replication import SAID
from mainstay.recovery.membership.coordinator_election import ElectionResult
from mainstay.recovery.membership.members import NodeMember, misfit
from mainstay.recovery.options import RunOptions
from mainstay.recovery.protocol.coordinator_state import ElectionMember
from mainstay.recovery.protocol.messages import LauncherHello, RankReport, RankReports
from mainstay.recovery.protocol.worker_messages import StepRecord
from mainstay.recovery.work_assignment import LossPolicy


class CoordinatorTakeover:
    """One a takeover. While the job is ``inheriting`` failures are noted, and recovered all at once when it ends."""

    def __init__(self, job: Job, executor: RecoveryExecutor, exits: ExitHandler, won: ElectionResult) -> None:
        self._job = job
        self._executor = executor
        self._exits = exits
        self._won = won
        self._present: set[str] = set()
        """Nodes whose ledger has come."""
        coordinator_state = won.coordinator_state
        self._excluded = {elector.node: elector.excluded for elector in coordinator_state.electors}
        for elector in coordinator_state.electors:
            job.connections[elector.node] = LauncherConnection(None, asyncio.get_running_loop().time())
        hellos = tuple(_hello(job.options, elector) for elector in coordinator_state.electors)
        job.apply(TakeoverStarted(state=coordinator_state, generation=won.generation, hellos=hellos))
        job.prices = MeasuredCosts(dict(coordinator_state.prices))
        job.calibration = Calibration(dict(coordinator_state.accuracy))
        run, before, directory = coordinator_state.resumed, coordinator_state.begun_at + 1, job.options.checkpoint_dir
        if run is not None and directory is not None and job.begun_at >= before:
            executor.checkpoints.resolve(run, directory, (run, before))
        for epoch, generation in coordinator_state.returns:
            job.history.record_rollback(epoch, generation)

    def misfit(self, hello: LauncherHello) -> str:
        """Why a launcher is none of this job's; empty when it is."""
        options, node = self._job.options, self._job.members.nodes.get(hello.node)
        if options.spare_nodes and not self._job.state.inheriting and (node is None or node.hello.pid != hello.pid):
            return misfit(hello, options, self._job.members)
        if node is None or node.hello.node_rank != hello.node_rank:
            return f"node {hello.node} was no part of this job when its coordinator was lost"
        again = node.hello.pid != hello.pid
        if self._job.state.inheriting:
            known = f"{options.node} takes over now, and knows another launcher here: start it once more"
            return known if again else ""
        if self._job.state.on_loss is LossPolicy.WAIT:
            return "this node was given up: the job has gone on without it (--on-loss drop would take it back)"
        if not again:
            return "this node was given up: the job has gone on without it, and takes back what is started again"
        return misfit(hello, options, self._job.members)

    def add_reports(self, node: NodeMember, ledger: RankReports) -> None:
        """All that a node's launcher knows of its ranks."""
        for report in ledger.ranks:
            if report.rank < len(self._job.members.ranks):
                self._recall(node, report)
        self._job.apply(NodeReportReceived(node=node.name, excluded=self._excluded.get(node.name, 0)))
        self._present.add(node.name)

    def _recall(self, node: NodeMember, report: RankReport) -> None:
        rank = self._job.members.ranks[report.rank]
        if not rank.lost and rank.node != node.name:  # two nodes hold it: its order to move was the last thing said
            log.warning("rank %d is on %s and on %s: both are replaced", rank.number, rank.node, node.name)
            self._job.apply(RanksLost(ranks=(rank.number,)))
            return
        self._job.apply(RankReportReceived(node=node.name, report=report, at=time.time()))
        executor = self._executor
        for step in [said for said in report.words if isinstance(said, StepRecord)]:
            executor.participation.learn(rank, step)
            executor.inputs.step_took(rank.number, step)
            executor.strategies.committed(rank.number, step)
        if report.exited is not None:
            self._exits.exited(node, report.exited)

    async def run(self) -> None:
        """Wait for the launchers, for a node time-out at most; then continue with those that came."""
        job = self._job
        expected = {e.node for e in self._won.coordinator_state.electors if e.alive} - {self._won.predecessor}
        await job.until(lambda: expected <= self._present, job.options.node_seconds)
        job.apply(TakeoverCompleted(present=tuple(sorted(self._present))))
        self._begin()

    def _begin(self) -> None:
        job = self._job
        lost_at = time.time() - (asyncio.get_running_loop().time() - self._won.lost.heard_at)
        for elector in self._won.coordinator_state.electors:
            if elector.alive and not job.members.nodes[elector.node].alive:
                ranks = sorted(rank.number for rank in job.members.on(elector.node))
                data = {
                    "reason": self._won.lost.reason,
                    "ranks": ranks,
                    "coordinator": job.options.node,
                    "term": job.term,
                }
                job.event(EventKind.NODE_LOST, data, time_=lost_at, node=elector.node)
        lost = {rank.number for rank in job.members.ranks if rank.lost or not job.members.nodes[rank.node].alive}
        now = f"node {job.options.node} coordinates now (term {job.term})"
        reason = f"{self._won.lost.reason}; {now}, ranks {sorted(lost)} are lost"
        job.open_store()  # the last one ended with the coordinator, or is on the other side
        unknown = self._executor.checkpoints.unresolved
        if unknown and not job.state.formed_once:  # found on the nodes' disks by the coordinator that was lost
            job.control.fail(f"{now}, and does not know the step to begin with: {unknown}")
        if not job.state.over:
            job.control.failed(GenerationFailure(ranks=lost, time=lost_at, reason=reason))


def _hello(options: RunOptions, elector: ElectionMember) -> LauncherHello:
    said = {name: getattr(elector, name) for name in SAID}
    return LauncherHello(job=options.job, nnodes=options.nnodes, spare_nodes=options.spare_nodes, standbys=0, **said)
