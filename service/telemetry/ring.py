"""The ring: the last minutes of the whole fleet as arrays that detectors and charts read without a query.

One ring a source, in pages of ``values[slot, signal, column]`` float32: a slot a second (``second % depth``), a column
a device; counters stand as rates. ``stamp[slot]`` says which second a slot holds, so a gap is never mistaken for old
data, and what is missing is NaN. Pages are added, never moved: new devices cost the others nothing. One thread writes;
readers get copies.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mainstay.probes.signals import WIDE_MISSING, SignalSource, names
from mainstay.service.telemetry.catalogs import RING_SOURCES, ring_signals, source_of
from mainstay.service.telemetry.check import MAX_DEVICES, CheckedSamples
from mainstay.service.telemetry.frame_placement import PAGE_COLUMNS, FramePlacement, make_plan, put
from mainstay.service.telemetry.rates import CounterRates

_NEVER: Final = -1
MAX_PLANS: Final = 100_000
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


@dataclass(frozen=True, slots=True)
class LatestReadings:
    """The last known value of every recently active device; unknown values are NaN or ``WIDE_MISSING``."""

    columns: tuple[Column, ...]
    gauges: NDArray[np.float32]
    """[narrow signal, column]"""
    counters: NDArray[np.int64]
    """[wide signal, column], totals as they were read."""


@dataclass(frozen=True, slots=True)
class NewestValues:
    """The newest known value of one signal in each column; NaN where there is none."""

    columns: tuple[Column | None, ...]
    """None: not in use."""
    values: NDArray[np.float32]
    """[column]"""


class SourceRing:
    """The ring of one source. Not locked: ``TelemetryRing`` does that."""

    def __init__(self, source: SignalSource, depth: int, page_columns: int) -> None:
        self.signals = ring_signals(source)
        self.depth = depth
        self.page_columns = page_columns
        self.columns: list[Column | None] = []
        self._source = source
        self._index: dict[Column, int] = {}
        self._held: Counter[str] = Counter()
        self._plans: dict[tuple[str, tuple[str, ...], str], FramePlacement] = {}
        self._narrow_rows = len(names(source, wide=False))
        self._counters = len(self.signals) - self._narrow_rows
        self._rates = CounterRates(self._counters)
        self._stamp = np.full(depth, _NEVER, np.int64)
        self._written = np.empty(0, np.int64)
        self._pages: list[NDArray[np.float32]] = []
        self.head = _NEVER

    @property
    def nbytes(self) -> int:
        return sum(page.nbytes for page in self._pages)

    def write(self, samples: CheckedSamples, entities: NDArray[np.intp]) -> None:
        """Place the given entities of a frame on the time axis."""
        frame = samples.frame
        # A node that keeps inventing device names has its share of memory; the rest is stored, not kept here.
        if self._held[frame.subject] > MAX_DEVICES:
            return
        plan = self._plan(samples, entities)
        self._written[plan.columns] = np.maximum(self._written[plan.columns], int(samples.stop))
        narrow = samples.narrow[plan.narrow]
        rates = self._rated(samples, plan)
        for k in range(frame.samples):
            slot = self._open(int(frame.t0 + k * frame.dt))
            if slot is not None:
                for part in plan.parts:
                    put(self._pages[part.page][slot], part.narrow, narrow[part.members, :, k].T)
                    put(self._pages[part.page][slot], part.rates, rates[part.members, :, k].T)

    def _plan(self, samples: CheckedSamples, entities: NDArray[np.intp]) -> FramePlacement:
        """Placement of a node's frames: computed once, used while its devices and its catalog stay the same."""
        frame = samples.frame
        key = (frame.subject, frame.entities, frame.catalog)
        plan = self._plans.get(key)
        if plan is None:
            columns = self._columns_of(frame.subject, [frame.entities[i] for i in entities], int(samples.stop))
            placement = samples.compiled.placements[self._source]
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            plan = make_plan(entities, columns, placement, self._narrow_rows, self.page_columns)
            self._plans[key] = plan
        return plan

    def _rated(self, samples: CheckedSamples, plan: FramePlacement) -> NDArray[np.float32]:
        frame = samples.frame
        if not plan.wide_counters.size:
            return np.empty((len(plan.columns), 0, frame.samples), np.float32)
        given = samples.wide[plan.wide]
        if len(plan.wide_counters) == self._counters and plan.counters_in_order:
            return self._rates.feed(plan.columns, given, t0=frame.t0, dt=frame.dt)
        readings = np.full((len(plan.columns), self._counters, frame.samples), WIDE_MISSING, np.int64)
        readings[:, plan.wide_counters] = given
        return self._rates.feed(plan.columns, readings, t0=frame.t0, dt=frame.dt)[:, plan.wide_counters]

    def _open(self, second: int) -> int | None:
        """The slot of ``second``, cleared when it held an older one; None when the ring has moved past it."""
        slot = second % self.depth
        if self._stamp[slot] > second:
            return None
        if self._stamp[slot] < second:
            for page in self._pages:
                page[slot] = np.nan
            self._stamp[slot] = second
            self.head = max(self.head, second)
        return slot

    def _columns_of(self, node: str, devices: Sequence[str], second: int) -> NDArray[np.intp]:
        return np.array([self._column((node, device), second) for device in devices], np.intp)

    def _column(self, key: Column, second: int) -> int:
        column = self._index.get(key)
        if column is not None:
            return column
        if len(self.columns) == len(self._written):
            self._reclaim(second)
        free = next((i for i, k in enumerate(self.columns) if k is None), None) if self._has_holes else None
        if free is None:
            free = len(self.columns)
            if free == len(self._written):
                self._add_page()
            self.columns.append(key)
        else:
            self.columns[free] = key
        self._index[key] = free
        self._written[free] = second
        self._held[key[0]] += 1
        return free

    @property
    def _has_holes(self) -> bool:
        return len(self._index) < len(self.columns)

    def _reclaim(self, second: int) -> None:
        """Take back the columns of devices that said nothing for a whole ring."""
        self._plans.clear()
        gone = [i for i, key in enumerate(self.columns) if key and self._written[i] < second - self.depth]
        for i in gone:
            key = self.columns[i]
            assert key is not None
            del self._index[key]
            self._held[key[0]] -= 1
            self.columns[i] = None
            page, place = divmod(i, self.page_columns)
            self._pages[page][:, :, place] = np.nan
        self._rates.forget(np.array(gone, np.intp))

    def _add_page(self) -> None:
        self._pages.append(np.full((self.depth, len(self.signals), self.page_columns), np.nan, np.float32))
        self._written = np.concatenate([self._written, np.full(self.page_columns, _NEVER, np.int64)])

    def reached(self, since: int) -> int | None:
        written = self._written[self._written >= since]
        return int(written.min()) if written.size else None

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
        places = np.array([self._index[key] for key in wanted], np.intp)
        start = max(start, stop - self.depth)
        seconds = np.arange(start, max(start, stop), dtype=np.int64)
        slots = seconds % self.depth
        values = self._gather(slots, np.array(rows, np.intp), places)
        values[self._stamp[slots] != seconds] = np.nan
        return Window(start, tuple(self.signals[r] for r in rows), tuple(wanted), values)

    def readings(self, stop: int, seconds: NDArray[np.int64], *, max_age_seconds: int) -> LatestReadings:
        places = np.array(
            [i for i, key in enumerate(self.columns) if key and self._written[i] >= stop - max_age_seconds], np.intp
        )
        gauges = np.full((self._narrow_rows, len(places)), np.nan, np.float32)
        for reach in np.unique(seconds):
            rows = np.flatnonzero(seconds == reach)
            gauges[rows] = self._last_known(rows, stop, int(reach))[:, places]
        columns = tuple(key for i in places if (key := self.columns[i]) is not None)
        return LatestReadings(columns, gauges, self._rates.totals(places, stop - max_age_seconds).T)

    def newest(self, signal: str, start: int, stop: int) -> NewestValues:
        known = self._last_known(np.array(self._rows([signal]), np.intp), stop, stop - start)
        return NewestValues(tuple(self.columns), known[0, : len(self.columns)])

    def _last_known(self, rows: NDArray[np.intp], stop: int, reach: int) -> NDArray[np.float32]:
        """[row, column] of the whole ring."""
        seconds = np.arange(stop - 1, stop - 1 - min(reach, self.depth), -1)
        slots = seconds[self._stamp[seconds % self.depth] == seconds] % self.depth
        # Rows that lie side by side are looked at where they are, without a copy of every second.
        window = slice(int(rows[0]), int(rows[-1]) + 1) if (np.diff(rows) == 1).all() else rows
        found = []
        for page in self._pages:
            known = np.full((len(rows), self.page_columns), np.nan, np.float32)
            for slot in slots:
                np.copyto(known, page[slot, window], where=np.isnan(known))
            found.append(known)
        return np.concatenate(found, axis=1) if found else np.empty((len(rows), 0), np.float32)

    def _gather(self, slots: NDArray[np.intp], rows: NDArray[np.intp], places: NDArray[np.intp]) -> NDArray[np.float32]:
        """[slot, row, place], a copy."""
        values = np.empty((len(slots), len(rows), len(places)), np.float32)
        pages = places // self.page_columns
        for page in np.unique(pages):
            members = np.flatnonzero(pages == page)
            mesh = np.ix_(slots, rows, places[members] % self.page_columns)
            values[:, :, members] = self._pages[page][mesh]
        return values


class TelemetryRing:
    """The rings of all sources behind one lock.

    Args:
        depth: seconds kept.
        page_columns: memory is added by this many devices.
    """

    def __init__(self, depth: int, page_columns: int = PAGE_COLUMNS) -> None:
        self.depth = depth
        self._lock = threading.Lock()
        self._rings = {source: SourceRing(source, depth, page_columns) for source in RING_SOURCES}

    def write(self, samples: CheckedSamples) -> None:
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

    def readings(
        self, source: SignalSource, stop: int, seconds: NDArray[np.int64], *, max_age_seconds: int
    ) -> LatestReadings:
        """The last known values before Unix second ``stop``.

        Args:
            source: host, gpu or nic.
            stop: Unix second.
            seconds: [narrow signal] how far back a value is looked for.
            max_age_seconds: longest time without data; older devices are left out, and so are older counters.
        """
        with self._lock:
            return self._rings[source].readings(stop, seconds, max_age_seconds=max_age_seconds)

    def newest(self, source: SignalSource, signal: str, start: int, stop: int) -> NewestValues:
        """The newest value of ``signal`` in each column in seconds ``start`` up to but not including ``stop``.

        Raises:
            ValueError: the signal is not one of the source's.
        """
        with self._lock:
            return self._rings[source].newest(signal, start, stop)

    @property
    def sources(self) -> frozenset[SignalSource]:
        return frozenset(self._rings)

    def head(self, source: SignalSource) -> int | None:
        """The newest second that holds anything, or None."""
        head = self._rings[source].head
        return None if head == _NEVER else head

    def reached(self, source: SignalSource, since: int) -> int | None:
        """The newest second that all devices have sent which sent anything since ``since``; None when none did."""
        with self._lock:
            return self._rings[source].reached(since)

    def columns(self, source: SignalSource) -> tuple[Column, ...]:
        with self._lock:
            return tuple(key for key in self._rings[source].columns if key is not None)

    @property
    def nbytes(self) -> int:
        return sum(ring.nbytes for ring in self._rings.values())
