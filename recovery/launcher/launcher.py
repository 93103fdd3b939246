"""The launcher of one node: starts agent, nursery and workers, watches them, and does what the coordinator says.

Nothing it starts outlives it: workers, nursery and store are killed by the kernel when it dies, the agent ends itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from recovery.agent.errors import AgentError
from recovery.launcher.agents import AgentKeeper
from recovery.launcher.children import Nursery
from recovery.launcher.deaths import Deaths
from recovery.launcher.disk_level import FENCE_SECONDS, STOP_SECONDS
from recovery.launcher.environment import rank_environment
from recovery.launcher.ledger import Book
from recovery.launcher.liaison import Liaison
from recovery.launcher.messages import (
    AgentUp,
    Bring,
    DiscardAfter,
    Disk,
    DumpStacks,
    Fenced,
    FenceNode,
    FromLauncher,
    FromRank,
    LauncherHello,
    NodeProgress,
    Parity,
    RegroupRank,
    Saved,
    SaveDisk,
    StandbysReady,
    Start,
    Stop,
    ToLauncher,
    Training,
    Welcome,
    WorkerUp,
)
from recovery.launcher.office import Office
from recovery.launcher.options import RunOptions
from recovery.launcher.output import OutputPump
from recovery.launcher.proc import ExitStatus, adopt_orphans, reap_orphans
from recovery.launcher.progress import Gathering
from recovery.launcher.stacks import StackDumper
from recovery.launcher.store_host import StoreHost
from recovery.launcher.succession import EXIT_LOST, Endpoint, Succession
from recovery.launcher.worker_messages import AgentBack, Assign, Fence, FromWorker, Progress, Regroup
from recovery.launcher.workers import Worker, Workers

log = logging.getLogger("mainstay.launcher")

STOP_PATIENCE: Final = 3.0
"""Seconds between SIGTERM and SIGKILL when a job is ended on purpose."""
LEAVE_SECONDS: Final = 2.0
"""That a node which is asked to end waits for word that the whole job does: signals of one ``scancel`` are closer."""


class Launcher:
    """One node of one job. ``run`` returns the exit code of the job."""

    def __init__(self, options: RunOptions, coordinator: Endpoint, office: Office) -> None:
        self._options = options
        self._office = office
        self._book = Book()
        self._generation = 0
        self._leaving = self._last = False
        """This node was asked to end; the whole job is saved for the last time."""
        self._welcome: Welcome | None = None
        self._orders: dict[int, Regroup] = {}
        """Orders for ranks whose process is still warming."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._directory = Path(tempfile.mkdtemp(prefix="mainstay-run-"))
        self._pump = OutputPump()
        adopt_orphans()
        self._liaison = Liaison(
            options,
            coordinator,
            Succession(
                options,
                generation=lambda: self._generation,
                coordinates=lambda: office.held,
                take_office=office.inherit,
                resign=office.resign,
            ),
            at_home=lambda: office.held,
            hello=self._hello,
            book=self._book,
            obey=self._handle,
            suspend=self._suspend,
            done=self._done,
        )
        self._agent = AgentKeeper(options, self._directory, self._pump, self._agent_changed)
        self._nursery = Nursery(self._pump, options.preload)
        self._store = StoreHost(self._nursery, self._store_ended)
        office.new_store = self._store.open
        self._progress = Gathering()
        self._dumper = StackDumper()
        self._deaths = Deaths(self._book, self._tell)
        self._workers = Workers(
            self._directory,
            options.token,
            self._nursery,
            on_message=self._from_worker,
            on_exit=self._worker_gone,
            on_standby=lambda count: self._tell(StandbysReady(count=count)),
        )

    async def run(self) -> int:
        """Serve until the job is over."""
        self._spawn(self._watch_nursery())
        self._spawn(self._reap())
        self._spawn(self._deaths.watch(self._workers))
        self._spawn(self._tell_progress())
        self._workers.keep(self._options.nproc + self._options.spares)
        try:
            stop = await self._liaison.serve()
        finally:
            await self._clean_up()
        if stop.reason:
            log.warning("%s", stop.reason)
        return stop.exit_code

    def stop(self, exit_code: int, reason: str) -> None:
        """End this node's part of the job."""
        self._liaison.stop(exit_code, reason)

    def _give_up(self, reason: str) -> None:
        """This node cannot go on."""
        self._office.give_up(reason)
        self._liaison.stop(1, reason)

    def leave(self, exit_code: int, reason: str) -> None:
        """End the whole job, where it is coordinated from here; else this node's part, if the job goes on without it.

        A scheduler that ends a job tells all nodes at the same time; what this one holds belongs to the last save.
        """
        if self._office.held:
            if self._office.stopped(exit_code):
                self.stop(exit_code, reason)
            return
        if self._leaving or self._options.checkpoint_dir is None:
            self.stop(exit_code, reason)
            return
        self._leaving = True
        self._spawn(self._leave(exit_code, reason))

    async def _leave(self, exit_code: int, reason: str) -> None:
        await asyncio.sleep(LEAVE_SECONDS)
        if self._last:
            await asyncio.sleep(FENCE_SECONDS + STOP_SECONDS)
        self.stop(exit_code, reason)

    # The coordinator

    def _hello(self, door: str) -> LauncherHello:
        options = self._options
        return LauncherHello(
            token=options.token,
            job=options.job,
            node=options.node,
            node_rank=options.node_rank,
            nnodes=options.nnodes,
            nproc=options.nproc,
            spares=options.spares,
            pid=os.getpid(),
            agent_endpoint=self._agent.endpoint,
            standbys=self._workers.standbys,
            domain=options.domain,
            door=door,
        )

    def _tell(self, message: FromLauncher) -> None:
        self._liaison.tell(message)

    async def _handle(self, message: ToLauncher) -> None:
        match message:
            case Welcome():
                self._welcome = message
            case Start():
                self._book.coming(message.rank)
                self._workers.take(message.rank, lambda worker: self._assign(worker, message))
            case FenceNode():
                await self._fence(message)
            case RegroupRank():
                self._forward(message)
            case Parity():
                self._spawn(self._configure_parity(message))
            case DiscardAfter():
                await self._discard(message)
            case Stop():
                if message.exit_code == EXIT_LOST:
                    await self._suspend()  # another coordinator may begin soon, and does not wait for our manners
                self._liaison.stop(message.exit_code, message.reason)
            case _:
                self._serve_wish(message)

    def _serve_wish(self, message: ToLauncher) -> None:
        """What may be late, or may fail."""
        if isinstance(message, Training):
            self._workers.keep(self._options.spares)
        elif isinstance(message, Disk):
            self._spawn(self._configure_disk(message))
        elif isinstance(message, SaveDisk):
            self._spawn(self._save_disk(message))
        elif isinstance(message, Bring):
            self._spawn(self._bring(message))
        elif isinstance(message, DumpStacks):
            for rank in message.ranks:
                self._spawn(self._dump_stacks(message.request, rank))

    # Ranks

    def _assign(self, worker: Worker, start: Start) -> None:
        assert self._welcome is not None
        options = self._options
        generation = max(start.generation, self._generation)
        slot = self._workers.free_slot(options.nproc + options.spares)
        order = Assign(
            rank=start.rank,
            generation=generation,
            env=rank_environment(options, self._welcome, start, local_rank=slot, generation=generation),
            script=options.script,
            module=options.module,
            argv=options.argv,
            agent_socket=str(self._agent.socket),
            agent_token=options.token,
            job=options.job,
            shard_save=options.shard_save,
        )
        self._workers.assign(worker, order, slot)
        self._book.up(start.rank, worker.child.pid)
        self._tell(WorkerUp(rank=start.rank, pid=worker.child.pid))
        waiting = self._orders.pop(start.rank, None)
        if waiting is not None:
            worker.send(waiting)

    def _forward(self, message: RegroupRank) -> None:
        worker = self._workers.of_rank(message.rank)
        if worker is None:
            self._orders[message.rank] = message.order
        else:
            worker.send(message.order)

    async def _fence(self, message: FenceNode) -> None:
        """Nobody hears of the next generation before the processes that may not be in it are reaped."""
        self._orders.clear()
        self._last = self._last or message.last
        self._generation = max(self._generation, message.generation)
        stuck = await self._workers.fence(message.kill, message.shun)
        if stuck:
            log.error("ranks %s do not die (stuck in the kernel?); their generation is revoked all the same", stuck)
        for worker in self._workers.holders():
            worker.send(Fence(generation=message.generation))
        self._spawn(self._fence_agent(message.generation))

    async def _suspend(self) -> None:
        """There is no coordinator: ranks leave their collectives and wait; those that cannot be told end."""
        self._generation += 1
        holders = self._workers.holders()
        deaf = tuple(w.rank for w in holders if w.rank is not None and not self._book.joined(w.rank))
        for worker in holders:
            worker.send(Fence(generation=self._generation))
        await self._workers.fence(deaf)

    async def _fence_agent(self, generation: int) -> None:
        try:
            inventory = await self._agent.fence(generation)
        except AgentError as error:
            self._tell(Fenced(generation=generation, inventory=None, reason=str(error)[:500]))
        else:
            self._tell(Fenced(generation=generation, inventory=inventory))

    async def _discard(self, message: DiscardAfter) -> None:
        """Before any rank hears of the next generation: its snapshots must not meet those of the past."""
        try:
            await self._agent.discard_after(message.epoch)
        except AgentError as error:
            log.warning("the agent did not forget steps after %d: %s", message.epoch, error)

    async def _configure_parity(self, message: Parity) -> None:
        try:
            await self._agent.configure_parity(message.groups, message.every, message.scheme, message.wards)
        except AgentError as error:
            log.error("DEGRADED node %s: no parity: %s", self._options.node, error)  # noqa: TRY400 - a trace says no more

    async def _configure_disk(self, message: Disk) -> None:
        try:
            await self._agent.configure_disk(message.config)
        except AgentError as error:
            log.error("DEGRADED node %s: nothing goes to disk: %s", self._options.node, error)  # noqa: TRY400 - likewise

    async def _save_disk(self, message: SaveDisk) -> None:
        problem = ""
        try:
            await self._agent.save_disk(message.epoch, message.copies)
        except AgentError as error:
            problem = str(error)[:500]
        self._tell(Saved(epoch=message.epoch, problem=problem))

    async def _bring(self, message: Bring) -> None:
        self._tell(await self._agent.bring(message))

    def _from_worker(self, worker: Worker, message: FromWorker) -> None:
        assert worker.rank is not None
        if isinstance(message, Progress):
            self._progress.add(worker.rank, worker.child.pid, message)
            return
        self._book.said(worker.rank, message)
        self._tell(FromRank(rank=worker.rank, pid=worker.child.pid, message=message))

    def _worker_gone(self, worker: Worker, status: ExitStatus) -> None:
        if self._workers.closing:
            return
        if worker.rank is None:
            log.warning("a standby ended (%s)", status)
            self._spawn(self._refill())
            return
        self._progress.forget(worker.rank)
        self._spawn(self._deaths.tell(worker, worker.rank, status))

    async def _tell_progress(self) -> None:
        """Twice a second what all ranks here are doing, in one message."""
        while True:
            await asyncio.sleep(self._progress.wait())
            for rows in self._progress.cut():
                self._tell(NodeProgress(rows=rows))

    async def _dump_stacks(self, request: int, rank: int) -> None:
        worker = self._workers.of_rank(rank)
        if worker is not None:
            self._tell(await self._dumper.dump(request, rank, worker.child.pid))

    async def _refill(self) -> None:
        await asyncio.sleep(1.0)  # a standby that cannot live must not keep the machine busy dying
        self._workers.keep(self._options.spares)

    def _agent_changed(self, endpoint: str) -> None:
        self._tell(AgentUp(endpoint=endpoint))
        for worker in self._workers.holders():
            worker.send(AgentBack())

    # Other children

    def _store_ended(self, status: ExitStatus) -> None:
        if self._office.coordinator is not None:
            self._office.coordinator.store_ended(str(status))

    async def _watch_nursery(self) -> None:
        status = await asyncio.shield(self._nursery.child.exit)
        if not self._workers.closing:
            self._give_up(f"the nursery ended ({status}): no more processes can be started")

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(2.0)
            known = self._workers.pids() | self._dumper.pids | self._store.pids | {self._nursery.child.pid}
            if not self._workers.hatching and self._agent.pid is not None:
                reap_orphans(known | {self._agent.pid})

    def _spawn(self, work: object) -> None:
        task = asyncio.ensure_future(work)  # type: ignore[call-overload]
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the launcher failed", exc_info=task.exception())
            self._give_up(f"the launcher failed: {task.exception()}")

    async def _clean_up(self) -> None:
        await self._workers.stop(STOP_PATIENCE)
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(AgentError, OSError):
            await asyncio.wait_for(self._agent.drop(), 5.0)
        await self._agent.stop()
        await self._store.close()
        self._nursery.close()
        await self._nursery.child.kill()
        self._liaison.close()
        self._pump.close()
        shutil.rmtree(self._directory, ignore_errors=True)
