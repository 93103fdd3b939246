"""Back-pressure: how long a request waits, what is refused when too much arrives, and a record of what was refused.

Requests of nodes and jobs wait in queues and threads of their own, so sign-in, reads, and acts of people continue while
those are full. Whoever is refused gets 503 with ``Retry-After``; a node daemon or launcher keeps its data until then.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import anyio
from sqlalchemy.exc import OperationalError

from mainstay.service.common.problem import UnavailableError

_log: Final = logging.getLogger(__name__)
RECENT_SECONDS: Final = 60.0
LOW_SHARE: Final = 0.5
"""Share of a queue that requests of low value may fill; the rest is kept for what cannot be missed."""
ItemT = TypeVar("ItemT")
AnswerT = TypeVar("AnswerT")


class BusyError(UnavailableError):
    slug, title = "busy", "Too many requests wait"

    def __init__(self, what: str, seconds: int) -> None:
        detail = f"too many {what} wait at the service; send it again in {seconds} s"
        super().__init__(detail, headers={"Retry-After": str(seconds)})


@dataclass
class ShedRecord:
    """What was refused because too much arrived: a total for ``/metrics``, one log line a minute, and ``/readyz``."""

    totals: Counter[str] = field(default_factory=Counter, init=False)
    _logged: Counter[str] = field(default_factory=Counter, init=False, repr=False)
    _last: dict[str, float] = field(default_factory=dict, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def note(self, what: str) -> None:
        with self._lock:
            self.totals[what] += 1
            self._last[what] = time.monotonic()

    def recent(self) -> list[str]:
        """What was refused within the last ``RECENT_SECONDS``."""
        since = time.monotonic() - RECENT_SECONDS
        with self._lock:
            return sorted(what for what, at in self._last.items() if at >= since)

    def report(self) -> None:
        """Log what was refused since the last call, in one line."""
        with self._lock:
            new, self._logged = self.totals - self._logged, self.totals.copy()
        if new:
            told = ", ".join(f"{count} {what}" for what, count in sorted(new.items()))
            _log.warning("too much arrived in the last minute: refused %s; their senders try again", told)


@dataclass
class ThreadPools:
    """Threads other than the 40 that handlers run in, so that a burst of one kind of work does not delay the others."""

    machines: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(8))
    """Reports, events, and long polls of nodes and jobs."""
    identity: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(8))
    """Looking up tokens and sessions."""
    people: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(4))
    """Checking passwords, which takes a core for half a second, and waiting for an OpenID Connect provider."""
    health: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(2))
    """``/readyz`` and ``/metrics``."""


@dataclass
class BackPressure:
    """What the parts of one process share: threads by purpose, and the record of what was refused."""

    threads: ThreadPools = field(default_factory=ThreadPools)
    shed: ShedRecord = field(default_factory=ShedRecord)


class TurnQueue:
    """Requests that wait for a turn in the event loop, without a thread: bounded in number and in time.

    Args:
        what: waits, in words, for the answer to whoever is refused.
        at_once: requests that have a turn at the same time.
        longest: requests that may wait.
        seconds: longest wait.
        shed: keeps a record of refusals.
    """

    def __init__(self, what: str, *, at_once: int, longest: int, seconds: float, shed: ShedRecord) -> None:
        self._what, self._longest, self._seconds, self._shed = what, longest, seconds, shed
        self._turns = asyncio.Semaphore(at_once)
        self._waiting = 0

    @asynccontextmanager
    async def hold_turn(self) -> AsyncIterator[None]:
        """Wait for a turn and keep it for the block.

        Raises:
            BusyError: the queue is full, or the wait was too long.
        """
        await self._wait()
        try:
            yield
        finally:
            self._turns.release()

    async def _wait(self) -> None:
        if self._waiting >= self._longest:
            self._refuse()
        self._waiting += 1
        try:
            async with asyncio.timeout(self._seconds):
                await self._turns.acquire()
        except TimeoutError:
            self._refuse()
        finally:
            self._waiting -= 1

    def _refuse(self) -> None:
        self._shed.note(self._what)
        raise BusyError(self._what, 2)


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[ItemT, AnswerT]):
    item: ItemT
    key: Hashable
    weight: int
    answer: asyncio.Future[AnswerT]


class GroupWriter(Generic[ItemT, AnswerT]):
    """Gathers what arrives while the last batch is being written, and writes it together. Call from the event loop.

    Invariant: an answer is sent after its commit. Items with the same key are written in order, in separate batches.

    Args:
        what: is written, in words.
        store: writes a batch, in a thread; returns the answer of each item. A batch that fails is written again item by
            item, so that a bad item fails alone.
        size: weight of a batch.
        longest: weight that may wait.
        pressure: lends the threads to call ``store`` in, and keeps a record of refusals.
    """

    def __init__(
        self,
        what: str,
        store: Callable[[Sequence[ItemT]], Sequence[AnswerT]],
        *,
        size: int,
        longest: int,
        pressure: BackPressure,
    ) -> None:
        self._what, self._write, self._size, self._longest = what, store, size, longest
        self._threads, self._shed = pressure.threads.machines, pressure.shed
        self._waiting: list[_Waiting[ItemT, AnswerT]] = []
        self._weight = 0
        self._writer: asyncio.Task[None] | None = None

    async def write(self, item: ItemT, *, key: Hashable, weight: int = 1, low_value: bool = False) -> AnswerT:
        """Write an item; returns its answer.

        Raises:
            BusyError: too much waits, for an item of this value.
            Exception: what ``store`` said about this item.
        """
        if self._weight >= self._longest * (LOW_SHARE if low_value else 1.0):
            what = f"{self._what} of low value" if low_value else self._what
            self._shed.note(what)
            raise BusyError(what, 5)
        waiting: _Waiting[ItemT, AnswerT] = _Waiting(item, key, weight, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._weight += weight
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_all())
        return await waiting.answer

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                batch = self._next()
                items = [waiting.item for waiting in batch]
                answers = await anyio.to_thread.run_sync(self._store, items, limiter=self._threads)
                for waiting, answer in zip(batch, answers, strict=True):
                    _answer(waiting.answer, answer)
        finally:
            self._writer = None

    def _store(self, items: Sequence[ItemT]) -> Sequence[AnswerT | Exception]:
        try:
            return self._write(items)
        except OperationalError as error:  # the database is away or locked: no item is to blame
            return [error] * len(items)
        except Exception as error:  # noqa: BLE001 - named boundary: one item must not keep the others from being stored
            if len(items) == 1:
                return [error]
            return [answer for item in items for answer in self._store([item])]

    def _next(self) -> list[_Waiting[ItemT, AnswerT]]:
        """The oldest items, until one has the key of another or the batch is full."""
        keys: set[Hashable] = set()
        batch: list[_Waiting[ItemT, AnswerT]] = []
        weight = 0
        for waiting in self._waiting[: self._size]:
            if waiting.key in keys or (batch and weight + waiting.weight > self._size):
                break
            keys.add(waiting.key)
            batch.append(waiting)
            weight += waiting.weight
        del self._waiting[: len(batch)]
        self._weight -= weight
        return batch


def _answer(future: asyncio.Future[AnswerT], answer: AnswerT | Exception) -> None:
    if future.done():  # its caller hung up
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
