"""When each node last spoke: noted in memory on the data path, written to the database by a loop."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass
class Seen:
    """Node → Unix seconds of its last word to this process."""

    _times: dict[str, float] = field(default_factory=dict, init=False, repr=False)
    _dirty: set[str] = field(default_factory=set, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def note(self, node: str, now: float) -> None:
        with self._lock:
            self._times[node] = now
            self._dirty.add(node)

    def get(self, node: str) -> float | None:
        return self._times.get(node)

    def latest(self) -> float | None:
        """The last word of any node."""
        with self._lock:
            return max(self._times.values(), default=None)

    def take_dirty(self) -> dict[str, float]:
        """What changed since the last call."""
        with self._lock:
            dirty, self._dirty = self._dirty, set()
            return {node: self._times[node] for node in dirty}
