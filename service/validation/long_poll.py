"""Nodes that wait for orders, and how they are woken: one query for all of them, not one a node."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


class LongPollRegistry:
    """Which nodes hold a long poll open in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bells: dict[str, list[tuple[asyncio.AbstractEventLoop, asyncio.Event]]] = defaultdict(list)

    @contextmanager
    def event(self, node: str) -> Iterator[asyncio.Event]:
        """An event that is set when the node may have orders."""
        entry = (asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            self._bells[node].append(entry)
        try:
            yield entry[1]
        finally:
            with self._lock:
                self._bells[node].remove(entry)
                if not self._bells[node]:
                    del self._bells[node]

    def nodes(self) -> list[str]:
        with self._lock:
            return sorted(self._bells)

    def notify(self, nodes: set[str]) -> None:
        """Wake the given nodes' polls; safe from any thread."""
        with self._lock:
            for node in nodes:
                for loop, event in self._bells.get(node, ()):
                    loop.call_soon_threadsafe(event.set)

    def wake_nodes(self, with_orders: Callable[[Sequence[str]], set[str]]) -> None:
        """Wake the waiting nodes that have tasks."""
        waiting = self.nodes()
        if waiting:
            self.notify(with_orders(waiting))
