"""The launcher of one node: starts agent, fork server and workers, watches them, and does what the coordinator says.

Nothing it starts outlives it: the kernel kills workers, fork server and store when it dies, the agent ends itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import Final

from mainstay.recovery.admission import AdmissionPolicy
from mainstay.recovery.agent.checkpoint_parity import list_runs
from mainstay.recovery.agent.client import AgentClient
from mainstay.recovery.agent.errors import AgentError
from mainstay.recovery.checkpoint.levels import named_run
from mainstay.recovery.controller.checkpointing import FENCE_SECONDS, STOP_SECONDS
from mainstay.recovery.membership.coordinator_election import EXIT_LOST, CoordinatorElection, Endpoint
from mainstay.recovery.node.agent_orders import AgentOrder, AgentOrders
from mainstay.recovery.node.agent_supervisor import AgentSupervisor
from mainstay.recovery.node.child_processes import ForkServerClient
from mainstay.recovery.node.coordinator_client import CoordinatorClient
from mainstay.recovery.node.coordinator_host import CoordinatorHost
from mainstay.recovery.node.environment import rank_environment, spare_places
from mainstay.recovery.node.exit_watcher import ExitWatcher
from mainstay.recovery.node.node_check import PRELOAD, NodeChecker
from mainstay.recovery.node.process_control import ExitStatus, adopt_orphans, reap_orphans
from mainstay.recovery.node.rank_report_cache import RankReportCache
from mainstay.recovery.node.stacks import StackDumper
from mainstay.recovery.node.store_host import StoreHost
from mainstay.recovery.node.worker_output import OutputPump
from mainstay.recovery.node.workers import Worker, Workers
from mainstay.recovery.options import RunOptions
from mainstay.recovery.protocol import messages
from mainstay.recovery.protocol.worker_messages import (
    AgentRestarted,
    Assign,
    DumpFlightRecorder,
    FenceRank,
    FromWorker,
    MeasureSpeed,
    ProgressReport,
    Regroup,
)
from mainstay.recovery.telemetry.progress import ProgressCollector

log = logging.getLogger("mainstay.launcher")

STOP_PATIENCE: Final = 3.0
"""Seconds between SIGTERM and SIGKILL when a job is ended on purpose."""
LEAVE_SECONDS: Final = 2.0
"""That a node which is asked to end waits for word that the whole job does: signals of one ``scancel`` are closer."""


class Launcher:
    """One node of one job. ``run`` returns the exit code of the job."""

    def __init__(self, options: RunOptions, coordinator: Endpoint, office: CoordinatorHost) -> None:
        self._options = options
        self._office = office
        self._book = RankReportCache()
        self._generation = 0
        self._leaving = self._last = False
        """This node was asked to end; the whole job is saved for the last time."""
        self._welcome: messages.LauncherWelcome | None = None
        self._orders: dict[int, Regroup] = {}
        """Orders for ranks whose process is still warming."""
        self._tasks: set[asyncio.Task[None]] = set()
        disk = options.checkpoint_dir if options.resume else None
        self._runs = list_runs(disk, named_run(options.resume)) if disk else ()
        self._directory = Path(tempfile.mkdtemp(prefix="mainstay-run-"))
        self._pump = OutputPump()
        adopt_orphans()
        self._coordinator_client = CoordinatorClient(
            options,
            coordinator,
            CoordinatorElection(
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
        self._agent = AgentSupervisor(options, self._directory, self._pump, self._agent_changed)
        preload = () if options.preflight is AdmissionPolicy.OFF else (PRELOAD,)
        self._agent_orders = AgentOrders(self._agent, options.node, self._tell)
        self._fork_server = ForkServerClient(self._pump, preload + options.preload)
        self._store = StoreHost(self._fork_server, self._store_ended)
        office.new_store = self._store.open
        self._progress = ProgressCollector()
        self._dumper = StackDumper()
        self._checker = NodeChecker(options, self._fork_server, self._tell)
        self._deaths = ExitWatcher(self._book, self._tell)
        self._workers = Workers(
            self._directory,
            secrets.token_hex(16),
            self._fork_server,
            on_message=self._from_worker,
            on_exit=self._worker_gone,
            on_standby=lambda count: self._tell(messages.StandbysReady(count=count)),
        )

    async def run(self) -> int:
        """Serve until the job is over."""
        self._spawn(self._watch_fork_server())
        self._spawn(self._reap())
        self._spawn(self._deaths.watch(self._workers))
        self._spawn(self._tell_progress())
        self._workers.keep(self._options.nproc + self._options.spares)
        try:
            stop = await self._coordinator_client.serve()
        finally:
            await self._clean_up()
        if stop.reason:
            log.warning("%s", stop.reason)
        return stop.exit_code

    def _give_up(self, reason: str) -> None:
        """This node cannot continue."""
        self._office.abort(reason)
        self._coordinator_client.stop(1, reason)

    def leave(self, exit_code: int, reason: str) -> None:
        """End the whole job, where it is coordinated from here; else this node's part, if the job continues without it.

        A scheduler that ends a job tells all nodes at the same time; what this one holds belongs to the last save.
        """
        if self._office.held:
            if self._office.stopped(exit_code):
                self._coordinator_client.stop(exit_code, reason)
            return
        if self._leaving or self._options.checkpoint_dir is None:
            self._coordinator_client.stop(exit_code, reason)
            return
        self._leaving = True
        self._spawn(self._leave(exit_code, reason))

    async def _leave(self, exit_code: int, reason: str) -> None:
        await asyncio.sleep(LEAVE_SECONDS)
        if self._last:
            await asyncio.sleep(FENCE_SECONDS + STOP_SECONDS)
        self._coordinator_client.stop(exit_code, reason)

    # The coordinator

    def _hello(self, election_endpoint: str) -> messages.LauncherHello:
        options = self._options
        return messages.LauncherHello(
            job=options.job,
            node=options.node,
            node_rank=options.node_rank,
            nnodes=options.nnodes,
            spare_nodes=options.spare_nodes,
            nproc=options.nproc,
            spares=spare_places(options),
            pid=os.getpid(),
            agent_endpoint=self._agent.endpoint,
            standbys=self._workers.standbys,
            domain=options.domain,
            election_endpoint=election_endpoint,
            runs=self._runs,
        )

    def _tell(self, message: messages.FromLauncher) -> None:
        self._coordinator_client.send(message)

    async def _handle(self, message: messages.ToLauncher) -> None:
        match message:
            case messages.LauncherWelcome():
                self._welcome = message
            case messages.StartRank():
                self._book.coming(message.rank)
                self._workers.assign_rank(message.rank, lambda worker: self._assign(worker, message))
            case messages.FenceNode():
                await self._fence(message)
            case messages.RegroupRank():
                self._forward(message)
            case _ if isinstance(message, AgentOrder):
                self._spawn(self._agent_orders.carry_out(message))
            case messages.DiscardCommand():
                await self._discard(message)
            case messages.StopJob():
                if message.exit_code == EXIT_LOST:
                    await self._suspend()  # another coordinator may begin soon, and does not wait for our manners
                self._coordinator_client.stop(message.exit_code, message.reason)
            case _:
                self._serve_request(message)

    def _serve_request(self, message: messages.ToLauncher) -> None:
        """What may be late, or may fail."""
        if isinstance(message, messages.TrainingResumed):
            self._workers.keep(self._standbys_wanted())
        elif isinstance(message, messages.CheckNode):
            self._spawn(self._checker.run(message))
        elif isinstance(message, messages.DumpStacks):
            for rank in message.ranks:
                self._spawn(self._dump_stacks(message.request, rank))
        elif isinstance(message, messages.DumpFlightRecorders | messages.MeasureSpeeds):
            wanted = DumpFlightRecorder if isinstance(message, messages.DumpFlightRecorders) else MeasureSpeed
            for worker in self._workers.holders():
                if worker.rank in message.ranks:
                    worker.send(wanted(request=message.request))

    # Ranks

    def _assign(self, worker: Worker, start: messages.StartRank) -> None:
        assert self._welcome is not None
        options = self._options
        generation = max(start.generation, self._generation)
        slot = self._workers.free_slot(options.nproc + spare_places(options))
        order = Assign(
            rank=start.rank,
            generation=generation,
            env=rank_environment(options, self._welcome, start, local_rank=slot, generation=generation),
            script=options.script,
            module=options.module,
            argv=options.argv,
            agent_socket=str(self._agent.socket),
            snapshot_certificate=options.snapshot_tls.pem,
            job=options.job,
            shard_snapshots=options.shard_snapshots,
        )
        self._workers.assign(worker, order, slot)
        self._book.up(start.rank, worker.child.pid)
        self._tell(messages.WorkerUp(rank=start.rank, pid=worker.child.pid))
        waiting = self._orders.pop(start.rank, None)
        if waiting is not None:
            worker.send(waiting)

    def _forward(self, message: messages.RegroupRank) -> None:
        if not self._book.joined(message.rank):
            self._spawn(self._agent_orders.prefetch(message))
        worker = self._workers.of_rank(message.rank)
        if worker is None:
            self._orders[message.rank] = message.order
        else:
            worker.send(message.order)

    async def _fence(self, message: messages.FenceNode) -> None:
        """No rank learns the next generation before the processes that may not be in it are reaped."""
        self._orders.clear()
        self._last = self._last or message.last
        self._generation = max(self._generation, message.generation)
        stuck = await self._workers.fence(message.kill, message.exclude)
        if stuck:
            log.error("ranks %s do not die (stuck in the kernel?); their generation is revoked all the same", stuck)
        for worker in self._workers.holders():
            worker.send(FenceRank(generation=message.generation))
        self._spawn(self._fence_agent(message.generation))

    async def _suspend(self) -> None:
        """There is no coordinator: ranks leave their collectives and wait; those that cannot be told end."""
        self._generation += 1
        holders = self._workers.holders()
        deaf = tuple(w.rank for w in holders if w.rank is not None and not self._book.joined(w.rank))
        for worker in holders:
            worker.send(FenceRank(generation=self._generation))
        await self._workers.fence(deaf)

    async def _fence_agent(self, generation: int) -> None:
        try:
            inventory = await self._agent.fence(generation)
        except AgentError as error:
            self._tell(messages.Fenced(generation=generation, inventory=None, reason=str(error)[:500]))
        else:
            self._tell(messages.Fenced(generation=generation, inventory=inventory))

    async def _discard(self, message: messages.DiscardCommand) -> None:
        """Before any rank hears of the next generation: its snapshots must not meet those of the past."""
        problem = await self._agent.request(lambda agent: agent.discard_after(message.epoch))
        if problem:
            log.warning("the agent did not forget steps after %d: %s", message.epoch, problem)

    def _from_worker(self, worker: Worker, message: FromWorker) -> None:
        assert worker.rank is not None
        if isinstance(message, ProgressReport):
            self._progress.add_report(worker.rank, worker.child.pid, message)
            return
        self._book.latest(worker.rank, message)
        self._tell(messages.FromRank(rank=worker.rank, pid=worker.child.pid, message=message))

    def _worker_gone(self, worker: Worker, status: ExitStatus) -> None:
        if self._workers.closing:
            return
        if worker.rank is None:
            log.warning("a standby ended (%s)", status)
            self._spawn(self._refill())
            return
        self._progress.forget(worker.rank)
        self._spawn(self._deaths.report_exit(worker, worker.rank, status))

    async def _tell_progress(self) -> None:
        """Twice a second what all ranks here are doing, in one message."""
        while True:
            await asyncio.sleep(self._progress.wait())
            for rows in self._progress.cut():
                self._tell(messages.NodeProgress(rows=rows))

    async def _dump_stacks(self, request: int, rank: int) -> None:
        worker = self._workers.of_rank(rank)
        if worker is not None:
            self._tell(await self._dumper.dump(request, rank, worker.child.pid))

    async def _refill(self) -> None:
        await asyncio.sleep(1.0)  # a standby that cannot live must not keep the machine busy dying
        self._workers.keep(self._standbys_wanted())

    def _standbys_wanted(self) -> int:
        """A spare node has one for each of its devices, so that it can take over a whole node at once."""
        free = self._options.nproc - len(self._workers.holders()) if self._options.spare_nodes else 0
        return self._options.spares + max(0, free)

    def _agent_changed(self, endpoint: str) -> None:
        self._tell(messages.AgentUp(endpoint=endpoint))
        for worker in self._workers.holders():
            worker.send(AgentRestarted())

    # Other children

    def _store_ended(self, status: ExitStatus) -> None:
        if self._office.coordinator is not None:
            self._office.coordinator.store_ended(str(status))

    async def _watch_fork_server(self) -> None:
        status = await asyncio.shield(self._fork_server.child.exit)
        if not self._workers.closing:
            self._give_up(f"the fork server ended ({status}): no more processes can be started")

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(2.0)
            if not self._fork_server.forking:
                reap_orphans()

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
        with contextlib.suppress(OSError):
            await asyncio.wait_for(self._agent.request(AgentClient.drop), 5.0)
        await self._agent.stop()
        await self._store.close()
        self._fork_server.close()
        await self._fork_server.child.kill()
        self._coordinator_client.close()
        self._pump.close()
        shutil.rmtree(self._directory, ignore_errors=True)
