"""Series of one node for a chart: from the ring where it reaches, from the blocks where it does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mainstay.probes.frame import FrameError
from mainstay.probes.signals import SIGNALS
from mainstay.service.common.problem import UnprocessableError
from mainstay.service.telemetry.block_frames import frames_of
from mainstay.service.telemetry.blocks import BlockKind, BlockStore
from mainstay.service.telemetry.catalogs import RING_SOURCES, CatalogIndex, source_of
from mainstay.service.telemetry.check import CheckedSamples, check
from mainstay.service.telemetry.envelope import Buckets, Envelope
from mainstay.service.telemetry.rates import CounterRates
from mainstay.service.telemetry.ring import TelemetryRing

MAX_BLOCK_SECONDS: Final = 24 * 3600.0
"""Longest span read from blocks at once; roll-ups will lift this."""


@dataclass(frozen=True, slots=True)
class SeriesLine:
    """One signal of one device."""

    device: str
    signal: str
    envelope: Envelope


@dataclass(frozen=True, kw_only=True)
class SeriesQuery:
    """What a chart asks for: ``signals`` of a node's ``device`` (or all) over ``[start, stop)`` Unix seconds."""

    node: str
    device: str | None
    signals: tuple[str, ...]
    start: float
    stop: float
    points: int


@dataclass(frozen=True)
class History:
    """Reads telemetry back."""

    ring: TelemetryRing
    store: BlockStore
    catalogs: CatalogIndex

    def answer(self, question: SeriesQuery, now: float) -> tuple[Buckets, list[SeriesLine]]:
        """Buckets and one line a (device, signal) that has any data.

        Raises:
            UnprocessableError: the span is longer than can be read at once.
        """
        buckets = Buckets.over(question.start, question.stop, question.points)
        if question.start >= now - self.ring.depth + 2:
            return buckets, self._from_ring(question, buckets)
        if question.stop - question.start > MAX_BLOCK_SECONDS:
            raise UnprocessableError(f"at most {MAX_BLOCK_SECONDS / 3600:.0f} h can be read at once")
        return buckets, self._from_blocks(question, buckets)

    def _from_ring(self, question: SeriesQuery, buckets: Buckets) -> list[SeriesLine]:
        lines: list[SeriesLine] = []
        for source in RING_SOURCES:
            signals = [s for s in question.signals if SIGNALS[s].source is source]
            mine = self.ring.devices(source, question.node)
            columns = [(node, device) for node, device in mine if question.device in {None, device}]
            if signals and columns:
                start, stop = int(question.start), int(np.ceil(question.stop))
                window = self.ring.window(source, start, stop, signals=signals, columns=columns)
                times = window.seconds.astype(np.float64)
                lines += [
                    SeriesLine(device, signal, buckets.thin(times, window.values[:, s, d]))
                    for d, (_, device) in enumerate(window.columns)
                    for s, signal in enumerate(window.signals)
                ]
        return lines

    def _from_blocks(self, question: SeriesQuery, buckets: Buckets) -> list[SeriesLine]:
        reader = _BlockReader(question)
        kinds = (BlockKind.TIME, BlockKind.BUNDLE)
        for block in self.store.read(question.start, question.stop, subject=question.node, kinds=kinds):
            try:
                for frame in frames_of(block, question.node):
                    compiled = self.catalogs.load(frame.catalog)
                    if compiled is not None:
                        reader.read_frame(check(frame, compiled))
            except (FrameError, UnprocessableError):
                continue  # a block written by a version with other limits is unknown, not an error of the reader
        return [
            SeriesLine(device, signal, buckets.thin(np.concatenate(times), np.concatenate(values)))
            for (device, signal), (times, values) in sorted(reader.series.items())
        ]


Chunks = tuple[list[NDArray[np.float64]], list[NDArray[np.floating]]]


class _BlockReader:
    """Collects the asked-for series from frames in order of time."""

    def __init__(self, question: SeriesQuery) -> None:
        self.series: dict[tuple[str, str], Chunks] = {}
        self._question = question
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
        chunks = self.series.setdefault((device, signal), ([], []))
        chunks[0].append(times)
        chunks[1].append(values)
