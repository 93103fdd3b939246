"""The detectors over a recording: the same findings as when it was live.

Detectors do not hear one another and their clock is the data's, so each takes its own feed from end to end and what
they say is put in order of time afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from mainstay.detectors.base import Array, ArrayDetector, EventDetector, Feed, Floats, Samples
from mainstay.detectors.finding import Entity, Finding
from mainstay.detectors.host.gpu_extremes import extremes, gpu_rows
from mainstay.detectors.recording.model import DEVICE_SOURCES, Recording
from mainstay.detectors.registry import ARRAY_DETECTORS, EVENT_DETECTORS
from mainstay.probes.core_types import Event
from mainstay.probes.signals import SignalSource, names

_HEARTBEAT = "heartbeat"
_LOOK_SECONDS = 10.0
"""How often the replay advances the clock of event detectors between events."""


def replay(recording: Recording, only: Sequence[str] = ()) -> list[Finding]:
    """Every finding, in order of time.

    Args:
        recording: what was seen.
        only: names of detectors; all of the registry when empty.

    Raises:
        ValueError: a name that is no detector's.
    """
    unknown = sorted(set(only) - {*ARRAY_DETECTORS, *EVENT_DETECTORS})
    if unknown:
        known = ", ".join([*EVENT_DETECTORS, *ARRAY_DETECTORS])
        raise ValueError(f"no detector is called {unknown[0]!r}; there are {known}")
    chosen = {name: cls for name, cls in ARRAY_DETECTORS.items() if not only or name in only}
    groups = [[cls for cls in chosen.values() if bool(cls.gpu_signals) == with_gpus] for with_gpus in (False, True)]
    found = [f for source in DEVICE_SOURCES for each in groups for f in _devices(recording, source, each)]
    if _HEARTBEAT in chosen:
        found += _beats(recording, chosen[_HEARTBEAT]())
    for job in recording.fleet.jobs:
        found += _job(recording, job.id, list(chosen.values()))
    found += _events(recording.events(), [cls() for name, cls in EVENT_DETECTORS.items() if not only or name in only])
    return sorted(found, key=lambda finding: (finding.time, finding.key, not finding.active))


def _devices(recording: Recording, source: SignalSource, classes: Sequence[type[ArrayDetector]]) -> list[Finding]:
    """Those of the fleet's detectors that read anything of this source."""
    carried = {*names(source, wide=False), *names(source, wide=True)}
    mine = [
        cls() for cls in classes if cls.feed is Feed.DEVICES and cls.name != _HEARTBEAT and carried & set(cls.signals)
    ]
    if not mine:
        return []
    others = {
        SignalSource.HOST: [name for one in mine for name in one.host_signals if name not in carried],
        SignalSource.GPU: [name for one in mine for name in one.gpu_signals],
    }
    chunks = recording.devices(source)
    for other, names_of in others.items():
        chunks = _with(recording, chunks, other, tuple(dict.fromkeys(names_of)))
    found: list[Finding] = []
    for samples in chunks:
        heard = [detector for detector in mine if set(detector.signals) & set(samples.signals)]
        found.extend(finding for detector in heard for finding in detector.update(samples))
    return found


def _with(
    recording: Recording, chunks: Iterator[Samples], source: SignalSource, signals: tuple[str, ...]
) -> Iterator[Samples]:
    """The samples with signals of another source, of the same node and second, beside their own."""
    lookup = _Lookup(recording, source, signals)
    for samples in chunks:
        if signals:
            x = np.concatenate([samples.x, lookup.at(samples.t, [entity.node for entity in samples.entities])], axis=1)
            samples = replace(samples, signals=samples.signals + signals, x=x)  # noqa: PLW2901 - the same samples
        yield samples


class _Lookup:
    """Signals of a source by second and node, read forward once: of the host, or one value of the GPUs."""

    def __init__(self, recording: Recording, source: SignalSource, signals: tuple[str, ...]) -> None:
        self._chunks, self._source, self._signals = recording.devices(source), source, signals
        self._held: list[Samples] = []

    def at(self, t: Floats, nodes: Sequence[str | None]) -> Array:
        """[T, S, E] float32; NaN where the source said nothing."""
        out = np.full((len(t), len(self._signals), len(nodes)), np.nan, np.float32)
        if not len(t):
            return out
        while not self._held or self._held[-1].t[-1] < t[-1]:
            following = next(self._chunks, None)
            if following is None:
                break
            self._held.append(following)
        self._held = [chunk for chunk in self._held if chunk.t[-1] >= t[0]]
        for chunk in self._held:
            mine, theirs = np.flatnonzero(np.isin(t, chunk.t)), np.flatnonzero(np.isin(chunk.t, t))
            values = self._of_nodes(chunk, theirs, nodes)
            out[mine] = np.where(np.isnan(values), out[mine], values)
        return out

    def _of_nodes(self, chunk: Samples, seconds: npt.NDArray[np.intp], nodes: Sequence[str | None]) -> Array:
        owners = [entity.node for entity in chunk.entities]
        lines = [chunk.x[seconds, chunk.signals.index(name)] if name in chunk.signals
                 else np.full((len(seconds), len(owners)), np.nan) for name in self._signals]  # fmt: skip
        x = np.stack(lines, axis=1).astype(np.float32)
        if self._source is SignalSource.GPU:
            return extremes(self._signals, x, gpu_rows(nodes, owners))
        place = {node: row for row, node in enumerate(owners)}
        padded = np.concatenate([x, np.full((*x.shape[:2], 1), np.nan, np.float32)], axis=2)
        return padded[:, :, [place.get(node, -1) for node in nodes]]


def _beats(recording: Recording, detector: ArrayDetector) -> list[Finding]:
    """When each node was heard, as its samples tell; a recording without samples says nothing of nodes."""
    last: dict[str, float] = {}
    found: list[Finding] = []
    streams = [recording.devices(source) for source in (SignalSource.HOST, SignalSource.GPU)]
    for chunks in _together(streams):
        seconds = np.unique(np.concatenate([chunk.t for chunk in chunks]))
        for second in seconds:
            for chunk in chunks:
                _hear(chunk, float(second), last)
            found += detector.update(_heard(float(second), last))
    return found


def _together(streams: Sequence[Iterator[Samples]]) -> Iterator[list[Samples]]:
    """Chunk by chunk of several sources; readers cut all of them at the same seconds."""
    while True:
        chunks = [chunk for chunk in (next(stream, None) for stream in streams) if chunk is not None]
        if not chunks:
            return
        yield chunks


def _hear(chunk: Samples, second: float, last: dict[str, float]) -> None:
    at = np.flatnonzero(chunk.t == second)
    for row in np.flatnonzero(np.isfinite(chunk.x[at]).any(axis=(0, 1))):
        node = chunk.entities[row].node
        if node is not None:
            last[node] = second


def _heard(second: float, last: dict[str, float]) -> Samples:
    nodes = sorted(last)
    return Samples(
        entities=tuple(Entity(node=node) for node in nodes),
        groups=("fleet",) * len(nodes),
        signals=("last_beat", "last_other"),
        t=np.array([second]),
        x=np.array([[[last[node] for node in nodes], [np.nan] * len(nodes)]], np.float64),
    )


def _job(recording: Recording, job: str, classes: Sequence[type[ArrayDetector]]) -> list[Finding]:
    found: list[Finding] = []
    feeds = {Feed.STEPS: recording.steps, Feed.PROGRESS: recording.progress, Feed.PAIRS: recording.pairs}
    for feed, chunks in feeds.items():
        mine = [cls() for cls in classes if cls.feed is feed]
        if mine:
            found += [f for samples in chunks(job) for detector in mine for f in detector.update(samples)]
    return found


def _events(events: Sequence[Event], detectors: Sequence[EventDetector]) -> list[Finding]:
    """Facts one by one, and the passing of time between them and for a while after the last."""
    found: list[Finding] = []
    if not events:
        return found
    looked = events[0].time
    for event in events:
        while looked + _LOOK_SECONDS < event.time:
            looked += _LOOK_SECONDS
            found += [finding for detector in detectors for finding in detector.advance_clock(looked)]
        found += [finding for detector in detectors for finding in detector.update([event])]
    return found
