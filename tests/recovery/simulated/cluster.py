"""Nodes of a simulated job: real launchers, of which only the processes they start are simulated."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from unittest import mock

import msgspec

from mainstay.probes.data_dir import private_directory
from mainstay.recovery.job_request import JobRequest
from mainstay.recovery.node import main
from mainstay.recovery.node_warning import NodeWarning
from mainstay.recovery.options import RunOptions
from tests.recovery.simulated.agents import SimulatedAgent
from tests.recovery.simulated.loop import PROCESS, ProcessState, SimulatedLoop, SimulatedProcess
from tests.recovery.simulated.ranks import Truth, ViolationError
from tests.recovery.simulated.workers import (
    SimulatedDumper,
    SimulatedForkServer,
    SimulatedStoreHost,
    SimulatedWorker,
    SimulatedWorkers,
)

START: Final = 1_800_000_000.0
"""Unix time at which a run begins."""
FIRST_PORT: Final = 29_500
PLACEMENT_SECONDS: Final = 10.0
"""That a process which was ordered before a node was cordoned may still take to become warm."""


@dataclass(eq=False)
class SimulatedNode:
    """One host and its launcher."""

    number: int
    options: RunOptions
    launcher: SimulatedProcess
    ranks: SimulatedProcess
    """Whose callbacks are those of the ranks' processes."""
    task: asyncio.Task[int] | None = None
    agent: SimulatedAgent | None = None
    workers: SimulatedWorkers | None = None
    dead: bool = False
    again: bool = False
    """Its launcher is not the first one of the node."""

    @property
    def exit_code(self) -> int | None:
        """Of its launcher; None: it runs, or was killed."""
        ended = self.task is not None and self.task.done() and not self.task.cancelled() and not self.dead
        return self.task.result() if ended and self.task is not None else None

    @property
    def runs(self) -> bool:
        return not self.dead and self.task is not None and not self.task.done()


@dataclass
class SimulatedCluster:
    """All nodes of one job."""

    loop: SimulatedLoop
    rng: random.Random
    truth: Truth
    options: RunOptions
    nodes: list[SimulatedNode] = field(default_factory=list)
    agents: dict[str, SimulatedAgent] = field(default_factory=dict)
    problems: list[BaseException] = field(default_factory=list)
    """What may not happen, and happened."""
    coordinators: int = 0
    """That there have been."""
    cordoned: dict[str, NodeWarning] = field(default_factory=dict)
    """Node -> why it takes no rank, as the service reports."""
    told: dict[str, float] = field(default_factory=dict)
    """Cordoned node -> since when the present coordinator knows."""
    requests: list[JobRequest] = field(default_factory=list)
    """What the service asks for, ended or not."""
    _processes: list[SimulatedProcess] = field(default_factory=list)
    """Of launchers and ranks, those that were killed too."""
    _pids: Iterator[int] = field(default_factory=lambda: itertools.count(1000))

    def start(self, number: int) -> SimulatedNode:
        """Start the launcher of node ``number``, for the first time or again."""
        host = f"10.0.0.{number}"
        self.loop.network.down.discard(host)
        options = replace(
            self.options, node=f"node-{number}", node_rank=number, host="10.0.0.0", port=FIRST_PORT,
            state_dir=self.options.state_dir / f"node-{number}",
        )  # fmt: skip
        private_directory(options.state_dir)
        pid = next(self._pids)
        node = SimulatedNode(number, options, SimulatedProcess(host, pid), SimulatedProcess(host, pid))
        for before in [n for n in self.nodes if n.number == number]:
            self.loop.network.end(before.launcher)
            self.nodes.remove(before)
            node.again = True
        self.nodes.append(node)
        self._processes += [node.launcher, node.ranks]
        node.task = self.loop.create_task(main._serve(options), context=node.launcher.context)
        return node

    def check(self) -> None:
        """Raise the first thing that happened and may not."""
        if self.problems:
            raise self.problems[0]

    async def until(self, happened: Callable[[], object], seconds: float = 300.0) -> bool:
        """Let simulated time pass until ``happened``; whether it did within ``seconds``."""
        deadline = self.loop.now + seconds
        while self.loop.now < deadline:
            self.check()
            if happened():
                return True
            await asyncio.sleep(0.25)
        return False

    def node(self, number: int) -> SimulatedNode:
        return next(node for node in self.nodes if node.number == number)

    def holder(self, rank: int) -> SimulatedWorker | None:
        """The newest living process of ``rank``."""
        living = [w for w in self.truth.workers if w.rank == rank and w.child.alive]
        return living[-1] if living else None

    def homes(self) -> list[int | None]:
        """Node number by rank; None: it has no process."""
        found = [self.holder(rank) for rank in range(self.options.world_size)]
        return [None if worker is None else int(worker.owner.host.rpartition(".")[2]) for worker in found]

    def kill(self, node: SimulatedNode, *, power: bool = False) -> None:
        """SIGKILL the launcher, which takes what it started with it; or the host loses ``power``."""
        if power:
            self.loop.network.power_off(node.launcher.host)
        node.dead = True
        for process in (node.launcher, node.ranks):
            process.state = ProcessState.KILLED
        for worker in list(node.workers._all.values()) if node.workers else []:
            worker.child.alive = False
            if worker.process is not None and worker.process.collective is not None:
                worker.process.collective.leaves()
        if node.agent is not None:
            self.agents.pop(node.agent.endpoint, None)
        if not power:
            self.loop.network.end(node.launcher)

    def stop(self, node: SimulatedNode, seconds: float, *, ranks: bool) -> None:
        """SIGSTOP the launcher for a while, with or without its ``ranks``."""
        for process in (node.launcher, node.ranks) if ranks else (node.launcher,):
            if process.state is ProcessState.RUNNING:
                process.state = ProcessState.STOPPED
                self.loop.call_later(seconds, self._resume, process)

    def _resume(self, process: SimulatedProcess) -> None:
        if process.state is ProcessState.STOPPED:
            self.loop.resume(process)

    def here(self) -> SimulatedNode:
        """The node whose process runs now."""
        process = PROCESS.get()
        return next(node for node in self.nodes if process in {node.launcher, node.ranks})

    # In the place of what a launcher starts

    def agent_supervisor(self, options: RunOptions, *_: Any) -> SimulatedAgent:
        node = self.here()
        node.agent = SimulatedAgent(options.node, node.launcher, self.loop.network, self.agents)
        return node.agent

    def make_workers(self, *_: Any, **calls: Any) -> SimulatedWorkers:
        node = self.here()
        assert node.agent is not None
        node.workers = SimulatedWorkers(
            self.loop, node.launcher, node.ranks, node.agent, self.truth, placed=self._placed, **calls
        )
        return node.workers

    def _placed(self, node: str, rank: int) -> None:
        """A rank begins on ``node``."""
        since = self.told.get(node) if node in self.cordoned else None
        if since is not None and self.truth.in_time and self.loop.now - since > PLACEMENT_SECONDS:
            raise ViolationError(
                f"rank {rank} begins on {node}, of which the coordinator knows since {since:.1f} that it is out"
            )

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Launchers made in this context are simulated."""
        launcher, real_pid = "mainstay.recovery.node.launcher", os.getpid()
        fakes = {
            f"{launcher}.AgentSupervisor": self.agent_supervisor,
            f"{launcher}.Workers": self.make_workers,
            f"{launcher}.ForkServerClient": lambda *_: SimulatedForkServer(self.loop),
            f"{launcher}.StoreHost": lambda *_: SimulatedStoreHost(),
            f"{launcher}.StackDumper": SimulatedDumper,
            f"{launcher}.OutputPump": mock.Mock,
            f"{launcher}.adopt_orphans": lambda: None,
            f"{launcher}.reap_orphans": lambda: None,
            "mainstay.recovery.node.exit_watcher.ending_signal": lambda _: None,
            "mainstay.recovery.node.exit_watcher.LOOK_SECONDS": 60.0,
            "mainstay.recovery.node.exit_watcher.OutOfMemoryCount": mock.Mock(return_value=_NoMemoryKills()),
            "mainstay.recovery.node.coordinator_host.Reporter": lambda _: SimulatedReporter(self),
            "mainstay.recovery.controller.monitors.durability_monitor._ask": lambda *_: None,
            "time.time": lambda: START + self.loop.now,
            "os.getpid": lambda: real_pid if (process := PROCESS.get()) is None else process.pid,
        }
        with contextlib.ExitStack() as stack:
            for name, fake in fakes.items():
                stack.enter_context(mock.patch(name, fake))
            yield

    async def close(self) -> None:
        """End every task, those of killed processes too."""
        self.loop.closing = True
        for process in self._processes:
            self.loop.resume(process)
        while tasks := asyncio.all_tasks(self.loop) - {asyncio.current_task()}:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=60.0)
        await asyncio.sleep(1.0)


class _NoMemoryKills:
    def explains(self, _: int | None) -> bool:
        return False


class SimulatedReporter:
    """In the place of ``Reporter``, with a service that every coordinator reaches."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._process = PROCESS.get()
        self._hear: list[Callable[[Any], None]] = []
        self.closed = False
        cluster.coordinators += 1
        cluster.told.clear()

    def listen(self, hear: Callable[[Any], None]) -> None:
        self._hear.append(hear)

    def job(self, _: Any) -> None:
        """The answer to a job report: what is known of nodes, and which migrations are wanted."""
        assert self._process is not None
        for hear in self._hear:
            self._cluster.loop.call_later(0.02, self._answer, hear, context=self._process.context)

    def _answer(self, hear: Callable[[Any], None]) -> None:
        cluster = self._cluster
        if not self.closed:
            for node in cluster.cordoned:
                cluster.told.setdefault(node, cluster.loop.now)
            warnings = {node: msgspec.to_builtins(warning) for node, warning in cluster.cordoned.items()}
            requests = [msgspec.to_builtins(request) for request in cluster.requests]
            hear({"node_warnings": warnings, "requests": requests})

    def close(self) -> None:
        self.closed = True

    def event(self, *_: Any, **__: Any) -> None:
        """No service reads events, steps, transfers, and progress."""

    step = transfers = progress = event


class SimulatedClockFormatter(logging.Formatter):
    """Simulated seconds and the host that speaks."""

    def format(self, record: logging.LogRecord) -> str:
        process = PROCESS.get()
        return f"{time.time() - START:9.3f} {process.host if process else '':9} {record.getMessage()}"


def default_options(directory: Path) -> RunOptions:
    """Two nodes of one rank with one standby each, memory only, and a state directory under ``directory``."""
    return RunOptions(
        nnodes=2, node_rank=0, nproc=1, host="10.0.0.0", port=FIRST_PORT, node="", job="job", token="secret", spares=1,
        preload=(), parity_every=0, disk_every=0, checkpoint_dir=None, max_restarts=10_000, state_dir=directory,
        service=None, service_token="", quorum=2, join_seconds=60.0, ready_seconds=15.0, node_seconds=10.0,
        script="train.py", module=False, argv=(),
    )  # fmt: skip
