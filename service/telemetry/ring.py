"""The ring: the last minutes of the whole fleet as arrays that detectors and charts read without a query.

One ring a source, ``values[slot, signal, column]`` float32, a slot a second (``second % depth``), a column a device;
counters stand as rates. ``stamp[slot]`` says which second a slot holds, so a gap is never mistaken for old data, and
what is missing is NaN. One thread writes; readers get copies.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from probes.signals import SignalSource, names
from service.telemetry.catalogues import RING_SOURCES, ring_signals, source_of
from service.telemetry.check import MAX_DEVICES, Samples
from service.telemetry.rates import CounterRates

_NEVER: Final = -1
Column = tuple[str, str]
"""(node, device)"""


@dataclass(frozen=True, slots=True)
class Window:
    """Seconds ``start`` to ``start + len(values) - 1`` of one source.

    ``values`` is [second, signal, column] float32, a copy; NaN is unknown.
    """

    start: int
    signals: tuple[str, ...]
    columns: tuple[Column, ...]
    values: NDArray[np.float32]

    @property
    def seconds(self) -> NDArray[np.int64]:
        return np.arange(self.start, self.start + len(self.values), dtype=np.int64)


class SourceRing:
    """The ring of one source. Not locked: ``Ring`` does that."""

    def __init__(self, source: SignalSource, depth: int) -> None:
        self.signals = ring_signals(source)
        self.depth = depth
        self.columns: list[Column | None] = []
        self._source = source
        self._index: dict[Column, int] = {}
        self._held: Counter[str] = Counter()
        self._narrow_rows = len(names(source, wide=False))
        self._rates = CounterRates(len(self.signals) - self._narrow_rows)
        self._stamp = np.full(depth, _NEVER, np.int64)
        self._written = np.empty(0, np.int64)
        self._values = np.empty((depth, len(self.signals), 0), np.float32)
        self.head = _NEVER

    @property
    def nbytes(self) -> int:
        return self._values.nbytes

    def write(self, samples: Samples, entities: NDArray[np.intp]) -> None:
        """Place the given entities of a frame on the time axis."""
        frame, placement = samples.frame, samples.compiled.placements[self._source]
        # A node that keeps inventing device names has its share of memory; the rest is stored, not kept here.
        if self._held[frame.subject] > MAX_DEVICES:
            return
        columns = self._columns_of(frame.subject, [frame.entities[i] for i in entities], int(samples.stop))
        narrow = samples.narrow[np.ix_(entities, placement.narrow)]
        rates = self._rated(samples, entities, columns)
        rows, rate_rows = placement.narrow_rows, self._narrow_rows + placement.wide_counters
        for k in range(frame.samples):
            slot = self._open(int(frame.t0 + k * frame.dt))
            if slot is not None:
                self._put(slot, rows, columns, narrow[:, :, k])
                self._put(slot, rate_rows, columns, rates[:, :, k])

    def _rated(self, samples: Samples, entities: NDArray[np.intp], columns: NDArray[np.intp]) -> NDArray[np.float32]:
        frame, placement = samples.frame, samples.compiled.placements[self._source]
        counters = len(self.signals) - self._narrow_rows
        if not placement.wide.size:
            return np.empty((len(entities), 0, frame.samples), np.float32)
        readings = np.full((len(entities), counters, frame.samples), np.iinfo(np.int64).min, np.int64)
        readings[:, placement.wide_counters] = samples.wide[np.ix_(entities, placement.wide)]
        return self._rates.feed(columns, readings, t0=frame.t0, dt=frame.dt)[:, placement.wide_counters]

    def _put(self, slot: int, rows: NDArray[np.intp], columns: NDArray[np.intp], values: NDArray[np.float32]) -> None:
        # Several samples in one second: the last known one stays.
        place = np.ix_(rows, columns)
        now = values.T
        kept = self._values[slot][place]
        self._values[slot][place] = np.where(np.isnan(now), kept, now)

    def _open(self, second: int) -> int | None:
        """The slot of ``second``, cleared when it held an older one; None when the ring has moved past it."""
        slot = second % self.depth
        if self._stamp[slot] > second:
            return None
        if self._stamp[slot] < second:
            self._values[slot] = np.nan
            self._stamp[slot] = second
            self.head = max(self.head, second)
        return slot

    def _columns_of(self, node: str, devices: Sequence[str], second: int) -> NDArray[np.intp]:
        found = np.array([self._column((node, device), second) for device in devices], np.intp)
        self._written[found] = np.maximum(self._written[found], second)
        return found

    def _column(self, key: Column, second: int) -> int:
        column = self._index.get(key)
        if column is not None:
            return column
        if len(self.columns) == self._values.shape[2]:
            self._reclaim(second)
        free = next((i for i, k in enumerate(self.columns) if k is None), None) if self._has_holes else None
        if free is None:
            free = len(self.columns)
            self._grow(free + 1)
            self.columns.append(key)
        else:
            self.columns[free] = key
        self._index[key] = free
        self._held[key[0]] += 1
        return free

    @property
    def _has_holes(self) -> bool:
        return len(self._index) < len(self.columns)

    def _reclaim(self, second: int) -> None:
        """Take back the columns of devices that said nothing for a whole ring."""
        gone = [i for i, key in enumerate(self.columns) if key and self._written[i] < second - self.depth]
        for i in gone:
            key = self.columns[i]
            assert key is not None
            del self._index[key]
            self._held[key[0]] -= 1
            self.columns[i] = None
        self._values[:, :, gone] = np.nan
        self._rates.forget(np.array(gone, np.intp))

    def _grow(self, columns: int) -> None:
        have = self._values.shape[2]
        if columns <= have:
            return
        grown = max(columns, 2 * have, 16)
        values = np.full((self.depth, len(self.signals), grown), np.nan, np.float32)
        values[:, :, :have] = self._values
        self._values = values
        self._written = np.concatenate([self._written, np.full(grown - have, _NEVER, np.int64)])

    def _rows(self, signals: Sequence[str] | None) -> list[int]:
        if signals is None:
            return list(range(len(self.signals)))
        strange = [signal for signal in signals if signal not in self.signals]
        if strange:
            raise ValueError(f"{strange[0]!r} is not a signal of this ring")
        return [self.signals.index(signal) for signal in signals]

    def window(self, start: int, stop: int, signals: Sequence[str] | None, columns: Sequence[Column] | None) -> Window:
        rows = self._rows(signals)
        wanted = (
            [k for k in self.columns if k is not None] if columns is None else [c for c in columns if c in self._index]
        )
        places = [self._index[key] for key in wanted]
        start = max(start, stop - self.depth)
        seconds = np.arange(start, max(start, stop), dtype=np.int64)
        slots = seconds % self.depth
        values = self._values[np.ix_(slots, np.array(rows, np.intp), np.array(places, np.intp))]
        values[self._stamp[slots] != seconds] = np.nan
        return Window(start, tuple(self.signals[r] for r in rows), tuple(wanted), values)


class Ring:
    """The rings of all sources behind one lock.

    Args:
        depth: seconds kept.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._lock = threading.Lock()
        self._rings = {source: SourceRing(source, depth) for source in RING_SOURCES}

    def write(self, samples: Samples) -> None:
        """Place a checked frame of the time axis; what is older than the ring is left out."""
        sources = [source_of(entity) for entity in samples.frame.entities]
        with self._lock:
            for source, ring in self._rings.items():
                mine = np.array([i for i, s in enumerate(sources) if s is source], np.intp)
                if mine.size:
                    ring.write(samples, mine)

    def window(
        self,
        source: SignalSource,
        start: int,
        stop: int,
        *,
        signals: Sequence[str] | None = None,
        columns: Sequence[Column] | None = None,
    ) -> Window:
        """A copy of seconds ``start`` up to but not including ``stop`` (at most ``depth`` of them, the newest).

        Args:
            source: host or gpu.
            start: Unix second.
            stop: Unix second.
            signals: names, or all of the source.
            columns: (node, device) pairs, or all; unknown ones are left out.

        Raises:
            ValueError: a signal is not one of the source's.
        """
        with self._lock:
            return self._rings[source].window(start, stop, signals, columns)

    @property
    def sources(self) -> frozenset[SignalSource]:
        return frozenset(self._rings)

    def head(self, source: SignalSource) -> int | None:
        """The newest second that holds anything, or None."""
        head = self._rings[source].head
        return None if head == _NEVER else head

    def columns(self, source: SignalSource) -> tuple[Column, ...]:
        with self._lock:
            return tuple(key for key in self._rings[source].columns if key is not None)

    @property
    def nbytes(self) -> int:
        return sum(ring.nbytes for ring in self._rings.values())
