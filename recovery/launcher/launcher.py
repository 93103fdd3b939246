"""The launcher of one node: starts agent, nursery and workers, watches them, and does what the coordinator says.

Nothing it starts outlives it: workers, nursery and store are killed by the kernel when it dies, the agent ends itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Final

from recovery.agent.errors import AgentError
from recovery.launcher.agents import AgentKeeper
from recovery.launcher.children import Nursery, NurseryError
from recovery.launcher.environment import rank_environment
from recovery.launcher.messages import (
    AgentBack,
    AgentUp,
    Assign,
    DiscardAfter,
    DumpStacks,
    Exited,
    Fence,
    Fenced,
    FenceNode,
    FromLauncher,
    FromRank,
    FromWorker,
    Heartbeat,
    LauncherHello,
    NodeProgress,
    Parity,
    Progress,
    Regroup,
    RegroupRank,
    StandbysReady,
    Start,
    Stop,
    ToLauncher,
    Training,
    Welcome,
    WorkerUp,
)
from recovery.launcher.oom import OutOfMemoryCount
from recovery.launcher.options import RunOptions
from recovery.launcher.output import LAST_WORDS_SECONDS, OutputPump, Tail
from recovery.launcher.proc import Child, ExitStatus, adopt_orphans, reap_orphans
from recovery.launcher.progress import Gathering
from recovery.launcher.stacks import StackDumper
from recovery.launcher.wire import Stream, launcher_side
from recovery.launcher.workers import Worker, Workers

log = logging.getLogger("mainstay.launcher")

STOP_PATIENCE: Final = 3.0
"""Seconds between SIGTERM and SIGKILL when a job is ended on purpose."""
_RETRY_SECONDS: Final = 0.1
_EXIT_LOST: Final = 70
"""Exit code when the coordinator is gone or turned this node away."""


class Launcher:
    """One node of one job. ``run`` returns the exit code of the job."""

    def __init__(self, options: RunOptions, coordinator: tuple[str, int]) -> None:
        self._options = options
        self._coordinator = coordinator
        self._generation = 0
        self._welcome: Welcome | None = None
        self._orders: dict[int, Regroup] = {}
        """Orders for ranks whose process is still warming."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop: asyncio.Future[Stop] = asyncio.get_running_loop().create_future()
        self._directory = Path(tempfile.mkdtemp(prefix="mainstay-run-"))
        self._pump = OutputPump()
        self._stream: Stream[ToLauncher] | None = None
        self._store: Child | None = None
        adopt_orphans()
        self._agent = AgentKeeper(options, self._directory, self._pump, self._agent_changed)
        self._nursery = Nursery(self._pump, options.preload)
        self._progress = Gathering()
        self._dumper = StackDumper()
        self._ooms = OutOfMemoryCount()
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
        self._spawn(self._tell_progress())
        self._workers.keep(self._options.nproc + self._options.spares)
        try:
            stop = await self._serve()
        finally:
            await self._clean_up()
        if stop.reason:
            log.warning("%s", stop.reason)
        return stop.exit_code

    def stop(self, exit_code: int, reason: str) -> None:
        """End this node's part of the job."""
        if not self._stop.done():
            self._stop.set_result(Stop(exit_code=exit_code, reason=reason))

    # The coordinator's connection

    async def _serve(self) -> Stop:
        receiving = asyncio.create_task(self._receive())
        receiving.add_done_callback(self._done)  # a node that hears no orders would hold up the whole job
        try:
            return await self._stop
        finally:
            receiving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await receiving

    async def _receive(self) -> None:
        try:
            self._stream = stream = await self._connect()
            self._spawn(self._beat())
            while True:
                message = await asyncio.wait_for(stream.receive(), self._options.node_seconds)
                if message is None:
                    return self.stop(
                        _EXIT_LOST, "the coordinator has closed the connection: it ended, or refused this node"
                    )
                await self._handle(message)
        except TimeoutError:
            self.stop(_EXIT_LOST, f"nothing heard from the coordinator for {self._options.node_seconds:g} s")
        except ConnectionError as error:
            self.stop(_EXIT_LOST, str(error))

    async def _connect(self) -> Stream[ToLauncher]:
        """Find the coordinator, however late it comes within the time to join, and introduce this node."""
        host, port = self._coordinator
        deadline = asyncio.get_running_loop().time() + self._options.join_seconds
        while True:
            try:
                stream = launcher_side(*await asyncio.open_connection(host, port))
                break
            except OSError as error:
                if asyncio.get_running_loop().time() > deadline:
                    raise ConnectionError(f"no coordinator answers at {host}:{port}: {error}") from error
                await asyncio.sleep(_RETRY_SECONDS)
        options = self._options
        stream.send(
            LauncherHello(
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
            )
        )
        return stream

    async def _beat(self) -> None:
        while True:
            self._tell(Heartbeat())
            await asyncio.sleep(self._options.node_seconds / 5)

    def _tell(self, message: FromLauncher) -> None:
        if self._stream is not None:
            self._stream.send(message)

    async def _handle(self, message: ToLauncher) -> None:
        match message:
            case Welcome():
                self._welcome = message
            case Start():
                self._workers.take(lambda worker: self._assign(worker, message))
            case FenceNode():
                await self._fence(message)
            case RegroupRank():
                self._forward(message)
            case Parity():
                self._spawn(self._configure_parity(message))
            case DiscardAfter():
                await self._discard(message)
            case Stop():
                self.stop(message.exit_code, message.reason)
            case _:
                self._serve_wish(message)

    def _serve_wish(self, message: ToLauncher) -> None:
        """What may be late, or may fail."""
        if isinstance(message, Training):
            self._workers.keep(self._options.spares)
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
        )
        self._workers.assign(worker, order, slot)
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
        self._generation = max(self._generation, message.generation)
        stuck = await self._workers.fence(message.kill, message.shun)
        if stuck:
            log.error("ranks %s do not die (stuck in the kernel?); their generation is revoked all the same", stuck)
        for worker in self._workers.holders():
            worker.send(Fence(generation=message.generation))
        self._spawn(self._fence_agent(message.generation))

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
            await self._agent.configure_parity(message.group, message.every)
        except AgentError as error:
            log.error("DEGRADED node %s: no parity: %s", self._options.node, error)  # noqa: TRY400 - a trace says no more

    def _from_worker(self, worker: Worker, message: FromWorker) -> None:
        assert worker.rank is not None
        if isinstance(message, Progress):
            self._progress.add(worker.rank, worker.child.pid, message)
            return
        self._tell(FromRank(rank=worker.rank, pid=worker.child.pid, message=message))

    def _worker_gone(self, worker: Worker, status: ExitStatus) -> None:
        if self._workers.closing:
            return
        if worker.rank is None:
            log.warning("a standby ended (%s)", status)
            self._spawn(self._refill())
            return
        self._progress.forget(worker.rank)
        self._spawn(self._tell_exit(worker, worker.rank, status))

    async def _tell_exit(self, worker: Worker, rank: int, status: ExitStatus) -> None:
        if not worker.ended_by_us or status.code:  # with a code of its own: it was faster than our signal
            await worker.tail.ended(LAST_WORDS_SECONDS)
        self._tell(
            Exited(
                rank=rank,
                pid=worker.child.pid,
                exit_code=status.code,
                signal=status.signal,
                expected=worker.ended_by_us,
                time=status.time,
                tail=worker.tail.last(),
                stderr=worker.tail.last_errors(),
                out_of_memory=not worker.ended_by_us and self._ooms.explains(status.signal),
                peak_bytes=status.peak_bytes,
            )
        )

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

    def host_store(self) -> tuple[str, int]:
        """A store for this job, empty, in the place of the one before: bound at once, served as soon as it is warm.

        Raises:
            OSError: this node cannot listen on the address of ``--rdzv-endpoint``.
        """
        listener = socket.create_server((self._options.host, 0), backlog=1024)
        address = listener.getsockname()
        self._spawn(self._keep_store(listener))
        return str(address[0]), int(address[1])

    async def _keep_store(self, listener: socket.socket) -> None:
        before, self._store = self._store, None
        if before is not None:
            await before.kill()
        try:
            store = self._store = await self._nursery.hatch("store", {}, Tail("store"), listener)
        except NurseryError:
            return
        finally:
            listener.close()
        status = await asyncio.shield(store.exit)
        if store is self._store and not self._workers.closing:
            self.stop(1, f"the store ended ({status}); without it ranks cannot meet")

    async def _watch_nursery(self) -> None:
        status = await asyncio.shield(self._nursery.child.exit)
        if not self._workers.closing:
            self.stop(1, f"the nursery ended ({status}): no more processes can be started")

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(2.0)
            known = (
                self._workers.pids()
                | self._dumper.pids
                | {c.pid for c in (self._store, self._nursery.child) if c is not None}
            )
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
            self.stop(1, f"the launcher failed: {task.exception()}")

    async def _clean_up(self) -> None:
        await self._workers.stop(STOP_PATIENCE)
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(AgentError, OSError):
            await asyncio.wait_for(self._agent.drop(), 5.0)
        await self._agent.stop()
        if self._store is not None:
            await self._store.kill()
        self._nursery.close()
        await self._nursery.child.kill()
        if self._stream is not None:
            self._stream.close()
        self._pump.close()
        shutil.rmtree(self._directory, ignore_errors=True)
