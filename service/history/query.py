"""Series of one node for a chart: from the ring, from files, or from blocks where an hour is not compacted yet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from mainstay.probes.frame import FrameError
from mainstay.probes.signals import SIGNALS
from mainstay.service.common.problem import UnprocessableError
from mainstay.service.history.series import SeriesPart, SeriesQuery
from mainstay.service.history.tiers import tier_for
from mainstay.service.telemetry.block_frames import frames_of
from mainstay.service.telemetry.blocks import HOUR, BlockKind, BlockStore
from mainstay.service.telemetry.catalogs import RING_SOURCES, CatalogIndex, source_of
from mainstay.service.telemetry.check import CheckedSamples, check
from mainstay.service.telemetry.envelope import Buckets, Envelope, Points
from mainstay.service.telemetry.rates import CounterRates
from mainstay.service.telemetry.ring import TelemetryRing

if TYPE_CHECKING:
    from mainstay.service.history.archive import Archive, Mark


LEAD_SECONDS: Final = 60
"""Read before a span of blocks, so that its first reading of a counter has a rate."""
LATE_HOURS: Final = 2
"""Compacted hours of which a chart looks for blocks that came late; the loop finds those of older ones."""


@dataclass(frozen=True, slots=True)
class SeriesLine:
    """One signal of one device."""

    device: str
    signal: str
    envelope: Envelope


@dataclass(frozen=True)
class History:
    """Reads telemetry back."""

    ring: TelemetryRing
    store: BlockStore
    catalogs: CatalogIndex
    url: str
    """Where the files of history are."""
    filled_from: float
    """Unix seconds from which the ring holds all that was sent, at a start of the service."""
    _archives: list[Archive] = field(default_factory=list, init=False, repr=False)

    @property
    def archive(self) -> Archive:
        """The files, opened by the first who asks: this imports Arrow.

        Raises:
            ValueError, OSError: the address of the files cannot be used.
        """
        if not self._archives:
            from mainstay.service.history.archive import Archive  # noqa: PLC0415 - starts threads

            self._archives.append(Archive(self.url))
        return self._archives[0]

    def answer(self, question: SeriesQuery, now: float) -> tuple[Buckets, list[SeriesLine]]:
        """Buckets and one line a (device, signal) that has any data."""
        ring_from = max(now - self.ring.depth + 2, self.filled_from)
        if question.start >= ring_from:
            buckets = Buckets.over(question.start, question.stop, question.points)
            return buckets, _lines(buckets, self._from_ring(question))
        return self._from_everywhere(question, ring_from)

    def _from_everywhere(self, question: SeriesQuery, ring_from: float) -> tuple[Buckets, list[SeriesLine]]:
        from mainstay.service.history.reader import files_of, read_points  # noqa: PLC0415 - see ``archive``

        marks = self.archive.marks()
        # A compacted hour is read from its files alone: their last buckets reach into what the ring holds.
        ring_from = min(question.stop, max(ring_from, (max(marks, default=-1) + 1) * HOUR))
        unfiled = _runs(self._unfiled_hours(marks, question.start, ring_from), question.start, ring_from)
        spans = _gaps(unfiled, question.start, ring_from)
        buckets = Buckets.over(question.start, question.stop, question.points)
        wanted = tier_for(buckets.width, question.stop - question.start)
        sources = sorted({SIGNALS[name].source for name in question.signals})
        files = {source: files_of(self.archive, question.node, source, spans, wanted) for source in sources}
        coarsest = max((tier.seconds for found in files.values() for tier in found), default=1)
        buckets = Buckets.over(question.start, question.stop, question.points, coarsest)
        parts: list[SeriesPart] = []
        for source in sources:
            parts += read_points(self.archive, files[source], question, source, buckets.start)
        for start, stop in unfiled:
            parts += self._from_blocks(question, start, stop)
        if ring_from < question.stop:
            parts += self._from_ring(replace(question, start=ring_from))
        return buckets, _lines(buckets, parts)

    def _unfiled_hours(self, marks: Mapping[int, Mark], start: float, stop: float) -> list[int]:
        """Hours of ``[start, stop)`` that have blocks and are not compacted with all of them."""
        stored = set(self.store.hours())
        reached = {*stored, *(hour + 1 for hour in stored)}  # a block may reach into the hour after its own
        newest = sorted(marks)[-LATE_HOURS:]
        late = {h for h in newest if self.store.count(h - 1) + self.store.count(h) > marks[h].blocks}
        wanted = (hour for hour in reached if start < (hour + 1) * HOUR and hour * HOUR < stop)
        return sorted(hour for hour in wanted if hour not in marks or hour in late)

    def _from_ring(self, question: SeriesQuery) -> list[SeriesPart]:
        parts: list[SeriesPart] = []
        for source in RING_SOURCES:
            signals = [s for s in question.signals if SIGNALS[s].source is source]
            mine = self.ring.devices(source, question.node)
            columns = [(node, device) for node, device in mine if question.device in {None, device}]
            if signals and columns:
                start, stop = int(question.start), int(np.ceil(question.stop))
                window = self.ring.window(source, start, stop, signals=signals, columns=columns)
                times = window.seconds.astype(np.float64)
                parts += [
                    (device, signal, Points.of_samples(times, window.values[:, s, d]))
                    for d, (_, device) in enumerate(window.columns)
                    for s, signal in enumerate(window.signals)
                ]
        return parts

    def _from_blocks(self, question: SeriesQuery, start: float, stop: float) -> list[SeriesPart]:
        reader = _BlockReader(question, start, stop)
        kinds = (BlockKind.TIME, BlockKind.BUNDLE)
        for block in self.store.read(start - LEAD_SECONDS, stop, subject=question.node, kinds=kinds):
            try:
                for frame in frames_of(block, question.node):
                    compiled = self.catalogs.load(frame.catalog)
                    if compiled is not None:
                        reader.read_frame(check(frame, compiled))
            except (FrameError, UnprocessableError):
                continue  # a block written by a version with other limits is unknown, not an error of the reader
        return reader.parts


def _lines(buckets: Buckets, parts: Iterable[SeriesPart]) -> list[SeriesLine]:
    series: dict[tuple[str, str], list[Points]] = defaultdict(list)
    for device, signal, points in parts:
        series[device, signal].append(points)
    return [
        SeriesLine(device, signal, buckets.combine(Points.joined(points)))
        for (device, signal), points in sorted(series.items())
    ]


def _runs(hours: Sequence[int], start: float, stop: float) -> list[tuple[float, float]]:
    """Hours in order as spans within ``[start, stop)``; those that follow each other are one."""
    runs: list[tuple[float, float]] = []
    for hour in hours:
        first, last = max(start, hour * HOUR), min(stop, (hour + 1) * HOUR)
        if runs and runs[-1][1] == first:
            runs[-1] = (runs[-1][0], last)
        elif first < last:
            runs.append((first, last))
    return runs


def _gaps(runs: Sequence[tuple[float, float]], start: float, stop: float) -> list[tuple[float, float]]:
    """What ``[start, stop)`` holds beside the runs."""
    edges = [start, *(edge for run in runs for edge in run), stop]
    return [(first, last) for first, last in zip(edges[::2], edges[1::2], strict=True) if first < last]


class _BlockReader:
    """Collects the asked-for series from frames in order of time."""

    def __init__(self, question: SeriesQuery, start: float, stop: float) -> None:
        self.parts: list[SeriesPart] = []
        self._question = question
        self._start, self._stop = start, stop
        self._rates: dict[tuple[str, str], CounterRates] = {}
        self._read: set[tuple[str, int]] = set()
        """(stream, sequence): a frame may have come directly and through a relay."""

    def read_frame(self, samples: CheckedSamples) -> None:
        frame, made = samples.frame, samples.compiled.catalog
        if (frame.stream, frame.sequence) in self._read:
            return
        self._read.add((frame.stream, frame.sequence))
        times = np.float64(frame.t0) + np.float64(frame.dt) * np.arange(frame.samples, dtype=np.float64)
        for place, device in enumerate(frame.entities):
            if self._question.device not in {None, device}:
                continue
            for signal in self._wanted(device, made.narrow):
                self._add(device, signal, times, samples.narrow[place, made.narrow.index(signal)])
            for signal in self._wanted(device, made.wide):
                rates = self._rates.setdefault((device, signal), CounterRates(1))
                readings = samples.wide[place, made.wide.index(signal)][:, None, None]
                only = slice(0, 1)
                rated = rates.feed(only, only, readings, starts=np.array([frame.t0]), dt=frame.dt)
                self._add(device, signal, times, rated[:, 0, 0])

    def _wanted(self, device: str, carried: Sequence[str]) -> list[str]:
        source = source_of(device)
        return [s for s in self._question.signals if s in carried and SIGNALS[s].source is source]

    def _add(self, device: str, signal: str, times: NDArray[np.float64], values: NDArray[np.floating]) -> None:
        kept = (times >= self._start) & (times < self._stop)
        if kept.any():
            self.parts.append((device, signal, Points.of_samples(times[kept], values[kept])))
