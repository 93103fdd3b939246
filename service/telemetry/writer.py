"""Group commit: frames that arrive together become durable together, and only then is any of them acknowledged.

One thread owns the block store and the rings. A frame that is sent again while its first copy waits joins that one's
future; sent again later, it meets itself in the store. When a commit fails, every frame in it is answered 503: the
sender keeps it and tries again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from mainstay.service.common.problem import UnavailableError
from mainstay.service.telemetry.blocks import BlockStore, StoredBlock
from mainstay.service.telemetry.check import CheckedSamples

_log: Final = logging.getLogger(__name__)
MAX_BATCH: Final = 4096
STALL_SECONDS: Final = 5.0


class NotDurableError(UnavailableError):
    slug, title = "not-durable", "Not stored"

    def __init__(self, detail: str) -> None:
        super().__init__(detail, headers={"Retry-After": "1"})


@dataclass(frozen=True, slots=True)
class PendingFrame:
    """A checked frame on its way to the store."""

    block: StoredBlock
    samples: CheckedSamples
    done: asyncio.Future[bool]
    since: float


@dataclass
class WriterStats:
    """Written by the writer thread, read by anyone."""

    commits: int = 0
    commit_failures: int = 0
    commit_seconds: float = 0.0
    last_commit_seconds: float = 0.0
    stored: int = 0
    duplicates: int = 0
    samples: int = 0
    stored_bytes: int = 0
    newest_stop: float = 0.0
    """Newest data time stored, Unix seconds."""


@dataclass
class GroupCommitWriter:
    """The thread between the frame route and the block store.

    Args:
        store: where blocks become durable.
        keep: called in the writer thread with each newly stored frame (fills the rings).
        interval: seconds; at most one commit in each.
        max_pending: frames that may wait.
    """

    store: BlockStore
    keep: Callable[[CheckedSamples], None]
    interval: float
    max_pending: int
    stats: WriterStats = field(default_factory=WriterStats, init=False)
    _queue: deque[PendingFrame] = field(default_factory=deque, init=False, repr=False)
    _pending: dict[tuple[str, str, int], PendingFrame] = field(default_factory=dict, init=False, repr=False)
    _wake: threading.Event = field(default_factory=threading.Event, init=False, repr=False)
    _stopping: threading.Event = field(default_factory=threading.Event, init=False, repr=False)
    _thread: threading.Thread | None = field(default=None, init=False, repr=False)
    _loop: asyncio.AbstractEventLoop | None = field(default=None, init=False, repr=False)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = threading.Thread(target=self._run, name="block-writer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Commit what waits, then end the thread."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(30.0)

    @property
    def pending(self) -> int:
        return len(self._pending)

    def lag(self) -> float:
        """Seconds that the oldest waiting frame has waited."""
        oldest = next(iter(list(self._pending.values())[:1]), None)
        return 0.0 if oldest is None else time.monotonic() - oldest.since

    def healthy(self) -> bool:
        """Whether frames become durable: the thread lives and nothing waits for long."""
        return self._thread is not None and self._thread.is_alive() and self.lag() < STALL_SECONDS

    async def submit(self, block: StoredBlock, samples: CheckedSamples) -> bool:
        """Wait until the frame is durable; False when it was stored before. Call on the event loop only.

        Raises:
            NotDurableError: it is not; the sender must try again.
        """
        waiting = self._pending.get(block.key)
        if waiting is not None:
            await asyncio.shield(waiting.done)
            return False
        if len(self._pending) >= self.max_pending or self._stopping.is_set():
            raise NotDurableError("too many frames wait for the disk; try again")
        assert self._loop is not None
        waiting = PendingFrame(block, samples, self._loop.create_future(), time.monotonic())
        self._pending[block.key] = waiting
        self._queue.append(waiting)
        self._wake.set()
        # Shielded: a sender that hangs up must not take the answer from one that joined it.
        return await asyncio.shield(waiting.done)

    def _run(self) -> None:
        last = 0.0
        while True:
            self._wake.wait()
            # An idle writer commits at once; a busy one lets a group gather, longer for slower commits: it
            # works at most a twentieth of the time, and no frame waits longer than the interval.
            gather = min(self.interval, 20.0 * self.stats.last_commit_seconds)
            self._stopping.wait(max(0.0, last + gather - time.monotonic()))
            self._wake.clear()
            last = time.monotonic()
            if batch := self._take():
                self._commit(batch)
            if self._queue:
                self._wake.set()  # what came meanwhile gathers in its turn
            elif self._stopping.is_set():
                return

    def _take(self) -> list[PendingFrame]:
        return [self._queue.popleft() for _ in range(min(len(self._queue), MAX_BATCH))]

    def _commit(self, batch: Sequence[PendingFrame]) -> None:
        started = time.monotonic()
        try:
            new = self.store.append([waiting.block for waiting in batch])
        except Exception as error:  # noqa: BLE001 - named boundary: no fault of the store may end the writer
            self.stats.commit_failures += 1
            _log.exception("a commit of %d frames failed; their senders will try again", len(batch))
            self._answer(batch, NotDurableError(f"the block store failed: {type(error).__name__}"))
            return
        self._count(batch, new, time.monotonic() - started)
        self._fill(batch, new)
        self._answer(batch, new)

    def _count(self, batch: Sequence[PendingFrame], new: Sequence[bool], seconds: float) -> None:
        stats = self.stats
        stats.commits += 1
        stats.commit_seconds += seconds
        stats.last_commit_seconds = seconds
        stored = [waiting for waiting, fresh in zip(batch, new, strict=True) if fresh]
        stats.stored += len(stored)
        stats.duplicates += len(batch) - len(stored)
        stats.samples += sum(w.samples.narrow.size + w.samples.wide.size for w in stored)
        stats.stored_bytes += sum(len(w.block.body) for w in stored)
        stats.newest_stop = max([stats.newest_stop, *(w.block.stop for w in stored)])

    def _fill(self, batch: Sequence[PendingFrame], new: Sequence[bool]) -> None:
        for waiting, fresh in zip(batch, new, strict=True):
            if not fresh:
                continue
            try:
                self.keep(waiting.samples)
            except Exception:  # noqa: BLE001 - named boundary: the frame is durable, even if a ring rejects it
                _log.exception("frame %s is stored but could not be kept in memory", waiting.block.key)

    def _answer(self, batch: Sequence[PendingFrame], result: Sequence[bool] | Exception) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._resolve, batch, result)
        except RuntimeError:
            _log.warning("the event loop is closed: %d frames remain unanswered", len(batch))

    def _resolve(self, batch: Sequence[PendingFrame], result: Sequence[bool] | Exception) -> None:
        for place, waiting in enumerate(batch):
            self._pending.pop(waiting.block.key, None)
            if waiting.done.cancelled():
                continue
            if isinstance(result, Exception):
                waiting.done.set_exception(result)
                # Every sender may have disconnected: then no task reads the exception, which is fine.
                waiting.done.exception()
            else:
                waiting.done.set_result(result[place])
