"""The coordinator of one job: who is in it, which generation it is in, and what happens when something is lost.

It runs in the launcher of node rank 0 and needs nobody else: the plan is made here, the service is only told. States
and what may follow what: ``membership.MOVES``. Every failure, at any moment, leads to the same thing: the generation is
raised, and ``healing`` starts over with what is there then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any, Final

from detectors.hang import HangDetector
from detectors.sick import SickDetector
from probes.words import EventKind
from recovery.launcher.disk_level import END_SECONDS, STOP_SECONDS, DiskLevel, Reply
from recovery.launcher.exits import Exits
from recovery.launcher.hangs import HangWatch
from recovery.launcher.healing import Healing
from recovery.launcher.inbox import Inbox
from recovery.launcher.inheritance import Inheritance
from recovery.launcher.membership import MOVES, Failure, JobState, Members, Node
from recovery.launcher.messages import (
    AgentUp,
    Brought,
    Dying,
    Exited,
    Fenced,
    FromLauncher,
    FromRank,
    Ledger,
    NodeProgress,
    Saved,
    Stacks,
    StandbysReady,
    Stop,
    WorkerUp,
)
from recovery.launcher.migration import Migrations
from recovery.launcher.options import RunOptions
from recovery.launcher.orders import Orders
from recovery.launcher.reception import Reception
from recovery.launcher.replay import Replays
from recovery.launcher.report import job_report
from recovery.launcher.reporter import Reporter
from recovery.launcher.sick import SickWatch
from recovery.launcher.standing import Standing
from recovery.launcher.succession import EXIT_LOST, Won
from recovery.launcher.tuning import Tuning

log = logging.getLogger("mainstay.coordinator")

_FUTILE: Final = 3
"""Failures of the script's own in a row without a single committed step: what failed will fail again."""


class Coordinator:
    """One job. ``start`` listens; ``outcome`` is set when the job is over."""

    def __init__(self, options: RunOptions, reporter: Reporter, term: int = 1) -> None:
        self.options = options
        self.term = term
        """How many coordinators this job has had; see ``succession``."""
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
        self.changed = asyncio.Condition()
        self.outcome: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.tuning = Tuning(self)
        self.disk = DiskLevel(self)
        self.orders = Orders(self)
        self.healing = Healing(self)
        self.exits = Exits(self)
        self.hangs = HangWatch(self, HangDetector())
        self.replays = Replays(self)
        self.sick = SickWatch(self, SickDetector())
        self.migrations = Migrations(self)
        self.standing = Standing(self)
        self.inheritance: Inheritance | None = None
        self._inbox = Inbox(self)
        self._reception = Reception(self)
        self._futile = 0
        self._resigned = False
        self._epoch_at_failure = -1
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> int:
        """Listen for launchers; returns the port.

        Raises:
            OSError: the port is taken.
        """
        port = await self._reception.open(host, port)
        self.spawn(self.hangs.run())
        self.spawn(self.tuning.run())
        return port

    async def succeed(self, won: Won, host: str) -> int:
        """Take a job over whose coordinator is lost; returns the port.

        Raises:
            OSError: this node cannot listen on ``host``.
        """
        self.inheritance = Inheritance(self, won)
        port = await self.start(host, 0)
        self.spawn(self.inheritance.run())
        return port

    async def close(self) -> None:
        self._reception.close()
        for task in self._tasks:
            task.cancel()
        for node in self.members.nodes.values():
            node.hang_up()

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
        return self.disk.saving or not MOVES[self.state]

    @property
    def inheriting(self) -> bool:
        """It takes over, and does not know yet what is left."""
        return self.inheritance is not None and self.inheritance.open

    @property
    def committed(self) -> int:
        """The newest epoch that any rank is known to have committed."""
        return max((rank.epoch for rank in self.members.ranks), default=0)

    def report(self) -> None:
        """Tell where the job stands, once ranks and their places are known."""
        if self.members.ranks and not self.inheriting and not self._resigned:
            self.reporter.job(job_report(self))

    def end(self, state: JobState, exit_code: int, reason: str) -> None:
        """The job is over, well or not; what would be lost is saved before everybody is told."""
        if self.over:
            return
        self.healing.cancel()
        if self.disk.worth_saving():
            self.disk.saving = True
            self.spawn(self._save_and_end(state, exit_code, reason))
        else:
            self._end(state, exit_code, reason)

    async def _save_and_end(self, state: JobState, exit_code: int, reason: str) -> None:
        try:
            await self.disk.save_last(END_SECONDS if state is JobState.FINISHED else STOP_SECONDS)
        finally:
            self.disk.saving = False
            self._end(state, exit_code, reason)

    def finish(self) -> None:
        """All ranks have ended well."""
        self.end(JobState.FINISHED, 0, "")

    def _end(self, state: JobState, exit_code: int, reason: str) -> None:
        self.finished_at = time.time()
        self.move(state)
        data = {"state": state.value, "exit_code": exit_code, "reason": reason, "epoch": self.committed}
        self.reporter.event(EventKind.JOB_FINISHED, generation=self.generation, data=data)
        for node in self.members.alive():
            node.send(Stop(exit_code=exit_code, reason=reason))
        if not self.outcome.done():
            self.outcome.set_result(exit_code)

    def resign(self, reason: str) -> None:
        """Another launcher coordinates this job, or may: end this node's part, and say nothing of the job."""
        if self.over:
            return
        self._resigned, self.state = True, JobState.FAILED
        log.warning("node %s coordinates no more: %s", self.options.node, reason)
        self.healing.cancel()
        for node in self.members.alive():
            if node.name == self.options.node:
                node.send(Stop(exit_code=EXIT_LOST, reason=f"{reason}: this node ends its ranks"))
            else:
                node.hang_up()
        if not self.outcome.done():
            self.outcome.set_result(EXIT_LOST)

    def fail(self, reason: str, exit_code: int = 1) -> None:
        """Give the job up, in one clear line."""
        self.end(JobState.FAILED, exit_code or 1, f"job {self.options.job} failed: {reason}")

    def stopped(self, exit_code: int) -> None:
        """Somebody asked this launcher to end."""
        self.end(JobState.FAILED, exit_code, f"job {self.options.job} was stopped at step {self.committed}")

    # Nodes

    def lose_node(self, node: Node, reason: str) -> None:
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
        elif self.standing.doubtful:
            self.spawn(self._lose_after_a_look(node, reason))
        else:
            self._lose(node, reason)

    async def _lose_after_a_look(self, node: Node, reason: str) -> None:
        if await self.standing.check():
            self._lose(node, reason)

    def _lose(self, node: Node, reason: str) -> None:
        ranks = {rank.number for rank in self.members.on(node.name)}
        data = {"reason": reason, "ranks": sorted(ranks)}
        self.reporter.event(EventKind.NODE_LOST, node=node.name, generation=self.generation, data=data)
        log.warning("node %s is lost: %s", node.name, reason)
        self.failed(Failure(ranks=ranks, time=time.time(), reason=f"node {node.name} was lost: {reason}"))

    # Forming

    def form(self) -> None:
        """All nodes are here: hand out the ranks."""
        self.members.place_ranks()
        self.generation = 1
        self.started_at = time.time()
        data = {
            "command": [self.options.script, *self.options.argv],
            "world_size": self.options.world_size,
            "run": self.disk.run,
        }
        self.reporter.event(EventKind.JOB_STARTED, generation=1, data=data)
        self.store = self.new_store()
        self.orders.bequeath()
        for rank in self.members.ranks:
            self.orders.start(rank)

    def formed(self) -> None:
        """Every rank has voted for its epoch: training runs, and what protects it is set up for this membership."""
        self.move(JobState.RUNNING)
        self.orders.protect()
        self.disk.configure()
        self.healing.prepare()
        self.orders.bequeath()

    # Messages

    async def hear(self, node: Node, message: FromLauncher) -> None:
        """One message of a launcher."""
        match message:
            case FromRank():
                self._inbox.take(message)
            case NodeProgress():
                self.hangs.progress(message)
                return  # nobody waits for it
            case Stacks():
                self.hangs.stacks(node, message)
            case Dying() | Exited() | WorkerUp() | Ledger():
                self._hear_of_processes(node, message)
            case Fenced():
                node.confirms_fence(message.generation, message.inventory)
            case Saved():
                self.disk.saved[node.name] = Reply(message.problem)
            case Brought():
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
        """Somebody may wait for what just became true."""
        async with self.changed:
            self.changed.notify_all()

    def _hear_of_processes(self, node: Node, message: Dying | Exited | WorkerUp | Ledger) -> None:
        if isinstance(message, Dying):
            self.exits.dying(node, message)
        elif isinstance(message, Exited):
            self.exits.exited(node, message)
        elif isinstance(message, WorkerUp):
            self.members.up(message.rank, message.pid)
            self.report()
        elif self.inheritance is not None and self.inheriting:
            self.inheritance.hear(node, message)

    def _agent_up(self, node: Node) -> None:
        """A new agent must be told of its group again, and the others of its new address."""
        if self.state is JobState.RUNNING and self.members.shape is not None:
            log.info("node %s has a new agent at %s", node.name, node.endpoint)
            self.orders.bequeath()
            self.orders.protect()
            self.disk.configure()

    # Failures

    def failed(self, failure: Failure) -> None:
        """Something is lost. Whatever was going on, the generation ends and healing begins, unless it is hopeless."""
        if self.over:
            return None
        for number in failure.ranks:
            self.members.ranks[number].lost = True
            self.members.ranks[number].live = False
        if self.inheriting or self.healing.attendance.bears(failure):
            return None  # healed with all that is lost, as soon as that is known; or nobody waits for it
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

    def store_ended(self, status: str) -> None:
        """Nothing is lost: all ranks meet again, in another store."""
        if self.over:
            return
        self.store = self.new_store()
        self.failed(Failure(ranks=set(), time=time.time(), reason=f"the store ended ({status})"))

    def replay(self, failure: Failure) -> None:
        """Nothing is lost: the generation ends so that all ranks can replay. No recovery that counts."""
        self.move(JobState.RECOVERING)
        self.generation += 1
        self.healing.begin(failure)

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
