"""The last report time of each node: noted in memory on the data path, written to the database by a loop.

A node that speaks all the time is written every ``write_seconds`` only: what is stored is for other processes and for
a restart, and need not be finer.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass, field


@dataclass
class LastSeenCache:
    """Node → Unix seconds of its last word to this process.

    Args:
        write_seconds: how often it is stored: well below the silence that makes a node unknown.
    """

    write_seconds: float = 2.5
    _times: dict[str, float] = field(default_factory=dict, init=False, repr=False)
    _written: dict[str, float] = field(default_factory=dict, init=False, repr=False)
    _dirty: set[str] = field(default_factory=set, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def note(self, node: str, now: float) -> None:
        with self._lock:
            self._times[node] = now
            self._dirty.add(node)

    def note_all(self, nodes: Collection[str], now: float) -> None:
        with self._lock:
            self._times.update(dict.fromkeys(nodes, now))
            self._dirty.update(nodes)

    def get(self, node: str) -> float | None:
        return self._times.get(node)

    def latest(self) -> float | None:
        """The last word of any node."""
        with self._lock:
            return max(self._times.values(), default=None)

    def take_dirty(self) -> dict[str, float]:
        """What is to be written now."""
        with self._lock:
            due = {
                n: self._times[n] for n in self._dirty if self._times[n] - self._written.get(n, 0) >= self.write_seconds
            }
            self._written.update(due)
            self._dirty.difference_update(due)
            return due
