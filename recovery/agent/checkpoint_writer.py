"""The agent's part of the disk level: it says which slots are to be written, and keeps the process that writes.

``mainstay.recovery.checkpoint`` defines what is written. A slot that waits for a write is pinned. A failed write
is reported, and training continues.
"""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from mainstay.probes.core_types import validate_name
from mainstay.probes.decoding import UNREADABLE
from mainstay.probes.durable_files import write_durably
from mainstay.recovery.agent.checkpoint_parity import CheckpointParity, not_written
from mainstay.recovery.agent.errors import NoSuchSlotError
from mainstay.recovery.agent.messages import ConfigureDisk, SaveCheckpoint
from mainstay.recovery.agent.node import AgentNode
from mainstay.recovery.agent.periodic_thread import PeriodicThread
from mainstay.recovery.checkpoint.catalog import RunDirectory
from mainstay.recovery.checkpoint.listed_files import ParityFile, PartFile
from mainstay.recovery.checkpoint.manifest import MANIFEST, DiskConfig, holds
from mainstay.recovery.checkpoint.writer import SlotOrder, SlotResult, WriteRequest, WriteResult
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.errors import ArenaError
from mainstay.recovery.memory.records import Word

logger = logging.getLogger("mainstay.agent")

SLOW_SECONDS: Final = 30.0
"""Of a slot; a write that takes longer is reported: 15 GB on the slowest disk that a node is likely to have."""
LIST_SECONDS: Final = 2.0
"""For a look at the names in a directory. A parallel file system under load takes a tenth of that."""
_TRIES: Final = 2
"""One that was killed begins its part again; what kills two in a row will kill the third."""
_MAX_LISTED: Final = 4096
_MAX_PARITY_LISTED: Final = 1024
"""Each names up to 64 ranks."""
_MAX_RANKS: Final = 1_000_000
_MANIFEST: Final = "checkpoint step"


class WriterGoneError(OSError):
    """The process that writes has ended without an answer."""


class WriterProcess:
    """The process that writes (``mainstay.recovery.checkpoint.writer``); it starts when there is something to write."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self.ended = False
        self.busy_since: float | None = None
        """``time.monotonic()`` of the order under way."""
        self.slots = 0
        """Of that order."""

    def submit(self, order: WriteRequest) -> WriteResult:
        """Have ``order`` carried out, however long that takes.

        Raises:
            WriterGoneError: the process was killed; the next order starts another.
        """
        with self._lock:
            self.busy_since, self.slots = time.monotonic(), len(order.slots)
            try:
                return self._converse(order)
            except (OSError, *UNREADABLE) as error:
                self._end()
                raise WriterGoneError(f"the process that writes checkpoints ended: {error}") from error
            finally:
                self.busy_since = None

    def _converse(self, order: WriteRequest) -> WriteResult:
        if self.ended:
            raise WriterGoneError("the agent ends")
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mainstay.recovery.checkpoint.writer"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(order) + b"\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise WriterGoneError(f"exit code {process.wait()}")
        return msgspec.json.decode(line, type=WriteResult)

    def stop(self) -> None:
        """End it for good at any point: a part that is half written does not count."""
        self.ended = True
        self._kill()

    def _kill(self) -> None:
        process = self._process
        if process is not None:
            process.kill()

    def _end(self) -> None:
        self._kill()
        if self._process is not None:
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # what it has not read is lost with it
                        pipe.close()
        self._process = None


class CheckpointWriter(PeriodicThread):
    """Has every pending disk epoch of every rank written, then releases its slot; reports each failed write."""

    def __init__(self, node: AgentNode, directory: Path) -> None:
        super().__init__("mainstay-disk")
        self._node = node
        self._store = node.store
        self._directory = directory
        self._writer_process = WriterProcess()
        self._parity = CheckpointParity(node)
        self._seen: tuple[PartFile, ...] = ()
        self.parity_seen: tuple[ParityFile, ...] = ()
        """Rows in the directory, as of the last ``listed``."""
        self._looking: threading.Thread | None = None
        self._begun: DiskConfig | None = None
        """As the run's directory says it."""
        self._remembered = node.store.directory / "disk.json"
        self.config: DiskConfig | None = self._remember()
        if self.config is not None:
            self._apply(self.config)

    def _remember(self) -> DiskConfig | None:
        """What an agent of this node was told before this one."""
        try:
            return msgspec.json.decode(self._remembered.read_bytes(), type=DiskConfig)
        except FileNotFoundError:
            return None
        except (OSError, *UNREADABLE) as error:
            self._store.degraded["disk level"] = f"the run was forgotten: {error}"
            return None

    def forget(self) -> None:
        """The job's memory is given back."""
        self.config = None
        self._remembered.unlink(missing_ok=True)

    def configure(self, order: ConfigureDisk) -> None:
        """Write for this run, in this shape, from now on.

        Raises:
            ValueError: an id that may not become a path, or an impossible shape.
        """
        config = order.config
        validate_name(config.run, "run")
        if min(config.dp, config.pp, config.tp) < 1 or config.dp * config.pp * config.tp > _MAX_RANKS:
            raise ValueError(f"a job of dp={config.dp} pp={config.pp} tp={config.tp} cannot be")
        if not config.common and self.config is not None and self.config.run == config.run:
            config = msgspec.structs.replace(config, common=self.config.common)
        if config.every < 0:
            raise ValueError("the disk level writes every so many epochs, 0 for never")
        write_durably(self._remembered, msgspec.json.encode(config))
        self.config = config
        self._apply(config)
        self.wake()

    def _apply(self, config: DiskConfig) -> None:
        self._store.disk_every, self._store.disk_once = config.every, config.once
        for _, arena in self._store.all():
            arena.set_word(Word.DISK_EVERY, config.every)
            arena.set_word(Word.DISK_ONCE, config.once)

    def run_once(self) -> float:
        config = self.config
        if config is None:
            return 0.5
        if self._begun != config:
            self._begin(config)
        discards = self._store.discards
        pending = {rank: (arena, _pending(arena)) for rank, arena in self._store.all()}
        for epoch in sorted({epoch for _, epochs in pending.values() for epoch in epochs}):
            due = {rank: arena for rank, (arena, epochs) in pending.items() if epoch in epochs}
            self._persist(config, [(rank, arena) for rank, arena in due.items() if rank in config.writers()], epoch)
            if not all(self._settle(rank, arena, epoch, discards) for rank, arena in due.items()):
                break
        if config.parity:
            self._write_parity(config)
        return 0.5

    def stop(self) -> None:
        self._writer_process.stop()
        super().stop()

    def save(self, order: SaveCheckpoint) -> None:
        """Write ``order.epoch`` of all ranks here that have it, and of copies that are asked for, now: the job ends.

        Raises:
            NoSuchSlotError: no run was configured, or a rank could not be written; says why.
        """
        config = self.config
        if config is None:
            raise NoSuchSlotError("the disk level has not been told which run this is")
        copies = [(rank, self._store.copies.find_copy(rank)) for rank in order.copies]
        there = [
            (rank, arena)
            for rank, arena in (*self._store.all(), *((rank, arena) for rank, arena in copies if arena is not None))
            if any(record.committed and record.epoch == order.epoch for record in arena.records())
        ]
        self._persist(config, there, order.epoch, final=True)
        problems = [self._store.degraded.get(subject, "") for subject in (*(_subject(r) for r, _ in there), _MANIFEST)]
        if any(problems):
            raise NoSuchSlotError("; ".join(problem for problem in problems if problem))

    def late(self) -> str:
        """What is to be said of a disk that is slow; empty is good."""
        since = self._writer_process.busy_since
        seconds = 0.0 if since is None else time.monotonic() - since
        late = seconds > SLOW_SECONDS * max(1, self._writer_process.slots)
        return f"a write has been under way for {seconds:.0f} s" if late else ""

    def listed(self) -> tuple[PartFile, ...]:
        """Parts of this run that are durable; what they hold is checked when one is loaded.

        A directory that hangs must not hold up a recovery that does without it: then what was last seen counts.
        """
        if self._looking is None or not self._looking.is_alive():
            self._looking = threading.Thread(target=self._look, name="mainstay-disk-list", daemon=True)
            self._looking.start()
        self._looking.join(LIST_SECONDS)
        problem = f"{self._directory} does not answer" if self._looking.is_alive() else ""
        self._store.degraded.report("checkpoint directory", problem)
        return self._seen

    def _look(self) -> None:
        self._seen, config = tuple(self._durable()), self.config
        if config is not None and config.parity:
            rows = self._parity.durable(RunDirectory(self._directory / config.run), config.returns)
            self.parity_seen = tuple(rows[:_MAX_PARITY_LISTED])

    def _durable(self) -> Iterator[PartFile]:
        config = self.config
        if config is None:
            return
        run = RunDirectory(self._directory / config.run)
        count = 0
        for epoch in reversed(run.steps()):
            if config.copies and not (run.step(epoch) / MANIFEST).exists():
                continue  # a share alone restores nothing
            for part in run.parts(epoch):
                if holds(config.returns, epoch, part.generation):
                    yield part
                    count += 1
            if count > _MAX_LISTED:
                return

    def _begin(self, config: DiskConfig) -> None:
        problem = self._ask(self._order(config)).problem
        if not self._writer_process.ended:
            self._store.degraded.report("disk level", problem)
        if not problem:
            self._begun = config

    def _order(self, config: DiskConfig) -> WriteRequest:
        settings, rate = self._node.settings, self._node.meter.rates().disk_read or 0.0
        return WriteRequest(
            directory=str(self._directory), job=settings.job, config=config, keep=settings.disk_keep, read_rate=rate
        )

    def _ask(self, order: WriteRequest) -> WriteResult:
        for _ in range(_TRIES):
            try:
                return self._writer_process.submit(order)
            except WriterGoneError as error:
                problem = str(error)
                if not self._writer_process.ended:
                    logger.warning("%s", problem)
        return WriteResult(problem=problem)

    def _settle(self, rank: int, arena: Arena, epoch: int, discards: int) -> bool:
        """Let the slot go. Not if the job went back meanwhile: then its epoch is still to be made, and written."""
        with self._store.lock(rank):
            if self._store.discards != discards:
                return False
            arena.set_word(Word.DISK_FLOOR, epoch)
            return True

    def _persist(self, config: DiskConfig, ranks: list[tuple[int, Arena]], epoch: int, *, final: bool = False) -> None:
        """Have ``epoch`` of ``ranks`` written, side by side; a failure is noted for its rank."""
        orders: dict[int, SlotOrder] = {}
        problems: dict[int, str] = {}
        for rank, arena in ranks:
            try:
                self._store.verified(rank, epoch)
                orders[rank] = SlotOrder(arena=str(arena.path), rank=rank, epoch=epoch)
            except (ArenaError, OSError) as error:
                problems[rank] = str(error)
        if orders:
            request = msgspec.structs.replace(self._order(config), slots=tuple(orders.values()), final=final)
            outcome = self._ask(request)
            slots = outcome.slots or tuple(SlotResult(problem=outcome.problem) for _ in orders)
            problems |= {rank: slot.problem for rank, slot in zip(orders, slots, strict=True)}
            self._store.degraded.report(_MANIFEST, outcome.problem if outcome.slots else "")
            nbytes = sum(slot.nbytes for slot in slots)
            if nbytes:
                self._node.meter.add_transfer("disk_write", nbytes, outcome.seconds)
        for rank, problem in problems.items():
            failed = problem and not (final and self._is_durable(config, rank, epoch))  # its slot was reused since
            self._store.degraded.report(_subject(rank), not_written(epoch, problem) if failed else "")

    def _write_parity(self, config: DiskConfig) -> None:
        """Have rows and copies of written epochs written; a failure is noted for its rank."""

        def is_written(epoch: int) -> bool:
            return epoch == config.once or (config.every > 0 and epoch > 0 and epoch % config.every == 0)

        for subject, order in self._parity.orders(is_written):
            outcome = self._ask(msgspec.structs.replace(self._order(config), slots=(order,)))
            problem = outcome.problem or next((slot.problem for slot in outcome.slots), "")
            failed = problem and not self._writer_process.ended
            self._store.degraded.report(subject, not_written(order.epoch, problem) if failed else "")

    def _is_durable(self, config: DiskConfig, rank: int, epoch: int) -> bool:
        parts = RunDirectory(self._directory / config.run).parts(epoch)
        return any(part.rank == rank and holds(config.returns, epoch, part.generation) for part in parts)


def _subject(rank: int) -> str:
    return f"disk level of rank {rank}"


def _pending(arena: Arena) -> list[int]:
    pins = arena.pins()
    return sorted({r.epoch for r in arena.records() if r.committed and pins.disk_pending(r.epoch)})
