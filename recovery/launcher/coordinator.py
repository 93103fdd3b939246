"""The coordinator of one job: who is in it, which generation it is in, and what happens when something is lost.

It runs in the launcher of node rank 0 and needs nobody else: the plan is made here, the service is only told. States
and what may follow what: ``membership.MOVES``. Every failure, at any moment, leads to the same thing: the generation is
raised, and ``healing`` starts over with what is there then.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import time
from collections.abc import Callable
from typing import Any, Final

from detectors.hang import HangDetector
from detectors.sick import SickDetector
from probes.words import EventKind
from recovery.agent.messages import GroupMember
from recovery.launcher.hangs import HangWatch
from recovery.launcher.healing import Healing
from recovery.launcher.inbox import Inbox
from recovery.launcher.membership import MOVES, Failure, JobState, Members, Node, Rank, misfit
from recovery.launcher.messages import (
    AgentUp,
    Exited,
    Fenced,
    FromLauncher,
    FromRank,
    LauncherHello,
    NodeProgress,
    Nothing,
    Parity,
    Regroup,
    RegroupRank,
    Stacks,
    StandbysReady,
    Start,
    Stop,
    Training,
    Welcome,
    WorkerUp,
)
from recovery.launcher.options import RunOptions
from recovery.launcher.replay import Replays
from recovery.launcher.report import exit_data, job_report
from recovery.launcher.reporter import JOB_SECONDS, Reporter
from recovery.launcher.sick import SickWatch
from recovery.launcher.wire import Stream, WireError, coordinator_side

log = logging.getLogger("mainstay.coordinator")

_FUTILE: Final = 3
"""Failures of the script's own in a row without a single committed step: what failed will fail again."""


class Coordinator:
    """One job. ``start`` listens; ``outcome`` is set when the job is over."""

    def __init__(self, options: RunOptions, reporter: Reporter) -> None:
        self.options = options
        self.reporter = reporter
        self.store = ("", 0)
        self.new_store: Callable[[], tuple[str, int]] = lambda: ("", 0)
        """Gives an empty store; set by whoever can start one before ``start``."""
        self.members = Members(options.nnodes, options.nproc)
        self.generation = 0
        self.state = JobState.FORMING
        self.started_at = time.time()
        self.finished_at: float | None = None
        self.steps_total: int | None = None
        self.recoveries = 0
        self.parity_group: tuple[GroupMember, ...] = ()
        """As the agents were last told: rows that exist belong to it."""
        self.changed = asyncio.Condition()
        self.outcome: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.healing = Healing(self)
        self.hangs = HangWatch(self, HangDetector())
        self.replays = Replays(self)
        self.sick = SickWatch(self, SickDetector())
        self._inbox = Inbox(self)
        self._futile = 0
        self._epoch_at_failure = -1
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen for launchers; returns the port.

        Raises:
            OSError: the port is taken.
        """
        self._server = await asyncio.start_server(self._accept, host, port)
        self.spawn(self._watch())
        self.spawn(self.hangs.run())
        self.spawn(self._wait_for_nodes())
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        for node in self.members.nodes.values():
            node.stream.close()

    # State

    def move(self, state: JobState) -> None:
        """Go to ``state``; asking for what the table does not have is a bug."""
        if state is self.state and state is not JobState.RECOVERING:
            return
        assert state in MOVES[self.state], f"{self.state} -> {state} is not in the table"
        self.state = state
        self.report()

    @property
    def over(self) -> bool:
        return not MOVES[self.state]

    @property
    def committed(self) -> int:
        """The newest epoch that any rank is known to have committed."""
        return max((rank.epoch for rank in self.members.ranks), default=0)

    def report(self) -> None:
        """Tell where the job stands, once ranks and their places are known."""
        if self.members.ranks:
            self.reporter.job(job_report(self))

    def end(self, state: JobState, exit_code: int, reason: str) -> None:
        """The job is over, well or not."""
        if self.over:
            return
        self.finished_at = time.time()
        self.move(state)
        data = {"state": state.value, "exit_code": exit_code, "reason": reason, "epoch": self.committed}
        self.reporter.event(EventKind.JOB_FINISHED, generation=self.generation, data=data)
        self.healing.cancel()
        for node in self.members.alive():
            node.send(Stop(exit_code=exit_code, reason=reason))
        if not self.outcome.done():
            self.outcome.set_result(exit_code)

    def fail(self, reason: str, exit_code: int = 1) -> None:
        """Give the job up, in one clear line."""
        self.end(JobState.FAILED, exit_code or 1, f"job {self.options.job} failed: {reason}")

    def stopped(self, exit_code: int) -> None:
        """Somebody asked this launcher to end."""
        self.end(JobState.FAILED, exit_code, f"job {self.options.job} was stopped at step {self.committed}")

    # Nodes

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.spawn(self._listen(coordinator_side(reader, writer)))

    async def _listen(self, stream: Stream[FromLauncher]) -> None:
        """One launcher's connection, from its hello to its end."""
        node: Node | None = None
        try:
            hello = await asyncio.wait_for(stream.receive(), 10.0)
            node = self._admit(hello, stream)
            while node is not None and (message := await stream.receive()) is not None:
                node.heard_at = asyncio.get_running_loop().time()
                await self._handle(node, message)
        except (WireError, TimeoutError) as error:
            log.warning("a connection was closed: %s", error)
        finally:
            stream.close()
            if node is not None:
                self.lose_node(node, "its launcher's connection broke")

    def _admit(self, hello: FromLauncher | None, stream: Stream[FromLauncher]) -> Node | None:
        if not isinstance(hello, LauncherHello) or not hmac.compare_digest(hello.token, self.options.token):
            return None
        problem = misfit(hello, self.options, self.members)
        if problem:
            log.warning("node %s was turned away: %s", hello.node, problem)
            stream.send(Stop(exit_code=2, reason=f"the coordinator turned this node away: {problem}"))
            return None
        now = asyncio.get_running_loop().time()
        node = Node(hello, stream, now, hello.agent_endpoint, hello.standbys)
        self.members.nodes[hello.node] = node
        node.send(Welcome(world_size=self.options.world_size))
        self.spawn(self._beat(node))
        if self.members.complete:
            self._form()
        return node

    async def _beat(self, node: Node) -> None:
        while node.alive:
            node.send(Nothing())
            await asyncio.sleep(self.options.node_seconds / 5)

    async def _watch(self) -> None:
        """Silence is loss; and the job is reported every now and then."""
        while True:
            await asyncio.sleep(min(JOB_SECONDS, self.options.node_seconds / 5))
            limit = asyncio.get_running_loop().time() - self.options.node_seconds
            for node in self.members.alive():
                if node.heard_at < limit:
                    self.lose_node(node, f"nothing heard for {self.options.node_seconds:g} s")
            self.report()

    async def _wait_for_nodes(self) -> None:
        await asyncio.sleep(self.options.join_seconds)
        if not self.members.complete and not self.members.ranks:
            here = ", ".join(self.members.nodes) or "none"
            self.fail(f"{self.options.nnodes} nodes were expected within {self.options.join_seconds:g} s, here: {here}")

    def lose_node(self, node: Node, reason: str) -> None:
        """A node is gone with its memory; its launcher ends its ranks as soon as it notices the same."""
        if not node.alive or self.over:
            return
        node.alive = False
        node.stream.close()
        ranks = {rank.number for rank in self.members.on(node.name)}
        if not self.members.ranks:
            del self.members.nodes[node.name]
            return
        data = {"reason": reason, "ranks": sorted(ranks)}
        self.reporter.event(EventKind.NODE_LOST, node=node.name, generation=self.generation, data=data)
        log.warning("node %s is lost: %s", node.name, reason)
        self.failed(Failure(ranks=ranks, time=time.time(), reason=f"node {node.name} was lost: {reason}"))

    # Forming

    def _form(self) -> None:
        """All nodes are here: hand out the ranks."""
        self.members.place_ranks()
        self.generation = 1
        self.started_at = time.time()
        data = {"command": [self.options.script, *self.options.argv], "world_size": self.options.world_size}
        self.reporter.event(EventKind.JOB_STARTED, generation=1, data=data)
        self.store = self.new_store()
        for rank in self.members.ranks:
            self.start_rank(rank)

    def start_rank(self, rank: Rank) -> None:
        """Have the rank's node give it a process."""
        host, port = self.store
        start = Start(rank=rank.number, generation=self.generation, store_host=host, store_port=port)
        self.members.nodes[rank.node].send(start)

    def regroup(self, orders: dict[int, Regroup]) -> None:
        """Tell every rank to form the present generation; ``orders`` holds what they restore."""
        host, port = self.store
        # One digest at the very first step tells whether replicas are replicas: a job may shard its state among them.
        plain = Regroup(generation=self.generation, store_host=host, store_port=port, digest_steps=1)
        for rank in self.members.ranks:
            order = orders.get(rank.number, plain)
            self.members.nodes[rank.node].send(RegroupRank(rank=rank.number, order=order))

    def formed(self) -> None:
        """Every rank has voted for its epoch: training runs, and what protects it is set up for this membership."""
        self.move(JobState.RUNNING)
        self._configure_parity()
        self.healing.prepare()

    def _configure_parity(self) -> None:
        self.parity_group = self.members.parity_group() if self.options.parity_every else ()
        every = self.options.parity_every if self.parity_group else 0
        for node in self.members.alive():
            node.send(Parity(group=self.parity_group, every=every))

    # Messages

    async def _handle(self, node: Node, message: FromLauncher) -> None:
        match message:
            case FromRank():
                self._inbox.take(message)
            case NodeProgress():
                self.hangs.progress(message)
                return  # nobody waits for it
            case Stacks():
                self.hangs.stacks(node, message)
            case Exited():
                self._exited(node, message)
            case WorkerUp():
                self.members.ranks[message.rank].pid = message.pid
                self.report()
            case Fenced():
                node.fenced = max(node.fenced, message.generation)
                node.inventory = message.inventory
            case StandbysReady():
                node.standbys = message.count
            case AgentUp():
                node.endpoint = message.endpoint
                self._agent_up(node)
            case _:
                return
        async with self.changed:
            self.changed.notify_all()

    def _agent_up(self, node: Node) -> None:
        """A new agent must be told of its group again, and the others of its new address."""
        if self.state is JobState.RUNNING and self.members.shape is not None:
            log.info("node %s has a new agent at %s", node.name, node.endpoint)
            self._configure_parity()

    # Failures

    def _exited(self, node: Node, message: Exited) -> None:
        rank = self.members.ranks[message.rank]
        if rank.pid != message.pid or self.over:
            return None
        rank.pid = None
        self.hangs.ended(rank.number)
        if message.exit_code == 0 and not message.expected:
            return self._finished(rank)
        rank.lost, rank.live = True, False
        self.reporter.event(
            EventKind.PROCESS_EXIT,
            time_=message.time,
            node=node.name,
            rank=rank.number,
            generation=self.generation,
            data=exit_data(rank, message),
        )
        if message.expected:
            return None  # we ended it: whoever asked for that goes on by itself
        return self.failed(Failure.of_exit(rank, message))

    def _finished(self, rank: Rank) -> None:
        rank.finished = True
        if all(r.finished for r in self.members.ranks):
            self.end(JobState.FINISHED, 0, "")
        self.report()

    def failed(self, failure: Failure) -> None:
        """Something is lost. Whatever was going on, the generation ends and healing begins, unless it is hopeless."""
        if self.over:
            return None
        for number in failure.ranks:
            self.members.ranks[number].lost = True
            self.members.ranks[number].live = False
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
        self.move(JobState.RECOVERING)
        self.generation += 1
        self.healing.begin(failure)
        return None

    def replay(self, failure: Failure) -> None:
        """Nothing is lost: the generation ends so that all ranks can replay. No recovery that counts."""
        self.move(JobState.RECOVERING)
        self.generation += 1
        self.healing.begin(failure)

    def going_on(self) -> None:
        """The first step after a recovery is committed: standbys may warm now."""
        for node in self.members.alive():
            node.send(Training())

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
