"""Group commit: frames that arrive together are checked together, become durable together, and are then acknowledged.

One thread owns the block store and the rings: check, log, memory, answer. A frame that is sent again while its first
copy waits is answered with that one; sent again later, it meets itself in the store. When a commit fails, every frame
in it is answered 503: the sender keeps it and tries again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from mainstay.service.common.histogram import Histogram
from mainstay.service.common.problem import ProblemError, UnavailableError
from mainstay.service.telemetry.blocks import BlockStore, StoredBlock
from mainstay.service.telemetry.check import CheckedSamples
from mainstay.service.telemetry.frame_batch import FrameBatch
from mainstay.service.telemetry.group_check import CheckedGroup, Payload, check_group

_log: Final = logging.getLogger(__name__)
MAX_BATCH: Final = 4096
STALL_SECONDS: Final = 5.0
Answer = Callable[[bool | ProblemError], None]
"""Called on the event loop: whether the frame was not stored before, or why it is not durable."""


class NotDurableError(UnavailableError):
    slug, title = "not-durable", "Not stored"

    def __init__(self, detail: str) -> None:
        super().__init__(detail, headers={"Retry-After": "1"})


@dataclass(slots=True, eq=False)
class PendingFrame:
    """A frame or bundle on its way to the store."""

    block: StoredBlock
    payload: Payload
    answers: list[Answer]
    """Of the request that brought it first, and of those that repeated it."""
    since: float


@dataclass
class WriterStats:
    """Written by the writer thread, read by anyone."""

    commits: int = 0
    commit_failures: int = 0
    commit_seconds: float = 0.0
    last_commit_seconds: float = 0.0
    commit_durations: Histogram = field(default_factory=Histogram)
    stored: int = 0
    duplicates: int = 0
    samples: int = 0
    stored_bytes: int = 0
    newest_stop: float = 0.0
    """Newest data time stored, Unix seconds."""
    acknowledgements: Histogram = field(default_factory=Histogram)
    """How long durable frames and bundles waited, from their hand-over to the writer; of the event loop."""


@dataclass
class GroupCommitWriter:
    """The thread between the frame route and the block store.

    Args:
        store: where blocks become durable.
        keep: called in the writer thread with what was stored (fills the rings; a repetition changes nothing there).
        interval: seconds; at most one commit in each.
        max_pending: frames that may wait.
    """

    store: BlockStore
    keep: Callable[[CheckedSamples | FrameBatch], None]
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

    def enqueue(self, block: StoredBlock, payload: Payload, answer: Answer) -> None:
        """Let the frame become durable, then call ``answer``. Call on the event loop only.

        Raises:
            NotDurableError: too many wait; ``answer`` is never called.
        """
        key = block.key
        waiting = self._pending.get(key)
        if waiting is not None:
            waiting.answers.append(answer)
            return
        if len(self._pending) >= self.max_pending or self._stopping.is_set():
            raise NotDurableError("too many frames wait for the disk; try again")
        self._pending[key] = waiting = PendingFrame(block, payload, [answer], time.monotonic())
        self._queue.append(waiting)
        if not self._wake.is_set():  # setting it again costs a lock each time
            self._wake.set()

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
        checked = check_group([waiting.payload for waiting in batch])
        accepted = [place for place in range(len(batch)) if place not in checked.refused]
        blocks = [_stored(batch[place].block, checked.bodies.get(place)) for place in accepted]
        try:
            new = self.store.append(blocks) if blocks else []
        except Exception as error:  # noqa: BLE001 - named boundary: no fault of the store may end the writer
            self.stats.commit_failures += 1
            _log.exception("a commit of %d frames failed; their senders will try again", len(batch))
            failed = NotDurableError(f"the block store failed: {type(error).__name__}")
            self._answer(batch, [checked.refused.get(place, failed) for place in range(len(batch))])
            return
        self._count(blocks, new, checked, time.monotonic() - started)
        self._fill(checked)
        answers: dict[int, bool | ProblemError] = {**checked.refused, **dict(zip(accepted, new, strict=True))}
        self._answer(batch, [answers[place] for place in range(len(batch))])

    def _count(self, blocks: Sequence[StoredBlock], new: Sequence[bool], checked: CheckedGroup, seconds: float) -> None:
        stats = self.stats
        stats.commits += 1
        stats.commit_seconds += seconds
        stats.last_commit_seconds = seconds
        stats.commit_durations.observe(seconds)
        stored = [max(1, len(block.members)) for block, fresh in zip(blocks, new, strict=True) if fresh]
        stats.stored += sum(stored)
        stats.duplicates += len(blocks) - len(stored)
        stats.samples += checked.cells
        stats.stored_bytes += sum(len(block.body) for block, fresh in zip(blocks, new, strict=True) if fresh)
        stats.newest_stop = max([stats.newest_stop, *(block.stop for block in blocks)])

    def _fill(self, checked: CheckedGroup) -> None:
        for samples in checked.accepted:
            try:
                self.keep(samples)
            except Exception:  # noqa: BLE001 - named boundary: the frames are durable, even if a ring rejects them
                _log.exception("frames are stored but could not be kept in memory")

    def _answer(self, batch: Sequence[PendingFrame], results: Sequence[bool | ProblemError]) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._resolve, batch, results)
        except RuntimeError:
            _log.warning("the event loop is closed: %d frames remain unanswered", len(batch))

    def _resolve(self, batch: Sequence[PendingFrame], results: Sequence[bool | ProblemError]) -> None:
        now, waits = time.monotonic(), list[float]()
        for waiting, result in zip(batch, results, strict=True):
            del self._pending[waiting.block.key]
            for place, answer in enumerate(waiting.answers):
                try:
                    answer(result if place == 0 or isinstance(result, ProblemError) else False)
                except Exception:  # noqa: BLE001 - named boundary: a fault at one connection costs others no answer
                    _log.exception("an answer could not be given")
            if not isinstance(result, ProblemError):
                waits.append(now - waiting.since)
        self.stats.acknowledgements.observe(*waits)


async def durable(enqueue: Callable[[Answer], None]) -> bool:
    """Wait for the answer that ``enqueue`` asks for.

    Raises:
        ProblemError: the answer is one, or ``enqueue`` raises it.
    """
    done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def settle(result: bool | ProblemError) -> None:
        if done.cancelled():  # its request was
            return
        if isinstance(result, ProblemError):
            done.set_exception(result)
        else:
            done.set_result(result)

    enqueue(settle)
    return await done


def _stored(block: StoredBlock, body: bytes | None) -> StoredBlock:
    return block if body is None else replace(block, body=body)
