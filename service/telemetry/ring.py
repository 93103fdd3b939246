"""The ring: the last minutes of the whole fleet as arrays that detectors and charts read without a query.

One ring a source. Each second is one array ``[signal, column]`` float32, a column a device; counters stand as rates.
Signals that change slowly (``Signal.period``) share one array for each period and remember the second of each value.
What is missing is NaN, so a gap is never mistaken for old data. Seconds leave when they are older than the ring is
deep, and the ring is as deep as its memory budget allows. One thread writes; readers get copies.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from mainstay.probes.signals import SignalSource, names
from mainstay.service.telemetry.catalogs import RING_SOURCES, RingPlacement, ring_signals
from mainstay.service.telemetry.check import MAX_DEVICES
from mainstay.service.telemetry.frame_batch import FrameBatch, Members, RingColumns
from mainstay.service.telemetry.rates import CounterRates
from mainstay.service.telemetry.ring_seconds import NEVER, RowSplit, Run, Seconds, as_run

DEFAULT_BYTES: Final = 2 * 2**30
MIN_SECONDS: Final = 60
"""However large the fleet: detectors and the heat-map look back this far."""
GROW_COLUMNS: Final = 256
"""Columns are added by this many at least, or by an eighth of what there is."""
Column = tuple[str, str]
"""(node, device)"""


@dataclass(frozen=True, slots=True)
class Window:
    """Seconds ``start`` to ``start + len(values) - 1`` of one source.

    ``values`` is [second, signal, column] float32, a copy; NaN is unknown. Empty rows that were asked for come last.
    """

    start: int
    signals: tuple[str, ...]
    columns: tuple[Column, ...]
    values: NDArray[np.float32]

    @property
    def seconds(self) -> NDArray[np.int64]:
        return np.arange(self.start, self.start + len(self.values), dtype=np.int64)


ValueT_co = TypeVar("ValueT_co", bound=np.generic, covariant=True)


@dataclass(frozen=True, slots=True)
class NewestValues(Generic[ValueT_co]):
    """The newest known value of one signal of each device; NaN (of a total ``WIDE_MISSING``) where there is none."""

    columns: tuple[Column, ...]
    """The same object while no device comes or goes."""
    values: NDArray[ValueT_co]
    """[column]"""


@dataclass(slots=True)
class ColumnIndex:
    """Which column a device has. Columns of devices that stopped reporting are assigned again."""

    grow: int = GROW_COLUMNS
    keys: list[Column | None] = field(default_factory=list)
    written: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """[column] newest second that the device sent."""
    held: Counter[str] = field(default_factory=Counter)
    """Columns of each node."""
    names: tuple[Column, ...] = ()
    """The devices in the order of their columns, without holes; the same object until it changes."""
    places: Run = field(default_factory=lambda: slice(0, 0))
    """Their columns."""
    _index: dict[Column, int] = field(default_factory=dict)
    _free: list[int] = field(default_factory=list)
    _changed: bool = False

    @property
    def capacity(self) -> int:
        return len(self.written)

    def find(self, key: Column) -> int | None:
        return self._index.get(key)

    def refresh(self) -> None:
        """Bring ``names`` and ``places`` up to date."""
        if self._changed:
            self.names = tuple(key for key in self.keys if key is not None)
            self.places = as_run(np.array([i for i, key in enumerate(self.keys) if key is not None], np.intp))
            self._changed = False

    def assign(self, key: Column, second: int) -> int:
        """A free column for a new device; the caller made room."""
        if self._free:
            column = self._free.pop()
            self.keys[column] = key
        else:
            column = len(self.keys)
            self.keys.append(key)
        self._index[key], self.written[column], self._changed = column, second, True
        self.held[key[0]] += 1
        return column

    @property
    def is_full(self) -> bool:
        return not self._free and len(self.keys) == self.capacity

    def reclaim(self, before: int) -> NDArray[np.intp]:
        """Take back the columns of devices whose newest second is older than ``before``."""
        gone = [i for i, key in enumerate(self.keys) if key and self.written[i] < before]
        for column in gone:
            key = self.keys[column]
            assert key is not None
            del self._index[key]
            self.held[key[0]] -= 1
            self.keys[column] = None
        self._free += reversed(gone)
        self._changed |= bool(gone)
        return np.array(gone, np.intp)

    def extend(self) -> None:
        more = max(self.grow, self.capacity // 8)
        self.written = np.concatenate([self.written, np.full(more, NEVER, np.int64)])


@dataclass(frozen=True, slots=True)
class _RingRows:
    """Where the signals of a catalog are in its frames, and which rows of the ring take them."""

    narrow: Run
    wide: Run
    counters: Run
    split: RowSplit


class SourceRing:
    """The ring of one source. Not locked: ``TelemetryRing`` does that."""

    def __init__(self, source: SignalSource, depth: int, grow: int) -> None:
        self.source = source
        self.signals = ring_signals(source)
        self.index = ColumnIndex(grow)
        self.seconds = Seconds(self.signals)
        self.seconds.depth = depth
        self._version = 0
        """Changes when columns are assigned again: what a layout remembers of them is then wrong."""
        self._narrow_rows = len(names(source, wide=False))
        self._rates = CounterRates(len(self.signals) - self._narrow_rows)
        self._nodes: dict[tuple[str, tuple[str, ...]], NDArray[np.intp]] = {}
        self._known_rows: dict[RingPlacement, _RingRows] = {}

    # writing

    def write(self, batch: FrameBatch) -> None:
        """Place the batch's entities of this source."""
        columns = batch.layout.columns.get(self.source)
        if columns is None or columns.version != self._version:
            members = batch.layout.members(self.source)
            if members is None:
                return
            columns = batch.layout.columns[self.source] = self._find_columns(batch, members)
        if columns.frames.size:
            self._place(batch, columns)

    def _place(self, batch: FrameBatch, columns: RingColumns) -> None:
        rows, run, places = self._rows_of(batch.compiled.placements[self.source]), columns.columns, columns.places
        starts = batch.starts[columns.frames]
        readings = batch.wide[:, rows.wide][:, :, places]
        rates = self._rates.feed(rows.counters, run, readings, starts=starts, dt=batch.dt)
        values = np.concatenate([batch.narrow[:, rows.narrow][:, :, places], rates], axis=1)
        newest = self.index.written[run]
        for k in range(batch.samples):
            seconds = np.floor(starts + k * batch.dt).astype(np.int64)
            self.seconds.write(rows.split, seconds, run, values[k], is_fresh=bool((seconds > newest).all()))
            newest = np.maximum(newest, seconds)
        self.index.written[run] = newest
        self.seconds.trim()

    def _rows_of(self, placement: RingPlacement) -> _RingRows:
        rows = self._known_rows.get(placement)
        if rows is None:
            every = np.concatenate([placement.narrow_rows, self._narrow_rows + placement.wide_counters])
            rows = self._known_rows[placement] = _RingRows(
                as_run(placement.narrow), as_run(placement.wide), as_run(placement.wide_counters),
                self.seconds.split(every),
            )  # fmt: skip
        return rows

    def _find_columns(self, batch: FrameBatch, members: Members) -> RingColumns:
        """Devices that have no place are left out."""
        newest = int(batch.starts.max() + (batch.samples - 1) * batch.dt)
        columns = np.concatenate([self._columns_of_node(node, devices, newest) for node, devices in members.devices])
        kept = np.flatnonzero(columns >= 0)
        return RingColumns(self._version, as_run(members.places[kept]), members.frames[kept], as_run(columns[kept]))

    def _columns_of_node(self, node: str, devices: tuple[str, ...], second: int) -> NDArray[np.intp]:
        known = self._nodes.get((node, devices))
        if known is not None:
            return known
        # A node that keeps inventing device names has its share of memory; the rest is stored, not kept here.
        if self.index.held[node] > MAX_DEVICES:
            return np.full(len(devices), -1, np.intp)
        columns = np.array([self._column((node, device), second) for device in devices], np.intp)
        self._nodes[node, devices] = columns
        return columns

    def _column(self, key: Column, second: int) -> int:
        column = self.index.find(key)
        if column is not None:
            return column
        if self.index.is_full:
            self._reclaim(second)
        if self.index.is_full:
            self.index.extend()
            self.seconds.capacity = self.index.capacity
        return self.index.assign(key, second)

    def _reclaim(self, second: int) -> None:
        """Take back the columns of devices that sent nothing for a whole ring."""
        gone = self.index.reclaim(second - self.seconds.depth)
        if gone.size:
            self._version += 1
            self._nodes.clear()
            self.seconds.clear_columns(gone)
            self._rates.forget(gone)

    # reading

    def reached(self, since: int) -> int | None:
        written = self.index.written[self.index.written >= since]
        return int(written.min()) if written.size else None

    def _rows(self, signals: Sequence[str] | None) -> NDArray[np.intp]:
        if signals is None:
            return np.arange(len(self.signals))
        strange = [signal for signal in signals if signal not in self.signals]
        if strange:
            raise ValueError(f"{strange[0]!r} is not a signal of this ring")
        return np.array([self.signals.index(signal) for signal in signals], np.intp)

    def window(
        self, start: int, stop: int, signals: Sequence[str] | None, columns: Sequence[Column] | None, empty_rows: int
    ) -> Window:
        rows = self._rows(signals)
        if columns is None:
            self.index.refresh()
            wanted, places = self.index.names, self.index.places
        else:
            wanted = tuple(key for key in columns if self.index.find(key) is not None)
            places = np.array([self.index.find(key) for key in wanted], np.intp)
        start = max(start, stop - self.seconds.depth)
        values = np.full((max(0, stop - start), len(rows) + empty_rows, len(wanted)), np.nan, np.float32)
        kept = max(start, self.seconds.oldest)
        self.seconds.read(kept, max(kept, stop), rows, places, values[kept - start :])
        return Window(start, tuple(self.signals[r] for r in rows), wanted, values)

    def newest(self, signal: str, start: int, stop: int, active_since: int) -> NewestValues[np.float32]:
        self.index.refresh()
        known = self.seconds.last_known(self._rows([signal]), stop, min(stop - start, self.seconds.depth))
        values = known[0, self.index.places]
        values[self.index.written[self.index.places] < active_since] = np.nan
        return NewestValues(self.index.names, values)

    def totals(self, signal: str, since: int) -> NewestValues[np.int64]:
        self.index.refresh()
        counter = int(self._rows([signal])[0]) - self._narrow_rows
        return NewestValues(self.index.names, self._rates.totals(counter, self.index.places, since))

    def newest_seconds(self) -> NewestValues[np.int64]:
        self.index.refresh()
        return NewestValues(self.index.names, self.index.written[self.index.places].copy())


class TelemetryRing:
    """The rings of all sources behind one lock.

    Args:
        depth: seconds kept at most.
        budget: bytes; a large fleet keeps fewer seconds, but at least ``MIN_SECONDS``.
        grow: columns are added by this many at least.
    """

    def __init__(self, depth: int, budget: int = DEFAULT_BYTES, grow: int = GROW_COLUMNS) -> None:
        self._most, self._budget = depth, budget
        self._lock = threading.Lock()
        self._rings = {source: SourceRing(source, depth, grow) for source in RING_SOURCES}

    @property
    def depth(self) -> int:
        """Seconds kept now."""
        return min(ring.seconds.depth for ring in self._rings.values())

    def write(self, batch: FrameBatch) -> None:
        """Place checked frames of devices; what is older than the ring is left out."""
        with self._lock:
            for ring in self._rings.values():
                ring.write(batch)
            per_second = sum(ring.seconds.bytes_per_second for ring in self._rings.values())
            depth = int(max(MIN_SECONDS, min(self._most, self._budget / max(per_second, 1.0))))
            for ring in self._rings.values():
                ring.seconds.depth = min(depth, self._most)

    def window(
        self,
        source: SignalSource,
        start: int,
        stop: int,
        *,
        signals: Sequence[str] | None = None,
        columns: Sequence[Column] | None = None,
        empty_rows: int = 0,
    ) -> Window:
        """A copy of seconds ``start`` up to but not including ``stop`` (at most ``depth`` of them, the newest).

        Args:
            source: host or gpu.
            start: Unix second.
            stop: Unix second.
            signals: names, or all of the source.
            columns: (node, device) pairs, or all; unknown ones are left out.
            empty_rows: rows after those of the signals, for the caller to fill: a second copy costs as much.

        Raises:
            ValueError: a signal is not one of the source's.
        """
        with self._lock:
            return self._rings[source].window(start, stop, signals, columns, empty_rows)

    def totals(self, source: SignalSource, signal: str, since: int) -> NewestValues[np.int64]:
        """The last total of a counter that each device read at or after Unix second ``since``, as it was read.

        Raises:
            ValueError: the signal is not one of the source's.
        """
        with self._lock:
            return self._rings[source].totals(signal, since)

    def newest_seconds(self, source: SignalSource) -> NewestValues[np.int64]:
        """The newest Unix second that each device sent anything of."""
        with self._lock:
            return self._rings[source].newest_seconds()

    def newest_second(self, column: Column) -> int | None:
        """The newest Unix second that a device sent anything of; None if no ring has it."""
        with self._lock:
            found = [(ring.index, ring.index.find(column)) for ring in self._rings.values()]
            return max((int(index.written[place]) for index, place in found if place is not None), default=None)

    def newest(
        self, source: SignalSource, signal: str, start: int, stop: int, *, active_since: int = NEVER
    ) -> NewestValues[np.float32]:
        """The newest value of ``signal`` in each column in seconds ``start`` up to but not including ``stop``.

        Devices that sent nothing since Unix second ``active_since`` have none.

        Raises:
            ValueError: the signal is not one of the source's.
        """
        with self._lock:
            return self._rings[source].newest(signal, start, stop, active_since)

    @property
    def sources(self) -> frozenset[SignalSource]:
        return frozenset(self._rings)

    def head(self, source: SignalSource) -> int | None:
        """The newest second that holds anything, or None."""
        head = self._rings[source].seconds.head
        return None if head == NEVER else head

    def reached(self, source: SignalSource, since: int) -> int | None:
        """The newest second that all devices have sent which sent anything since ``since``; None when none did."""
        with self._lock:
            return self._rings[source].reached(since)

    def columns(self, source: SignalSource) -> tuple[Column, ...]:
        with self._lock:
            index = self._rings[source].index
            index.refresh()
            return index.names

    def devices(self, source: SignalSource, node: str) -> tuple[Column, ...]:
        """The columns of one node."""
        with self._lock:
            return tuple(key for key in self._rings[source].index.keys if key is not None and key[0] == node)

    @property
    def nbytes(self) -> int:
        with self._lock:
            return sum(ring.seconds.nbytes for ring in self._rings.values())
