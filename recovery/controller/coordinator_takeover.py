"""A coordinator that takes over: it waits for the launchers that are left, learns what runs, and recovers the rest.

The last coordinator's state comes from a replica, and reports of ranks from the launchers. From then on it is
as after any loss: the generation is raised, ranks that are gone move to standbys, survivors meet them.
"""

from __future__ import annotations

import asyncio
import logging
import time

import msgspec

from mainstay.probes.core_types import EventKind
from mainstay.recovery.calibration import Calibration
from mainstay.recovery.controller.exit_handler import ExitHandler
from mainstay.recovery.controller.failure import GenerationFailure
from mainstay.recovery.controller.job import Job
from mainstay.recovery.controller.recovery_executor import RecoveryExecutor
from mainstay.recovery.membership.coordinator_election import ElectionResult
from mainstay.recovery.membership.members import NodeMember, RankMember, misfit
from mainstay.recovery.mesh_shape import MeshShape
from mainstay.recovery.options import RunOptions
from mainstay.recovery.protocol.coordinator_state import ElectionMember
from mainstay.recovery.protocol.messages import LauncherHello, RankReport, RankReports
from mainstay.recovery.protocol.worker_messages import (
    Attached,
    FromWorker,
    Joined,
    RankDone,
    Resumed,
    ScriptFailed,
    StepRecord,
    StepsTotal,
)
from mainstay.recovery.work_assignment import LossPolicy

log = logging.getLogger("mainstay.coordinator")


class CoordinatorTakeover:
    """One a takeover. While the job is ``inheriting`` failures are noted, and recovered all at once when it ends."""

    def __init__(self, job: Job, executor: RecoveryExecutor, exits: ExitHandler, won: ElectionResult) -> None:
        self._job = job
        self._executor = executor
        self._exits = exits
        self._won = won
        self._present: set[str] = set()
        """Nodes whose ledger has come."""
        self._excluded = {elector.node: elector.excluded for elector in won.coordinator_state.electors}
        job.inheriting = True
        self._inherit()

    def _inherit(self) -> None:
        job, coordinator_state = self._job, self._won.coordinator_state
        for elector in coordinator_state.electors:
            job.members.nodes[elector.node] = _absent(job.options, elector)
        job.members.ranks = [
            RankMember(rank, coordinator_state.electors[home].node, lost=True)
            for rank, home in enumerate(coordinator_state.homes)
        ]
        job.generation, job.recoveries, job.started_at = (
            self._won.generation,
            coordinator_state.recoveries,
            coordinator_state.started_at,
        )
        job.members.warnings = msgspec.structs.replace(coordinator_state.warnings)
        job.groups = coordinator_state.groups
        job.run = coordinator_state.run
        job.disk_every, job.parity_every = coordinator_state.disk_every, coordinator_state.parity_every
        job.formed_once = coordinator_state.formed_once
        job.parameters_equal, job.replicated = coordinator_state.parameters_equal, coordinator_state.replicated
        job.prices.inherit(coordinator_state.prices)
        job.calibration = Calibration(dict(coordinator_state.accuracy))
        for epoch, generation in coordinator_state.returns:
            job.history.record_rollback(epoch, generation)

    def misfit(self, hello: LauncherHello) -> str:
        """Why a launcher is none of this job's; empty when it is."""
        options, node = self._job.options, self._job.members.nodes.get(hello.node)
        if options.spare_nodes and not self._job.inheriting and (node is None or node.hello.pid != hello.pid):
            return misfit(hello, options, self._job.members)
        if node is None or node.hello.node_rank != hello.node_rank:
            return f"node {hello.node} was no part of this job when its coordinator was lost"
        again = node.hello.pid != hello.pid
        if self._job.inheriting:
            known = f"{options.node} takes over now, and knows another launcher here: start it once more"
            return known if again else ""
        if options.on_loss is LossPolicy.WAIT:
            return "this node was given up: the job has gone on without it (--on-loss drop would take it back)"
        if not again:
            return "this node was given up: the job has gone on without it, and takes back what is started again"
        return misfit(hello, options, self._job.members)

    def add_reports(self, node: NodeMember, ledger: RankReports) -> None:
        """All that a node's launcher knows of its ranks."""
        for words in ledger.ranks:
            if words.rank < len(self._job.members.ranks):
                self._recall(node, words)
        node.excluded = self._excluded.get(node.name, 0)
        self._present.add(node.name)

    def _recall(self, node: NodeMember, words: RankReport) -> None:
        rank = self._job.members.ranks[words.rank]
        if not rank.lost and rank.node != node.name:  # two nodes hold it: its order to move was the last thing said
            log.warning("rank %d is on %s and on %s: both are replaced", rank.number, rank.node, node.name)
            rank.lost, rank.live = True, False
            return
        rank.node, rank.pid, rank.lost = node.name, words.pid, False
        for word in words.words:
            self._hear(rank, word)
        if words.exited is not None:
            self._exits.exited(node, words.exited)

    def _hear(self, rank: RankMember, word: FromWorker) -> None:
        match word:
            case Joined():
                self._job.members.shape = MeshShape(dp=word.dp, pp=word.pp, tp=word.tp, depths=word.depths)
                rank.joined, rank.joined_at = word.generation, time.time()
            case Attached():
                rank.attached = word
            case Resumed():
                rank.live = word.ok
                rank.epoch = max(rank.epoch, word.epoch) if word.ok else rank.epoch
            case StepRecord():
                rank.epoch, rank.epoch_generation = max(rank.epoch, word.epoch), word.generation
                executor = self._executor
                executor.participation.learn(rank, word)
                executor.inputs.step_took(word.step_time)
                executor.strategies.committed(rank.number, word)
            case StepsTotal():
                self._job.steps_total = word.total
            case RankDone():
                rank.done, rank.epoch = True, word.epoch
            case ScriptFailed():
                rank.error = word
            case _:
                return

    async def run(self) -> None:
        """Wait for the launchers, for a node time-out at most; then continue with those that came."""
        job = self._job
        expected = {e.node for e in self._won.coordinator_state.electors if e.alive} - {self._won.predecessor}
        await job.until(lambda: expected <= self._present, job.options.node_seconds)
        job.inheriting = False
        self._begin()

    def _begin(self) -> None:
        job = self._job
        lost_at = time.time() - (asyncio.get_running_loop().time() - self._won.lost.heard_at)
        for elector in self._won.coordinator_state.electors:
            node = job.members.nodes[elector.node]
            node.alive = node.alive and elector.node in self._present
            if elector.alive and not node.alive:
                ranks = sorted(rank.number for rank in job.members.on(elector.node))
                data = {
                    "reason": self._won.lost.reason,
                    "ranks": ranks,
                    "coordinator": job.options.node,
                    "term": job.term,
                }
                job.reporter.event(
                    EventKind.NODE_LOST, time_=lost_at, node=elector.node, generation=job.generation, data=data
                )
        lost = {rank.number for rank in job.members.ranks if rank.lost or not job.members.nodes[rank.node].alive}
        now = f"node {job.options.node} coordinates now (term {job.term})"
        reason = f"{self._won.lost.reason}; {now}, ranks {sorted(lost)} are lost"
        job.store = job.new_store()  # the last one ended with the coordinator, or is on the other side
        if not job.over:
            job.events.failed(GenerationFailure(ranks=lost, time=lost_at, reason=reason))


def _absent(options: RunOptions, elector: ElectionMember) -> NodeMember:
    hello = LauncherHello(
        token="",
        job=options.job,
        node=elector.node,
        node_rank=elector.node_rank,
        nnodes=options.nnodes,
        spare_nodes=options.spare_nodes,
        nproc=elector.nproc,
        spares=elector.spares,
        standbys=0,
        pid=elector.pid,
        agent_endpoint=elector.agent_endpoint,
        election_endpoint=elector.election_endpoint,
        domain=elector.domain,
    )
    now = asyncio.get_running_loop().time()
    return NodeMember(hello, None, now, elector.agent_endpoint, 0, alive=False, excluded=elector.excluded)
