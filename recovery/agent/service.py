"""What the agent of one node does for each request, whatever socket it came through.

The order of checks is the same for all: the sender's generation is alive, the request makes sense, then it is done.
What is refused is refused with a kind and a sentence; nothing that a peer sends can end the agent.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Final

from recovery.agent import transfer
from recovery.agent.background import Background
from recovery.agent.disk import DiskWriter, list_disk, load_disk
from recovery.agent.encoder import Encoder, answer_row
from recovery.agent.errors import AgentError, AgentGoneError, FailureKind, RefusedError, StaleGenerationError
from recovery.agent.messages import (
    Committed,
    ConfigureParity,
    Decode,
    DiscardAfter,
    Done,
    Drop,
    Failure,
    Fence,
    Fetch,
    GetInventory,
    Hello,
    Inventory,
    LoadDisk,
    Message,
    OpenArena,
    Ping,
    ReadHead,
    ReadRow,
    ReadSlot,
    Rebuild,
)
from recovery.agent.node import Caller, Node, Settings
from recovery.agent.rebuild import rebuild, serve_stripe
from recovery.agent.rows import Rows
from recovery.agent.store import Store
from recovery.memory.errors import (
    ArenaError,
    CorruptArenaError,
    FencedError,
    ShortMemoryError,
    SlotMissingError,
    TornSlotError,
)
from recovery.memory.layout import Layout

logger = logging.getLogger("mainstay.agent")

_ARENA_KINDS: Final = {
    CorruptArenaError: FailureKind.CORRUPT,
    FencedError: FailureKind.STALE_GENERATION,
    ShortMemoryError: FailureKind.NO_MEMORY,
    SlotMissingError: FailureKind.NO_SUCH_SLOT,
    TornSlotError: FailureKind.TORN,
}


class Verifier(Background):
    """Digests what trainers have copied, and passes the word on."""

    def __init__(self, store: Store, then: Callable[[], None]) -> None:
        super().__init__("mainstay-verify")
        self._store = store
        self._then = then

    def turn(self) -> float:
        for rank, _ in self._store.all():
            self._store.verify_newest(rank)
        self._then()
        return 0.5


class Service:
    """The agent of one node, without its sockets."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.store = Store(settings.directory, slots=settings.slots, disk_every=settings.disk_every)
        self.rows = Rows(settings.directory)
        self.node = Node(settings, self.store, self.rows)
        self._encoder = Encoder(self.node)
        self._threads: list[Background] = [self._encoder]
        if settings.checkpoint_dir is not None:
            self._threads.append(DiskWriter(self.node, settings.checkpoint_dir))
        self._threads.append(Verifier(self.store, self._kick))
        self._drop_lock = threading.Lock()
        self._answers: dict[type[Message], Callable[[Any, Caller], Message | None]] = {
            Hello: _hello_again,
            Ping: lambda _m, _c: Done(),
            OpenArena: self._open_arena,
            Committed: self._committed,
            GetInventory: lambda _m, _c: self.inventory(),
            Fetch: lambda m, c: transfer.fetch(self.node, m, c.generation),
            Rebuild: lambda m, c: rebuild(self.node, m, c.generation),
            LoadDisk: lambda m, c: load_disk(self.node, m, c.generation),
            ConfigureParity: self._configure_parity,
            Fence: self._fence,
            DiscardAfter: self._discard_after,
            Drop: self._drop,
            ReadHead: lambda m, _c: transfer.answer_head(self.store, m),
            ReadRow: lambda m, _c: answer_row(self.rows, m),
            ReadSlot: lambda m, c: transfer.serve_slot(self.store, c, m),
            Decode: lambda m, c: serve_stripe(self.node, c, m),
        }

    def start(self) -> None:
        self._encoder.pin()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        for thread in self._threads:
            thread.stop()

    def answer(self, request: Message, caller: Caller) -> Message | None:
        """The reply to ``request``, or None when it has none or has written it itself."""
        try:
            self.require_live(caller.generation)
            return self._answers[type(request)](request, caller)
        except RefusedError as error:
            failure = Failure(kind=error.kind, reason=str(error))
        except AgentError as error:
            failure = Failure(kind=FailureKind.PEER, reason=str(error))
        except ArenaError as error:
            failure = Failure(kind=_ARENA_KINDS.get(type(error), FailureKind.BAD_REQUEST), reason=str(error))
        except ValueError as error:
            failure = Failure(kind=FailureKind.BAD_REQUEST, reason=str(error))
        except Exception as error:  # boundary: one request that we did not foresee must not end the agent
            logger.exception("%s failed", type(request).__name__)
            failure = Failure(kind=FailureKind.INTERNAL, reason=f"{type(error).__name__}: {error}")
        if caller.streaming:
            raise AgentGoneError(f"the bytes under way are worthless: {failure.reason}")
        return None if isinstance(request, Committed) else failure

    def require_live(self, generation: int) -> None:
        """Raise ``StaleGenerationError`` if ``generation`` has been fenced."""
        fence = self.store.config.fence
        if generation < fence:
            raise StaleGenerationError(f"generation {generation} was fenced; {fence} is the lowest alive")

    def inventory(self) -> Inventory:
        directory = self.settings.checkpoint_dir
        return Inventory(
            node=self.settings.node,
            slots=tuple(self.store.slot_infos()),
            parity=tuple(self.rows.infos()),
            disk=() if directory is None else tuple(list_disk(directory)),
            rates=self.node.meter.rates(),
            degraded=tuple(f"{subject}: {words}" for subject, words in sorted(self.store.degraded.items())),
        )

    def _kick(self) -> None:
        for thread in self._threads:
            if not isinstance(thread, Verifier):
                thread.kick()

    def _open_arena(self, request: OpenArena, _caller: Caller) -> Message:
        info = self.store.open(request.rank, Layout.from_json(request.layout))
        self._encoder.pin()
        return info

    def _committed(self, request: Committed, _caller: Caller) -> None:
        self.require_live(request.generation)
        self._threads[-1].kick()

    def _configure_parity(self, request: ConfigureParity, caller: Caller) -> Message:
        self._encoder.configure(request.group, request.every, caller.generation)
        return Done()

    def _fence(self, request: Fence, _caller: Caller) -> Message:
        self.store.fence(request.generation)
        return Done()

    def _discard_after(self, request: DiscardAfter, _caller: Caller) -> Message:
        self.store.discard_after(request.epoch)
        self.rows.discard_after(request.epoch)
        return Done()

    def _drop(self, _request: Drop, _caller: Caller) -> Message:
        with self._drop_lock:
            self.store.drop()
            self.rows.drop()
        return Done()


def _hello_again(_request: Hello, _caller: Caller) -> Message:
    return Failure(kind=FailureKind.BAD_REQUEST, reason="hello was said already")
