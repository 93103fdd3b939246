"""A coordinator in this process, and launchers that are only a connection: every failure can be told to it at will."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

from mainstay.recovery.agent.messages import NEWEST, Inventory, SlotInfo, TransferRates
from mainstay.recovery.checkpoint.listed_files import PartFile
from mainstay.recovery.checkpoint.manifest import DiskConfig
from mainstay.recovery.controller.coordinator import Coordinator
from mainstay.recovery.controller.event_recording import EventRecorder
from mainstay.recovery.options import RunOptions
from mainstay.recovery.protocol.messages import (
    ConfigureCheckpoint,
    CoordinatorHeartbeat,
    DumpStacks,
    Dying,
    Exited,
    Fenced,
    FenceNode,
    FromRank,
    LauncherHeartbeat,
    LauncherHello,
    MeasureSpeeds,
    NodeProgress,
    Prefetch,
    PrefetchCheckpoint,
    PrefetchResult,
    RegroupRank,
    SaveCheckpointCommand,
    Saved,
    Stacks,
    StartRank,
    StopJob,
    ThreadStack,
    WorkerUp,
)
from mainstay.recovery.protocol.secure_streams import open_stream
from mainstay.recovery.protocol.step_replay_messages import StepReplayRepeat, StepReplayRequest
from mainstay.recovery.protocol.wire import MessageStream, to_launcher
from mainstay.recovery.protocol.worker_messages import (
    Attached,
    Joined,
    ProgressReport,
    Ready,
    Replayed,
    RestoreOrder,
    Resumed,
    StepRecord,
)
from mainstay.recovery.recovery_plan import RestoreSource
from mainstay.recovery.telemetry.progress import ProgressCollector
from mainstay.recovery.telemetry.reporter import Reporter

DEADLINE = 60.0


class FakeNode:
    """A launcher that obeys every command at once; tests make it do otherwise."""

    answers = True
    """Whether it answers when it is asked for stacks."""
    process_state = "stopped"
    """What it says of the processes then."""
    bring_problem = ""
    """Why its agent cannot fetch what the coordinator requests."""
    fenced_bring_problem = ""
    """Likewise, but only behind the fence, where a step is named."""

    def __init__(self, world: World, number: int, stream: MessageStream) -> None:
        self.world = world
        self.number = number
        self.name = f"node-{number}"
        self.stream = stream
        self.pids: dict[int, int] = {}
        self.generation = 0
        self.slots: dict[int, int] = {}
        """Rank -> epoch of its newest slot here."""
        self.since: dict[int, int] = {}
        """Rank -> generation in which its slots were committed."""
        self.disk: list[PartFile] = []
        """Files that its agent lists."""
        self.digests: dict[int, Callable[[RestoreOrder], int]] = {}
        """What ranks say of their parameters once they have restored: rank -> order -> digest."""
        self.live: dict[int, int | None] = {}
        """Rank -> epoch in its tensors, of ranks that have resumed."""
        self.silent: set[int] = set()
        """Ranks that never leave their collective."""
        self.broken: set[RestoreSource] = set()
        """Sources from which no restore works."""
        self.damaged: set[int] = set()
        """Steps on disk of which a file is damaged."""
        self.orders, self.fences = list[RegroupRank](), list[FenceNode]()
        self.sick: dict[int, str] = {}
        """Ranks that do not replay as others do: ``wrong`` bits, ``broken`` off, ``silent``."""
        self.stopped: StopJob | None = None
        self.runs: list[DiskConfig] = []
        """What its agent was told of the disk level."""
        self.saves: list[int] = []
        """Epochs that it was asked to save at the end."""
        self.saved_copies: tuple[int, ...] = ()
        self.saves_with: str | None = ""
        """What became of that; None: no answer."""
        self.quiet = False
        """No beat is answered."""
        self.slow = False
        """Scripts take their time: ranks start, and say nothing yet."""
        self.brings, self.prefetches = list[Prefetch](), list[PrefetchCheckpoint]()
        self.asked, self.measures = list[DumpStacks](), list[MeasureSpeeds]()
        self._task = asyncio.create_task(self._serve())

    def send_report(self, rank: int, message: Any) -> None:
        self.stream.send(FromRank(rank=rank, pid=self.pids[rank], message=message))

    def kill(self, rank: int, **how: Any) -> None:
        """The rank's process dies: SIGKILL unless ``how`` says otherwise."""
        self.live.pop(rank, None)
        ended = {"exit_code": None, "signal": 9, "expected": False, "time": 1.0} | how
        self.stream.send(Exited(rank=rank, pid=self.pids.pop(rank), **ended))

    def begins_to_die(self, rank: int) -> Callable[[], None]:
        """The rank's process is being killed; call what is returned when it is reaped."""
        self.live.pop(rank, None)
        pid = self.pids.pop(rank)
        self.stream.send(Dying(rank=rank, pid=pid, signal=9, time=1.0))
        ended = Exited(rank=rank, pid=pid, exit_code=None, signal=9, expected=False, time=2.0, stderr=("last words",))
        return lambda: self.stream.send(ended)

    def commit(
        self,
        rank: int,
        epoch: int,
        *,
        generation: int | None = None,
        digest: int | None = None,
        optimizer: int | None = None,
        **signals: float,
    ) -> None:
        """The rank commits a step, and its snapshot."""
        self.live[rank] = self.slots[rank] = epoch
        self.since[rank] = generation or self.generation
        self.send_report(
            rank,
            StepRecord(
                generation=generation or self.generation, epoch=epoch, step_time=0.1, compute_time=0.1,
                snapshot_blocked=0.0, end_ns=epoch, digest=digest, optimizer=optimizer,
                micro_batches=4, routed=True, signals=signals,
            ),
        )  # fmt: skip

    def speak(self, *words: tuple[int, ProgressReport]) -> None:
        """Ranks say what they are doing."""
        gathering = ProgressCollector()
        for rank, word in words:
            gathering.add_report(rank, self.pids[rank], word)
        for rows in gathering.cut():
            self.stream.send(NodeProgress(rows=rows))

    async def _serve(self) -> None:
        while (message := await self.stream.receive()) is not None:
            match message:
                case StartRank():
                    self._start(message)
                case FenceNode():
                    self._fence(message)
                case RegroupRank():
                    self._regroup(message)
                case DumpStacks() | MeasureSpeeds():
                    self._look(message)
                case ConfigureCheckpoint() | SaveCheckpointCommand():
                    self._disk(message)
                case Prefetch() | PrefetchCheckpoint():
                    self._bring(message)
                case StopJob():
                    self.stopped = message
                case CoordinatorHeartbeat() if not self.quiet:
                    self.stream.send(LauncherHeartbeat(sequence=message.sequence))

    def _disk(self, message: ConfigureCheckpoint | SaveCheckpointCommand) -> None:
        if isinstance(message, ConfigureCheckpoint):
            self.runs.append(message.config)
            return
        self.saves.append(message.epoch)
        self.saved_copies = message.copies
        if self.saves_with is not None:
            self.stream.send(Saved(epoch=message.epoch, problem=self.saves_with))

    def _bring(self, message: Prefetch | PrefetchCheckpoint) -> None:
        if isinstance(message, PrefetchCheckpoint):
            self.prefetches.append(message)
            return
        self.brings.append(message)
        problem = self.bring_problem or (self.fenced_bring_problem if message.epoch != NEWEST else "")
        if not problem:
            source = next(n for n in self.world.nodes if f"127.0.0.1:{9000 + n.number}" == message.endpoint)
            self.slots[message.rank] = source.slots[message.rank] if message.epoch == NEWEST else message.epoch
            self.since[message.rank] = source.since[message.rank]
        self.stream.send(PrefetchResult(rank=message.rank, epoch=message.epoch, problem=problem))

    def _start(self, message: StartRank) -> None:
        self.world.starts.append(message)
        self.generation = max(self.generation, message.generation)
        self.world.next_pid += 1
        self.pids[message.rank] = self.world.next_pid
        self.stream.send(WorkerUp(rank=message.rank, pid=self.pids[message.rank]))
        if not self.slow:
            self.join(message.rank)

    def join(self, rank: int) -> None:
        """The rank's script calls ``init``."""
        self.send_report(
            rank,
            Joined(
                generation=self.generation, dp=self.world.dp, pp=self.world.pp, tp=self.world.tp,
                depths=self.world.depths,
            ),
        )  # fmt: skip

    def _fence(self, message: FenceNode) -> None:
        self.generation = message.generation
        self.fences.append(message)
        for rank in message.kill:
            if rank in self.pids:
                self.kill(rank, expected=True)
        for rank, epoch in self.live.items():
            if rank not in self.silent:
                self.send_report(rank, Ready(generation=self.generation, live_epoch=epoch, newest_epoch=epoch or 0))
        for rank in self.pids.keys() - self.live.keys():
            if not self.slow:
                self.join(rank)
        held = tuple(
            SlotInfo(rank=rank, epoch=epoch, generation=self.since.get(rank, 1), nbytes=100, verified=True)
            for rank, newest in self.slots.items()
            for epoch in (newest - 1, newest)
            if epoch >= 0
        )
        inventory = Inventory(
            node=self.name, slots=held, parity=(), disk=tuple(self.disk), rates=TransferRates(), degraded=()
        )
        self.stream.send(Fenced(generation=self.generation, inventory=inventory))

    def _look(self, message: DumpStacks | MeasureSpeeds) -> None:
        if isinstance(message, MeasureSpeeds):
            self.measures.append(message)
            return
        self.asked.append(message)
        for rank in message.ranks if self.answers else ():
            stack = ThreadStack(thread="main", frames=("wait (work.py:3)", "main (train.py:9)"))
            of: dict[str, Any] = {"request": message.request, "rank": rank, "pid": self.pids[rank]}
            self.stream.send(Stacks(**of, tool="py-spy", stacks=(stack,), state=self.process_state))

    def _regroup(self, message: RegroupRank) -> None:
        rank, restore = message.rank, message.order.restore
        if rank not in self.pids:
            return  # it has died meanwhile
        self.orders.append(message)
        self.send_report(rank, Attached(state_bytes=100, slots=2, protected=True))
        source, epoch = (restore.source, restore.epoch) if restore else (None, 0)
        ok = source not in self.broken and epoch not in self.damaged
        if epoch in self.damaged:
            self.live[rank] = None
        elif ok:
            self.live[rank] = self.slots[rank] = epoch
            self.since[rank] = message.order.generation
        digest = self.digests[rank](restore) if restore and rank in self.digests else None
        generation = message.order.generation
        self.send_report(
            rank,
            Resumed(
                generation=generation, epoch=epoch, source=source, seconds=0.01, nbytes=100, ok=ok,
                reason="" if ok else "the bytes are gone", digest=digest,
                damaged=not ok and epoch in self.damaged,
            ),
        )  # fmt: skip
        if ok and message.order.replay_request is not None:
            self.live[rank] = None
            self._replay(rank, generation, message.order.replay_request)

    def _replay(self, rank: int, generation: int, what: StepReplayRequest) -> None:
        how = self.sick.get(rank, "")
        if how == "silent":
            return
        wrong = rank + 1 if how == "wrong" else 0
        runs = tuple(
            StepReplayRepeat(
                role=role,
                digests=tuple(hash((role, what.place, at, wrong)) % 2**63 for at in range(2 * what.steps)),
            )
            for role in what.roles
        )
        reason = "no memory" if how == "broken" else ""
        self.send_report(rank, Replayed(generation=generation, seconds=0.1, runs=() if reason else runs, reason=reason))


class World:
    """One coordinator with its fake nodes."""

    def __init__(self, options: RunOptions) -> None:
        self.options = options
        self.dp, self.pp, self.tp = options.dp or options.nnodes, options.pp or options.nproc, options.tp or 1
        self.depths: tuple[int, ...] = ()
        self.starts: list[StartRank] = []
        self.next_pid = 1000
        self.nodes: list[FakeNode] = []
        self.reporter = Reporter(options)
        self.coordinator = Coordinator(options, self.reporter)
        self.recorder: EventRecorder | None = None
        if options.record_events is not None:
            self.recorder = EventRecorder(options.record_events, options, 1, self.coordinator.job.state)
            self.coordinator.job.record = self.recorder.record
        self.port = 0

    async def start(self) -> None:
        self.coordinator.job.new_store = lambda: ("127.0.0.1", 1)
        self.port = await self.coordinator.start("127.0.0.1", 0)

    async def connect(self, number: int, **changed: Any) -> FakeNode:
        ends = await open_stream("127.0.0.1", self.port, self.options.control_tls)
        stream = MessageStream(*ends, to_launcher)
        hello: dict[str, Any] = {
            "job": self.options.job, "node": f"node-{number}", "node_rank": number,
            "nnodes": self.options.nnodes, "nproc": self.options.nproc, "spares": self.options.spares,
            "standbys": self.options.spares, "spare_nodes": self.options.spare_nodes, "pid": 1,
            "agent_endpoint": f"127.0.0.1:{9000 + number}",
        }  # fmt: skip
        stream.send(LauncherHello(**hello | changed))
        node = FakeNode(self, number, stream)
        self.nodes.append(node)
        return node

    def node_of(self, rank: int) -> FakeNode:
        return next(node for node in self.nodes if rank in node.pids)

    def lose(self, number: int) -> None:
        """The launcher of a node is gone."""
        node = next(node for node in self.nodes if node.number == number)
        self.nodes.remove(node)
        node._task.cancel()
        node.stream.close()

    def commit_all(self, epoch: int, digest: int | None = None) -> None:
        for node in self.nodes:
            for rank in node.pids:
                node.commit(rank, epoch, digest=None if digest is None else digest + rank % self.pp)

    async def until(self, happened: Callable[[], Any]) -> Any:
        async with asyncio.timeout(DEADLINE):
            while not (found := happened()):  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.002)
        return found

    async def until_state(self, state: str, generation: int) -> None:
        await self.until(
            lambda: (self.coordinator.job.state.phase, self.coordinator.job.state.generation) == (state, generation)
        )

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        """All events of these kinds that the coordinator has reported; its reporter writes them on another thread."""
        if self.reporter._thread.is_alive():
            written = threading.Event()
            self.reporter._queue.put(written.set)
            assert written.wait(DEADLINE), "the reporter writes nothing"
        lines = (self.options.state_dir / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if not kinds or event["kind"] in kinds]

    async def until_event(self, kind: str, count: int = 1) -> dict[str, Any]:
        found = await self.until(lambda: len(events := self.events(kind)) >= count and events)
        return found[count - 1]

    async def close(self) -> None:
        for node in self.nodes:
            node._task.cancel()
            node.stream.close()
        await self.coordinator.close()
        if self.recorder is not None:
            self.recorder.close()
        await asyncio.to_thread(self.reporter.close)


@contextlib.asynccontextmanager
async def running(options: RunOptions, *, steps: int = 5) -> AsyncIterator[World]:
    """A job of fake nodes that has committed ``steps`` steps; 0: that has just formed."""
    world = World(options)
    await world.start()
    try:
        for number in range(options.nnodes):
            await world.connect(number)
        await world.until_state("running", 1)
        for epoch in range(1, steps + 1):
            world.commit_all(epoch, digest=7 if epoch == 1 else None)
        if steps:
            await world.until(lambda: min(rank.epoch for rank in world.coordinator.job.members.ranks) == steps)
        yield world
    finally:
        await world.close()
