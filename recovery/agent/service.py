"""What the agent of one node does for each request, through either socket.

The order of checks is the same for all: the sender's generation is alive, the request makes sense, then it is done.
What is refused is refused with a kind and a sentence; nothing that a peer sends can end the agent.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from mainstay.recovery.agent import transfer
from mainstay.recovery.agent.capacity_check import check_capacity
from mainstay.recovery.agent.checkpoint_reader import CheckpointReader
from mainstay.recovery.agent.checkpoint_upload import CheckpointUpload
from mainstay.recovery.agent.checkpoint_writer import CheckpointWriter
from mainstay.recovery.agent.disk_rebuild import DiskRebuild
from mainstay.recovery.agent.encoder import ParityEncoder, answer_row
from mainstay.recovery.agent.errors import (
    AgentError,
    AgentGoneError,
    CorruptError,
    FailureKind,
    NoSuchSlotError,
    StaleGenerationError,
)
from mainstay.recovery.agent.extra_copies import ExtraCopyManager
from mainstay.recovery.agent.messages import (
    AgentFailure,
    Committed,
    ConfigureDisk,
    ConfigureParity,
    DiscardAfterEpoch,
    Done,
    Drop,
    Fence,
    Fetch,
    GetInventory,
    Hello,
    Inventory,
    LoadDisk,
    OpenArena,
    Rebuild,
    SaveCheckpoint,
)
from mainstay.recovery.agent.node import AgentConnection, AgentNode, AgentSettings
from mainstay.recovery.agent.parity_store import ParityRowKey, ParityStore
from mainstay.recovery.agent.peer_messages import (
    Ack,
    Decode,
    LayoutText,
    LoadForRebuild,
    ParityMismatch,
    ReadCheckpointTensors,
    ReadHead,
    ReadLayout,
    ReadParity,
    ReadProtected,
    ReadRow,
    ReadSlot,
    WireMessage,
)
from mainstay.recovery.agent.periodic_thread import PeriodicThread
from mainstay.recovery.agent.rebuild import rebuild, serve_stripe
from mainstay.recovery.agent.scrub import Scrubber
from mainstay.recovery.agent.store import ArenaStore
from mainstay.recovery.checkpoint.catalog import DOWNLOADS
from mainstay.recovery.checkpoint.file_errors import refusal
from mainstay.recovery.checkpoint.levels import fetch_parts
from mainstay.recovery.checkpoint.manifest import CheckpointError, DamagedError
from mainstay.recovery.memory.errors import (
    ArenaError,
    CorruptArenaError,
    FencedError,
    ShortMemoryError,
    SlotMissingError,
    TornSlotError,
)
from mainstay.recovery.memory.layout import Layout

logger = logging.getLogger("mainstay.agent")

_KINDS: Final[dict[type[Exception], FailureKind]] = {
    CorruptArenaError: FailureKind.CORRUPT,
    FencedError: FailureKind.STALE_GENERATION,
    ShortMemoryError: FailureKind.NO_MEMORY,
    SlotMissingError: FailureKind.NO_SUCH_SLOT,
    TornSlotError: FailureKind.TORN,
}


class Verifier(PeriodicThread):
    """Digests what trainers have copied, and passes the word on."""

    def __init__(self, store: ArenaStore, then: Callable[[], None]) -> None:
        super().__init__("mainstay-verify")
        self._store = store
        self._then = then

    def run_once(self) -> float:
        for rank, _ in self._store.all():
            self._store.verify_newest(rank)
        self._then()
        return 0.5


class AgentService:
    """The agent of one node, without its sockets."""

    def __init__(self, settings: AgentSettings) -> None:
        self.settings = settings
        self.store = ArenaStore(settings.directory, slots=settings.slots, disk_every=settings.disk_every)
        self.rows = ParityStore(settings.directory)
        self.node = AgentNode(settings, self.store, self.rows)
        self._encoder = ParityEncoder(self.node)
        self._reader = CheckpointReader(self.node)
        self._disk_rebuild = DiskRebuild(self.node, self._reader)
        self._disk = None if settings.checkpoint_dir is None else CheckpointWriter(self.node, settings.checkpoint_dir)
        self._upload = None if settings.upload is None else CheckpointUpload(self.store, settings.upload)
        self.scrubber = Scrubber(self.node, self._encoder.again)
        self.extra_copies = ExtraCopyManager(self.node)
        self._verifier = Verifier(self.store, self._wake_protection)
        scrubs = self.scrubber if settings.scrub_pause else None
        threads = (self._encoder, self._disk, self._upload, scrubs, self.extra_copies, self._verifier)
        self._threads: list[PeriodicThread] = [thread for thread in threads if thread is not None]
        self._drop_lock = threading.Lock()
        self._answers: dict[type[WireMessage], Callable[[Any, AgentConnection], WireMessage | None]] = {
            Hello: lambda _m, _c: AgentFailure(kind=FailureKind.BAD_REQUEST, reason="hello was sent already"),
            OpenArena: self._open_arena,
            Committed: self._committed,
            GetInventory: lambda _m, _c: self.inventory(),
            Fetch: lambda m, c: transfer.fetch(self.node, m, c.generation),
            Rebuild: lambda m, c: rebuild(self.node, m, c.generation),
            LoadDisk: self._load_disk,
            ConfigureDisk: _done(self._configure_disk),
            SaveCheckpoint: _done(lambda m, _c: self._require_disk().save(m)),
            ConfigureParity: _done(self._configure_parity),
            Fence: _done(lambda m, _c: self.store.fence(m.generation)),
            DiscardAfterEpoch: _done(self._discard_after),
            Drop: _done(self._drop),
            ReadHead: lambda m, _c: transfer.answer_head(self.store, m),
            ReadRow: lambda m, _c: answer_row(self.node, m),
            ReadParity: lambda m, c: transfer.serve_parity(self.rows, c, m),
            ReadProtected: lambda m, _c: self._encoder.answer(m),
            ReadLayout: lambda m, _c: LayoutText(layout=self.store.layout(m.rank).to_json()),
            ReadSlot: lambda m, c: transfer.serve_slot(self.store, c, m),
            ReadCheckpointTensors: lambda m, c: self._reader.serve(c, m),
            LoadForRebuild: lambda m, c: self._disk_rebuild.answer(m, c.generation, self._run),
            Decode: lambda m, c: serve_stripe(self.node, c, m),
            ParityMismatch: self._doubt,
        }

    def start(self) -> None:
        self._encoder.pin()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        for thread in self._threads:
            thread.stop()

    def answer(self, request: WireMessage, caller: AgentConnection) -> WireMessage | None:
        """The reply to ``request``, or None when it has none or has written it itself."""
        try:
            self.require_live(caller.generation)
            return self._answers[type(request)](request, caller)
        except AgentError as error:
            kind = FailureKind.DAMAGED if isinstance(error.__cause__, DamagedError) else error.kind
            failure = AgentFailure(kind=kind, reason=str(error))
        except (ArenaError, ValueError) as error:
            failure = AgentFailure(kind=_KINDS.get(type(error), FailureKind.BAD_REQUEST), reason=str(error))
        except Exception as error:  # boundary: one unexpected request must not end the agent
            logger.exception("%s failed", type(request).__name__)
            failure = AgentFailure(kind=FailureKind.INTERNAL, reason=f"{type(error).__name__}: {error}")
        if caller.streaming:
            raise AgentGoneError(f"the bytes under way are worthless: {failure.reason}")
        return None if isinstance(request, Committed) else failure

    def require_live(self, generation: int) -> None:
        """Raise ``StaleGenerationError`` if ``generation`` has been fenced."""
        fence = self.store.config.fence
        if generation < fence:
            raise StaleGenerationError(f"generation {generation} was fenced; {fence} is the lowest alive")

    def inventory(self) -> Inventory:
        return Inventory(
            node=self.settings.node,
            slots=tuple(self.store.slot_infos()),
            parity=tuple(self.rows.infos()),
            disk=() if self._disk is None else self._disk.listed(),
            disk_parity=() if self._disk is None else self._disk.parity_seen,
            rates=self.node.meter.rates(),
            degraded=tuple(f"{subject}: {words}" for subject, words in sorted(self._degraded().items())),
            scrub=msgspec.structs.replace(self.scrubber.counts),
            upload=None if self._upload is None else self._upload.progress,
        )

    def _degraded(self) -> dict[str, str]:
        late = "" if self._disk is None else self._disk.late()
        return dict(self.store.degraded) | ({"slow disk": late} if late else {})

    def _load_disk(self, request: LoadDisk, caller: AgentConnection) -> WireMessage:
        own = self.settings.checkpoint_dir
        if own is not None and Path(request.directory).name != DOWNLOADS:  # the order names the coordinator's
            request = msgspec.structs.replace(request, directory=str(own))
        try:
            return self._load(request, caller.generation)
        except (NoSuchSlotError, CorruptError) as error:
            if self.settings.upload is None:
                raise
            logger.warning("%s; the upload level has a copy", error)
            here = error
        part = (request.rank if request.from_rank is None else request.from_rank, request.generation)
        parts = request.gather.parts if request.gather else [part]
        try:
            fetch_parts(Path(request.directory), self.settings.upload.url, request.run, request.epoch, parts)
        except (CheckpointError, OSError) as problem:
            gone = type(problem) is CheckpointError and refusal(problem) is None
            raise NoSuchSlotError(f"{here}; {problem}") from (here.__cause__ if gone else problem)
        return self._reader.load(request, caller.generation, self._run)

    def _load(self, request: LoadDisk, generation: int) -> WireMessage:
        """From this node's disk, or from those of others."""
        try:
            return self._reader.load(request, generation, self._run)
        except (NoSuchSlotError, CorruptError) as error:
            if not request.holders or request.open:  # not before the rank's process is there
                raise
            logger.warning("%s; disks of other nodes are asked", error)
            return self._disk_rebuild.restore(request, generation, self._run, str(error))

    @property
    def _run(self) -> str:
        """That this agent writes for."""
        return "" if self._disk is None or self._disk.config is None else self._disk.config.run

    def _require_disk(self) -> CheckpointWriter:
        if self._disk is None:
            raise ValueError("this agent has no --checkpoint-dir")
        return self._disk

    def _configure_disk(self, request: ConfigureDisk, _caller: AgentConnection) -> None:
        self._require_disk().configure(request)
        self._disk_rebuild.release()

    def _wake_protection(self) -> None:
        """There are slots to protect, to write, or to upload."""
        for thread in (self._encoder, self._disk, self._upload):
            if thread is not None:
                thread.wake()

    def _open_arena(self, request: OpenArena, caller: AgentConnection) -> WireMessage:
        self.store.opened[request.rank] = caller.generation
        info = self.store.open(request.rank, Layout.from_json(request.layout))
        self._encoder.pin()
        return info

    def _committed(self, request: Committed, _caller: AgentConnection) -> None:
        self.require_live(request.generation)
        self._verifier.wake()

    def _configure_parity(self, request: ConfigureParity, caller: AgentConnection) -> None:
        self._encoder.configure(request.groups, request.every, request.scheme, caller.generation)
        self.extra_copies.configure(request.extra_copies, caller.generation)
        check_capacity(self.store)

    def _doubt(self, request: ParityMismatch, _caller: AgentConnection) -> WireMessage:
        self.scrubber.doubted(ParityRowKey(request.ranks, request.place), request.epoch)
        return Ack()

    def _discard_after(self, request: DiscardAfterEpoch, _caller: AgentConnection) -> None:
        self.store.discard_after(request.epoch)
        self.rows.discard_after(request.epoch)

    def _drop(self, _request: Drop, _caller: AgentConnection) -> None:
        with self._drop_lock:
            self.store.drop()
            self.rows.forget()
            if self._disk is not None:
                self._disk.forget()


def _done(work: Callable[[Any, AgentConnection], None]) -> Callable[[Any, AgentConnection], WireMessage]:
    """An answer to requests that only want something done."""

    def answer(request: Any, caller: AgentConnection) -> WireMessage:
        work(request, caller)
        return Done()

    return answer
