"""The writer of snapshots: one background thread that copies a trainer's state into the next slot, and commits it.

Between ``start`` and ``wait`` the state does not change (forward and backward leave it alone), so it is copied without
stopping the trainer. What may change in that window (buffers, random numbers, scalars) is frozen by ``start`` itself.
The newest committed slot is never written, so a crash at any moment leaves a whole snapshot behind.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Protocol

from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.digest import Bytes
from mainstay.recovery.memory.layout import Layout
from mainstay.recovery.memory.slot_copy import CopyPlan, Piece, SlotCopier, idle_threads
from mainstay.recovery.memory.slots import SlotChoice

PIN_SECONDS: Final = 10.0
"""How long a snapshot waits for parity before it gives protection up to let training continue."""
_POLL_SECONDS: Final = 0.002

logger = logging.getLogger("mainstay.memory")


class SnapshotSource(Protocol):
    """What a snapshot is taken of."""

    @property
    def layout(self) -> Layout: ...

    def freeze(self) -> Mapping[str, Piece]:
        """Called in the trainer's thread: each tensor of the layout, as bytes that stay as they are until ``wait``."""


Committed = Callable[[int, int, int], None]
"""Called from the copying thread with (epoch, generation, slot) once a slot is COPIED."""


class SnapshotWriter:
    """Copies ``source`` into ``arena``, one snapshot at a time.

    ``start`` after ``optimizer.step``, ``wait`` before the next one. An error of the copy is raised by ``wait``.
    """

    def __init__(
        self,
        arena: Arena,
        source: SnapshotSource,
        *,
        on_committed: Committed | None = None,
        pin_seconds: float = PIN_SECONDS,
    ) -> None:
        arena.layout.require_same(source.layout, f"arena {arena.path}")
        self.arena = arena
        self.source = source
        self._on_committed = on_committed
        self._pin_seconds = pin_seconds
        self._copy = SlotCopier(idle_threads())
        self._places: dict[int, tuple[int, CopyPlan]] = {}
        """Slot -> its address and what goes where in it."""
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="mainstay-snapshot", daemon=True)
        self._thread.start()

    def start(self, epoch: int, generation: int) -> None:
        """Begin the snapshot of ``epoch``; returns as soon as what may change has been put aside.

        Raises:
            FencedError: the generation was revoked.
            RuntimeError: the previous snapshot has not been waited for.
        """
        if not self._idle.is_set():
            raise RuntimeError(f"snapshot of epoch {epoch} started before the previous one was waited for")
        self.arena.require_live(generation)
        pieces = self.source.freeze()
        self._idle.clear()
        self._orders.put(partial(self._snapshot, epoch, generation, pieces))

    def wait(self, timeout: float | None = None) -> float:
        """Block until the snapshot under way is committed; returns the seconds blocked (0.0 when there is none).

        Raises:
            FencedError: the generation was revoked; the slot stays invalid.
            TimeoutError: not done within ``timeout`` seconds; it continues.
            ArenaError: the copy failed.
        """
        begun = time.perf_counter()
        if not self._idle.wait(timeout):
            raise TimeoutError(f"the snapshot was not copied within {timeout} s")
        error, self._error = self._error, None
        if error is not None:
            raise error
        return time.perf_counter() - begun

    def rollback(self, epoch: int) -> None:
        """The job went back to ``epoch``: forget the slots of later ones, which belong to a future that is not to be.

        Call it after ``wait`` and before the first ``start`` of the new generation.
        """
        self._idle.wait()
        self._error = None
        self.arena.discard_after(epoch)

    def close(self) -> None:
        """Finish what is under way and end the thread. The arena stays mapped."""
        self._orders.put(None)
        self._thread.join()
        self._copy.close()

    # The copying thread

    def _work(self) -> None:
        self.arena.prefault()
        while (snapshot := self._orders.get()) is not None:
            try:
                snapshot()
            except Exception as error:  # noqa: BLE001 - boundary: the thread hands every error to wait()
                self._error = error
            finally:
                self._idle.set()

    def _snapshot(self, epoch: int, generation: int, pieces: Mapping[str, Piece]) -> None:
        choice = self._take_slot(epoch, generation)
        out = self.arena.begin_write(choice.slot, generation)
        self._copy.carry_out(self._places_in(choice.slot, out).work(pieces))
        self.arena.retire_twins(self.arena.commit(choice.slot, epoch, generation))
        if self._on_committed is not None:
            self._on_committed(epoch, generation, choice.slot)

    def _places_in(self, slot: int, out: Bytes) -> CopyPlan:
        known = self._places.get(slot)
        if known is None or known[0] != out.ctypes.data:
            known = self._places[slot] = (out.ctypes.data, CopyPlan(self.arena.layout, out))
        return known[1]

    def _take_slot(self, epoch: int, generation: int) -> SlotChoice:
        """A slot to write, waiting while all are pinned and the agent lives, but never longer than ``pin_seconds``."""
        begun = time.perf_counter()
        while True:
            choice, waited = self.arena.choose(), time.perf_counter() - begun
            if choice.sacrifices is None:
                return choice
            self.arena.require_live(generation)
            alive = self.arena.agent_alive()
            if not alive or waited > self._pin_seconds:
                why = f"parity was not ready within {self._pin_seconds} s" if alive else "the snapshot agent is gone"
                logger.error(
                    "DEGRADED rank %d epoch %d: %s; a %s slot is overwritten and training continues",
                    self.arena.header.rank,
                    epoch,
                    why,
                    choice.sacrifices,
                )
                return choice
            time.sleep(_POLL_SECONDS)
