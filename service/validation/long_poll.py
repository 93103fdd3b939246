"""Long polls of nodes that wait for tasks. One query serves all of them, not one per node."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


class LongPollRegistry:
    """The nodes with an open long poll in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: dict[str, list[tuple[asyncio.AbstractEventLoop, asyncio.Event]]] = defaultdict(list)

    @contextmanager
    def event(self, node: str) -> Iterator[asyncio.Event]:
        """Yield an event that is set when the node may have tasks or the service ends."""
        entry = (asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            self._events[node].append(entry)
        try:
            yield entry[1]
        finally:
            with self._lock:
                self._events[node].remove(entry)
                if not self._events[node]:
                    del self._events[node]

    def nodes(self) -> list[str]:
        with self._lock:
            return sorted(self._events)

    def notify(self, nodes: set[str]) -> None:
        """Wake the long polls of the given nodes. Thread-safe."""
        with self._lock:
            for node in nodes:
                for loop, event in self._events.get(node, ()):
                    loop.call_soon_threadsafe(event.set)

    def wake_nodes(self, with_orders: Callable[[Sequence[str]], set[str]]) -> None:
        """Wake the waiting nodes that have tasks."""
        waiting = self.nodes()
        if waiting:
            self.notify(with_orders(waiting))
