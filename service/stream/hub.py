"""Fan-out of changes to the watchers of this process.

One loop reads what was committed, by whichever process, and hands it to every watcher's bounded queue. A watcher that
cannot keep up is cut off: it comes back with its Last-Event-ID and misses nothing.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from mainstay.service.common.db import Database
from mainstay.service.stream import changes
from mainstay.service.stream.changes import Topic
from mainstay.service.stream.models import ChangeRow
from mainstay.service.stream.position import Position

RESET: Final = "reset"
"""Event name that says: too much was missed, read everything again."""
QUEUE_LENGTH: Final = 2000
"""A watcher this far behind is cut off."""


@dataclass(frozen=True, slots=True)
class Message:
    """One event of a stream. Without an id it is not resumed."""

    topic: str
    data: str
    """JSON."""
    id: Position | None


@dataclass(eq=False)
class Watcher:
    """One open stream."""

    topics: frozenset[Topic]
    loop: asyncio.AbstractEventLoop
    queue: asyncio.Queue[Message | None] = field(default_factory=lambda: asyncio.Queue(QUEUE_LENGTH))
    """None ends the stream."""

    def offer(self, messages: Iterable[Message]) -> None:
        """On the event loop: queue what the watcher asked for."""
        for message in messages:
            if message.topic not in self.topics and message.topic != RESET:
                continue
            if self.queue.qsize() >= QUEUE_LENGTH - 1:
                self.end()
                return
            self.queue.put_nowait(message)

    def end(self) -> None:
        """On the event loop: end the stream after what is queued, or at once when nothing more fits."""
        if self.queue.full():
            self.queue.get_nowait()
        self.queue.put_nowait(None)


class ChangeHub:
    """The watchers of this process, and how far they were told."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._watchers: set[Watcher] = set()
        self._lock = threading.Lock()
        self._last: Position | None = None
        self.sent = 0
        self.closed = False

    @property
    def watchers(self) -> int:
        return len(self._watchers)

    def join(self, watcher: Watcher) -> Position:
        """Add a watcher; what is after the returned position will reach its queue."""
        with self._database.reading() as session:
            newest = changes.newest(session)
        with self._lock:
            if self._last is None:
                self._last = newest
            self._watchers.add(watcher)
            if self.closed:
                watcher.loop.call_soon_threadsafe(watcher.end)
            return self._last

    def leave(self, watcher: Watcher) -> None:
        with self._lock:
            self._watchers.discard(watcher)
            if not self._watchers:
                self._last = None  # no watchers: the loop rests, and starts from the newest for the next one

    def poll(self) -> None:
        """One turn of the loop: tell the watchers what was committed since the last. Only one thread may call it."""
        last = self._last
        if last is None:
            return
        with self._database.reading() as session:
            rows = changes.after(session, last)
            messages = [reset(changes.newest(session))] if rows is None else [message_of(row) for row in rows]
        # The database is not asked under the lock: the event loop takes it too.
        with self._lock:
            if messages and self._last == last:
                self._last = messages[-1].id
                self._send(messages)

    def publish_transient(self, topic: Topic, data: dict[str, Any]) -> None:
        """Send what is true only now and need not be resumed."""
        with self._lock:
            if self._watchers:
                self._send([Message(topic.value, to_json(data), None)])

    def _send(self, messages: list[Message]) -> None:
        for watcher in self._watchers:
            watcher.loop.call_soon_threadsafe(watcher.offer, messages)
            self.sent += len(messages)

    def close(self) -> None:
        """End every stream, and those that come: the service stops. Not for signal handlers: it takes the lock."""
        with self._lock:
            self.closed = True
            for watcher in self._watchers:
                watcher.loop.call_soon_threadsafe(watcher.end)


def message_of(row: ChangeRow) -> Message:
    return Message(row.topic, to_json(row.data), row.position)


def reset(position: Position) -> Message:
    """What tells a watcher that it cannot be told all that came before ``position``."""
    return Message(RESET, to_json({"id": str(position)}), position)


def to_json(data: dict[str, Any]) -> str:
    return json.dumps(data, separators=(",", ":"), allow_nan=False)
