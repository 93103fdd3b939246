"""The last report time of each node: noted in memory on the data path, written to the database by a loop.

A node that reports all the time is written every ``write_seconds`` only: what is stored is for other processes and for
a restart, and need not be finer. Times lie in one array, since a service hears 10,000 nodes each second: relays
report the same nodes again and again, so where their times lie is looked up once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

_KNOWN_GROUPS: Final = 1024
_LEAST: Final = 256


@dataclass
class LastSeenCache:
    """Node → Unix seconds of its last report to this process.

    Args:
        write_seconds: how often it is stored: well below the silence that makes a node unknown.
    """

    write_seconds: float = 2.5
    _rows: dict[str, int] = field(default_factory=dict, init=False, repr=False)
    _names: list[str] = field(default_factory=list, init=False, repr=False)
    _times: NDArray[np.float64] = field(default_factory=lambda: np.full(_LEAST, np.nan), init=False, repr=False)
    """[row] NaN where there was none."""
    _written: NDArray[np.float64] = field(default_factory=lambda: np.full(_LEAST, -np.inf), init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)
    _rows_of: Callable[[tuple[str, ...]], NDArray[np.intp]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._rows_of = lru_cache(_KNOWN_GROUPS)(self._find_rows)

    def note(self, node: str, now: float) -> None:
        """One node reported."""
        row = self._rows.get(node)
        if row is None:
            self.note_all((node,), now)
        else:
            with self._lock:
                self._times[row] = now

    def note_all(self, nodes: Iterable[str], now: float) -> None:
        """These nodes reported; the same tuple again costs next to nothing."""
        rows = self._rows_of(tuple(nodes))
        with self._lock:
            self._times[rows] = now

    def get(self, node: str) -> float | None:
        row = self._rows.get(node)
        if row is None:
            return None
        at = float(self._times[row])
        return None if at != at else at  # noqa: PLR0124 - NaN

    def times(self, nodes: tuple[str, ...]) -> NDArray[np.float64]:
        """[node] Unix seconds; NaN where this process heard nothing."""
        rows = self._rows_of(nodes)
        with self._lock:
            return self._times[rows]

    def latest(self) -> float | None:
        """The last report of any node."""
        with self._lock:
            latest = np.fmax.reduce(self._times)
        return None if np.isnan(latest) else float(latest)

    def take_dirty(self) -> dict[str, float]:
        """What is to be written now."""
        with self._lock:
            due = np.flatnonzero(self._times - self._written >= self.write_seconds)
            self._written[due] = self._times[due]
            return dict(zip([self._names[row] for row in due], self._times[due].tolist(), strict=True))

    def _find_rows(self, nodes: tuple[str, ...]) -> NDArray[np.intp]:
        with self._lock:
            new = [node for node in dict.fromkeys(nodes) if node not in self._rows]
            # Room first: ``get`` takes no lock, and a name that it finds must have its place.
            while len(self._names) + len(new) > len(self._times):
                self._times = np.concatenate([self._times, np.full_like(self._times, np.nan)])
                self._written = np.concatenate([self._written, np.full_like(self._written, -np.inf)])
            for node in new:
                self._rows[node] = len(self._names)
                self._names.append(node)
            return np.array([self._rows[node] for node in nodes], np.intp)
