"""A node's processes as its launcher handles them, in the place of ``Workers`` and the fork server."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Any, Final

from mainstay.recovery.node.process_control import ExitStatus
from mainstay.recovery.node.workers import Workers
from mainstay.recovery.protocol.messages import Stacks
from tests.recovery.simulated.agents import SimulatedAgent
from tests.recovery.simulated.loop import SimulatedLoop, SimulatedProcess
from tests.recovery.simulated.ranks import SimulatedRank, Truth

WARM_SECONDS: Final = 2.0
REAP_SECONDS: Final = 0.05
_pids = itertools.count(100_000)


class SimulatedChild:
    """In the place of ``ChildProcess``."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.pid = next(_pids)
        self.exit: asyncio.Future[ExitStatus] = loop.create_future()
        self.alive = True

    async def kill(self) -> bool:
        self.alive = False
        await asyncio.sleep(REAP_SECONDS)
        return True

    async def stop(self, _: float) -> bool:
        return await self.kill()


class SimulatedTail:
    """What a process has written."""

    label, lines, errors = "", (), ()

    async def ended(self, _: float) -> None:
        """It is read at once."""


class SimulatedWorker:
    """One process that can hold a rank; it is warm from the start."""

    def __init__(self, workers: SimulatedWorkers) -> None:
        self.workers = workers
        self.owner: SimulatedProcess = workers.ranks_process
        self.child = SimulatedChild(workers.loop)
        self.tail = SimulatedTail()
        self.rank: int | None = None
        self.slot: int | None = None
        self.process: SimulatedRank | None = None
        self.ended_by_us = self.dying = False

    @property
    def ready(self) -> bool:
        return self.rank is None and self.child.alive

    def trains(self, number: int, generation: int) -> bool:
        """Whether it holds rank ``number`` and takes part in ``generation`` or a later one."""
        held = self.process
        if held is None or not self.child.alive or held.number != number or held.collective is None:
            return False
        return held.collective.generation >= generation

    def send(self, message: Any) -> None:
        loop = self.workers.loop
        if self.process is not None:
            loop.call_later(self.workers.pipe_seconds, self._receive, message, context=self.owner.context)

    def _receive(self, message: Any) -> None:
        if self.child.alive and self.process is not None:
            self.process.receive(message)

    def send_report(self, message: Any) -> None:
        """To the launcher, in whose process it is heard."""
        launcher = self.workers.process
        seconds = self.workers.pipe_seconds
        self.workers.loop.call_later(seconds, self.workers.on_report, self, message, context=launcher.context)

    def exits(self, code: int | None, signal: int | None = None) -> None:
        """The process ends on its own, or by another program's signal."""
        if not self.child.alive:
            return
        self.child.alive = False
        if self.process is not None and self.process.collective is not None:
            self.process.collective.leaves()
        loop, launcher = self.workers.loop, self.workers.process
        loop.call_later(REAP_SECONDS, self.workers.reaped, self, code, signal, context=launcher.context)


class SimulatedWorkers(Workers):
    """Starts no process. Real are ``of_rank``, ``holders``, ``free_slot``, ``keep``, and ``assign_rank``."""

    def __init__(
        self, loop: SimulatedLoop, process: SimulatedProcess, ranks_process: SimulatedProcess, agent: SimulatedAgent,
        truth: Truth, *, placed: Callable[[str, int], None], on_message: Callable[..., None],
        on_exit: Callable[..., None], on_standby: Callable[[int], None],
    ) -> None:  # fmt: skip
        self.loop = self._loop = loop
        self.process, self.ranks_process = process, ranks_process
        self.agent, self.truth, self._placed = agent, truth, placed
        self.pipe_seconds = truth.rng.choice((0.0005, 0.0005, 0.05, 0.5))
        """From the launcher to a rank, and back."""
        self.on_message, self.on_exit, self.on_standby = on_message, on_exit, on_standby
        self._all: dict[int, Any] = {}
        self._forking = 0
        self._excluded: set[int] = set()
        self._wanted: dict[int, Callable[[Any], None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.closing = False

    def assign(self, worker: Any, order: Any, slot: int) -> None:
        self._placed(self.agent.node, order.rank)
        worker.rank, worker.slot = order.rank, slot
        worker.process = SimulatedRank.assigned(worker, self.agent, self.truth, order)
        self.truth.workers = [w for w in self.truth.workers if w.child.alive] + [worker]

    async def fence(self, ranks: tuple[int, ...], exclude: tuple[int, ...] = ()) -> list[int]:
        doomed = [w for w in self.holders() if w.rank in ranks]
        stuck = await super().fence(ranks, exclude)
        for worker in doomed:
            self.reaped(worker, None, 9)
        return stuck

    async def stop(self, patience: float) -> None:
        del patience
        self.closing = True
        for worker in list(self._all.values()):
            worker.ended_by_us = True
            worker.child.alive = False

    async def _fork_worker(self) -> None:
        await asyncio.sleep(self.truth.rng.uniform(0.2, WARM_SECONDS))
        self._forking -= 1
        worker = SimulatedWorker(self)
        self._all[worker.child.pid] = worker
        if self._wanted:
            self._wanted.pop(next(iter(self._wanted)))(worker)
        self.on_standby(self.standbys)

    def on_report(self, worker: SimulatedWorker, message: Any) -> None:
        if worker.child.pid in self._all:
            self.on_message(worker, message)

    def reaped(self, worker: SimulatedWorker, code: int | None, signal: int | None) -> None:
        if self._all.pop(worker.child.pid, None) is not None:
            self.on_exit(worker, ExitStatus(code=code, signal=signal, time=time.time(), peak_bytes=None))

    def read_rest(self, worker: Any) -> None:
        """All is read at once."""


class SimulatedForkServer:
    """In the place of ``ForkServerClient``."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.child = SimulatedChild(loop)
        self.forking = False

    def close(self) -> None:
        """Nothing to close."""


class SimulatedStoreHost:
    """In the place of ``StoreHost``: an empty store has a port of its own."""

    _ports = itertools.count(50_000)

    def open(self, host: str) -> tuple[str, int]:
        return host, next(self._ports)

    async def close(self) -> None:
        """Nothing to close."""


class SimulatedDumper:
    """In the place of ``StackDumper``."""

    async def dump(self, request: int, rank: int, pid: int) -> Stacks:
        return Stacks(request=request, rank=rank, pid=pid, tool="", problem="simulated")
