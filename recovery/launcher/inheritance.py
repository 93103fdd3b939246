"""A coordinator that takes over: it waits for the launchers that are left, learns what runs, and heals the rest.

What the last coordinator knew comes from its testament, what ranks said from the launchers' ledgers. From then on it is
as after any loss: the generation is raised, ranks that are gone move to standbys, survivors meet them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from probes.words import EventKind
from recovery.deal import OnLoss
from recovery.launcher.legacy import Elector
from recovery.launcher.membership import Failure, Node, Rank, misfit
from recovery.launcher.messages import LauncherHello, Ledger, RankWords
from recovery.launcher.succession import Won
from recovery.launcher.worker_messages import (
    Attached,
    Done,
    FromWorker,
    Joined,
    Resumed,
    ScriptFailed,
    StepRecord,
    StepsTotal,
)
from recovery.regret import Calibration
from recovery.shape import Shape

if TYPE_CHECKING:
    from recovery.launcher.coordinator import Coordinator

log = logging.getLogger("mainstay.coordinator")


class Inheritance:
    """One a takeover. While it is ``open`` failures are noted, and healed all at once when it ends."""

    def __init__(self, coordinator: Coordinator, won: Won) -> None:
        self._c = coordinator
        self._won = won
        self._present: set[str] = set()
        """Nodes whose ledger has come."""
        self._shunned = {elector.node: elector.shunned for elector in won.testament.electors}
        self.open = True
        self._take()

    def _take(self) -> None:
        c, testament = self._c, self._won.testament
        for elector in testament.electors:
            c.members.nodes[elector.node] = _absent(c, elector)
        c.members.ranks = [
            Rank(rank, testament.electors[home].node, lost=True) for rank, home in enumerate(testament.homes)
        ]
        c.generation, c.recoveries, c.started_at = self._won.generation, testament.recoveries, testament.started_at
        c.orders.groups = testament.groups
        c.disk.run = testament.run
        c.tuning.disk_every, c.tuning.parity_every = testament.disk_every, testament.parity_every
        c.healing.formed_once = testament.formed_once
        survey = c.healing.survey
        survey.parameters_equal, survey.replicated = testament.parameters_equal, testament.replicated
        survey.prices.inherit(testament.prices)
        c.healing.judge.calibration = Calibration(dict(testament.fared))
        for epoch, generation in testament.returns:
            survey.history.went_back(epoch, generation)

    def misfit(self, hello: LauncherHello) -> str:
        """Why a launcher is none of this job's; empty when it is."""
        options, node = self._c.options, self._c.members.nodes.get(hello.node)
        if node is None or node.hello.node_rank != hello.node_rank:
            return f"node {hello.node} was no part of this job when its coordinator was lost"
        again = node.hello.pid != hello.pid
        if self.open:
            known = f"{options.node} takes over now, and knows another launcher here: start it once more"
            return known if again else ""
        if options.on_loss is OnLoss.WAIT:
            return "this node was given up: the job has gone on without it (--on-loss drop would take it back)"
        if not again:
            return "this node was given up: the job has gone on without it, and takes back what is started again"
        return misfit(hello, options, self._c.members)

    def hear(self, node: Node, ledger: Ledger) -> None:
        """All that a node's launcher knows of its ranks."""
        for words in ledger.ranks:
            if words.rank < len(self._c.members.ranks):
                self._recall(node, words)
        node.shunned = self._shunned.get(node.name, 0)
        self._present.add(node.name)

    def _recall(self, node: Node, words: RankWords) -> None:
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

    def _hear(self, rank: Rank, word: FromWorker) -> None:
        match word:
            case Joined():
                self._c.members.shape = Shape(dp=word.dp, pp=word.pp, tp=word.tp, depths=word.depths)
                rank.joined, rank.joined_at = word.generation, time.time()
            case Attached():
                rank.attached = word
            case Resumed():
                rank.live = word.ok
                rank.epoch = max(rank.epoch, word.epoch) if word.ok else rank.epoch
            case StepRecord():
                rank.epoch, rank.epoch_generation = max(rank.epoch, word.epoch), word.generation
                healing = self._c.healing
                healing.attendance.learn(rank, word)
                healing.survey.step_took(word.step_time)
                healing.judge.committed(rank.number, word)
            case StepsTotal():
                self._c.steps_total = word.total
            case Done():
                rank.done, rank.epoch = True, word.epoch
            case ScriptFailed():
                rank.error = word
            case _:
                return

    async def run(self) -> None:
        """Wait for the launchers, for a node time-out at most; then go on with those that came."""
        c = self._c
        deadline = asyncio.get_running_loop().time() + c.options.node_seconds
        expected = {e.node for e in self._won.testament.electors if e.alive} - {self._won.predecessor}
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
        for elector in self._won.testament.electors:
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
            c.failed(Failure(ranks=lost, time=lost_at, reason=reason))


def _absent(c: Coordinator, elector: Elector) -> Node:
    options = c.options
    hello = LauncherHello(
        token="",
        job=options.job,
        node=elector.node,
        node_rank=elector.node_rank,
        nnodes=options.nnodes,
        nproc=elector.nproc,
        spares=elector.spares,
        standbys=0,
        pid=elector.pid,
        agent_endpoint=elector.agent_endpoint,
        door=elector.door,
        domain=elector.domain,
    )
    return Node(hello, None, 0.0, elector.agent_endpoint, 0, alive=False, shunned=elector.shunned)
