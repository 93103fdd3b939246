"""A coordinator that takes over: it waits for the launchers that are left, learns what runs, and recovers the rest.

The last coordinator's state comes from a replica, and reports of ranks from the launchers. From then on it is
as after any loss: the generation is raised, ranks that are gone move to standbys, survivors meet them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

import msgspec

from mainstay.probes.core_types import EventKind
from mainstay.recovery.calibration import Calibration
from mainstay.recovery.launcher.coordinator_election import ElectionResult
from mainstay.recovery.launcher.coordinator_state import ElectionMember
from mainstay.recovery.launcher.membership import GenerationFailure, NodeMember, RankMember, misfit
from mainstay.recovery.launcher.messages import LauncherHello, RankReport, RankReports
from mainstay.recovery.launcher.worker_messages import (
    Attached,
    FromWorker,
    Joined,
    RankDone,
    Resumed,
    ScriptFailed,
    StepRecord,
    StepsTotal,
)
from mainstay.recovery.mesh_shape import MeshShape
from mainstay.recovery.work_assignment import LossPolicy

if TYPE_CHECKING:
    from mainstay.recovery.launcher.coordinator import Coordinator

log = logging.getLogger("mainstay.coordinator")


class CoordinatorTakeover:
    """One a takeover. While it is ``open`` failures are noted, and recovered all at once when it ends."""

    def __init__(self, coordinator: Coordinator, won: ElectionResult) -> None:
        self._c = coordinator
        self._won = won
        self._present: set[str] = set()
        """Nodes whose ledger has come."""
        self._excluded = {elector.node: elector.excluded for elector in won.coordinator_state.electors}
        self.open = True
        self._take()

    def _take(self) -> None:
        c, coordinator_state = self._c, self._won.coordinator_state
        for elector in coordinator_state.electors:
            c.members.nodes[elector.node] = _absent(c, elector)
        c.members.ranks = [
            RankMember(rank, coordinator_state.electors[home].node, lost=True)
            for rank, home in enumerate(coordinator_state.homes)
        ]
        c.generation, c.recoveries, c.started_at = (
            self._won.generation,
            coordinator_state.recoveries,
            coordinator_state.started_at,
        )
        c.members.warnings = msgspec.structs.replace(coordinator_state.warnings)
        c.orders.groups = coordinator_state.groups
        c.disk.run = coordinator_state.run
        c.tuning.disk_every, c.tuning.parity_every = coordinator_state.disk_every, coordinator_state.parity_every
        c.executor.formed_once = coordinator_state.formed_once
        survey = c.executor.survey
        survey.parameters_equal, survey.replicated = coordinator_state.parameters_equal, coordinator_state.replicated
        survey.prices.inherit(coordinator_state.prices)
        c.executor.judge.calibration = Calibration(dict(coordinator_state.accuracy))
        for epoch, generation in coordinator_state.returns:
            survey.history.record_rollback(epoch, generation)

    def misfit(self, hello: LauncherHello) -> str:
        """Why a launcher is none of this job's; empty when it is."""
        options, node = self._c.options, self._c.members.nodes.get(hello.node)
        if options.spare_nodes and not self.open and (node is None or node.hello.pid != hello.pid):
            return misfit(hello, options, self._c.members)
        if node is None or node.hello.node_rank != hello.node_rank:
            return f"node {hello.node} was no part of this job when its coordinator was lost"
        again = node.hello.pid != hello.pid
        if self.open:
            known = f"{options.node} takes over now, and knows another launcher here: start it once more"
            return known if again else ""
        if options.on_loss is LossPolicy.WAIT:
            return "this node was given up: the job has gone on without it (--on-loss drop would take it back)"
        if not again:
            return "this node was given up: the job has gone on without it, and takes back what is started again"
        return misfit(hello, options, self._c.members)

    def add_reports(self, node: NodeMember, ledger: RankReports) -> None:
        """All that a node's launcher knows of its ranks."""
        for words in ledger.ranks:
            if words.rank < len(self._c.members.ranks):
                self._recall(node, words)
        node.excluded = self._excluded.get(node.name, 0)
        self._present.add(node.name)

    def _recall(self, node: NodeMember, words: RankReport) -> None:
        c, rank = self._c, self._c.members.ranks[words.rank]
        if not rank.lost and rank.node != node.name:  # two nodes hold it: its order to move was the last thing said
            log.warning("rank %d is on %s and on %s: both are replaced", rank.number, rank.node, node.name)
            rank.lost, rank.live = True, False
            return
        rank.node, rank.pid, rank.lost = node.name, words.pid, False
        for word in words.words:
            self._hear(rank, word)
        if words.exited is not None:
            c.exits.exited(node, words.exited)

    def _hear(self, rank: RankMember, word: FromWorker) -> None:
        match word:
            case Joined():
                self._c.members.shape = MeshShape(dp=word.dp, pp=word.pp, tp=word.tp, depths=word.depths)
                rank.joined, rank.joined_at = word.generation, time.time()
            case Attached():
                rank.attached = word
            case Resumed():
                rank.live = word.ok
                rank.epoch = max(rank.epoch, word.epoch) if word.ok else rank.epoch
            case StepRecord():
                rank.epoch, rank.epoch_generation = max(rank.epoch, word.epoch), word.generation
                executor = self._c.executor
                executor.participation.learn(rank, word)
                executor.survey.step_took(word.step_time)
                executor.judge.committed(rank.number, word)
            case StepsTotal():
                self._c.steps_total = word.total
            case RankDone():
                rank.done, rank.epoch = True, word.epoch
            case ScriptFailed():
                rank.error = word
            case _:
                return

    async def run(self) -> None:
        """Wait for the launchers, for a node time-out at most; then continue with those that came."""
        c = self._c
        deadline = asyncio.get_running_loop().time() + c.options.node_seconds
        expected = {e.node for e in self._won.coordinator_state.electors if e.alive} - {self._won.predecessor}
        while asyncio.get_running_loop().time() < deadline and not expected <= self._present:
            try:
                async with asyncio.timeout_at(deadline), c.changed:
                    await c.changed.wait()
            except TimeoutError:
                break
        self.open = False
        self._begin()

    def _begin(self) -> None:
        c = self._c
        lost_at = time.time() - (asyncio.get_running_loop().time() - self._won.lost.heard_at)
        for elector in self._won.coordinator_state.electors:
            node = c.members.nodes[elector.node]
            node.alive = node.alive and elector.node in self._present
            if elector.alive and not node.alive:
                ranks = sorted(rank.number for rank in c.members.on(elector.node))
                data = {"reason": self._won.lost.reason, "ranks": ranks, "coordinator": c.options.node, "term": c.term}
                c.reporter.event(
                    EventKind.NODE_LOST, time_=lost_at, node=elector.node, generation=c.generation, data=data
                )
        lost = {rank.number for rank in c.members.ranks if rank.lost or not c.members.nodes[rank.node].alive}
        now = f"node {c.options.node} coordinates now (term {c.term})"
        reason = f"{self._won.lost.reason}; {now}, ranks {sorted(lost)} are lost"
        c.store = c.new_store()  # the last one ended with the coordinator, or is on the other side
        if not c.over:
            c.failed(GenerationFailure(ranks=lost, time=lost_at, reason=reason))


def _absent(c: Coordinator, elector: ElectionMember) -> NodeMember:
    options = c.options
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
