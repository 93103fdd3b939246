"""A recording that is written in one go, as generators make it; ``recorder`` writes that of a service in parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mainstay.detectors.base import Samples
from mainstay.detectors.recording import files
from mainstay.detectors.recording.model import DEVICE_SOURCES, FleetInfo, Recording
from mainstay.detectors.recording.tables import Tables
from mainstay.probes.core_types import Event
from mainstay.probes.signals import SIGNALS, SignalKind, SignalSource


def write(recording: Recording, directory: Path) -> None:
    """Write a recording; the directory is made and must not hold another one.

    Raises:
        FileExistsError: it holds one already.
    """
    if (directory / files.FLEET).exists():
        raise FileExistsError(f"{directory} holds a recording already")
    directory.mkdir(parents=True, exist_ok=True)
    feeds = {files.STEPS: recording.steps, files.PROGRESS: recording.progress, files.PAIRS: recording.pairs}
    with Tables(directory) as tables:
        for source in DEVICE_SOURCES:
            _samples(recording.devices(source), tables)
        for job in recording.fleet.jobs:
            for name, feed in feeds.items():
                for samples in feed(job.id):
                    tables.add_columns(name, _wide(name, job.id, samples))
        if events := recording.events():
            tables.add_columns(files.EVENTS, _events(events))
    files.write_fleet(directory / files.FLEET, recording.fleet)


def _samples(chunks: Iterable[Samples], tables: Tables) -> None:
    """A row for each known value; counters as totals, which is how a node daemon records them."""
    totals: dict[int, Any] = {}
    for samples in chunks:
        x = samples.x.astype(np.float64)
        for place, name in enumerate(samples.signals):
            if name in SIGNALS and SIGNALS[name].kind is SignalKind.COUNTER:
                known = np.isfinite(x[:, place])
                total = totals.get(place, 0.0) + np.cumsum(np.where(known, x[:, place], 0.0), axis=0)
                totals[place] = total[-1]
                x[:, place] = np.where(known, np.round(total), np.nan)
        second, signal, entity = np.nonzero(np.isfinite(x))
        columns = {
            "time": samples.t[second],
            "node": np.array([str(e.node) for e in samples.entities])[entity],
            "device": np.array([str(e.device) for e in samples.entities])[entity],
            "signal": np.array(samples.signals)[signal],
            "value": x[second, signal, entity],
        }
        tables.add_columns(files.SAMPLES, columns)


def _wide(name: str, job: str, samples: Samples) -> dict[str, Any]:
    """A row for each entity and time at which anything is known."""
    when, who = np.nonzero(np.isfinite(samples.x).any(axis=1))
    columns: dict[str, Any] = {"job": np.full(len(who), job), "time": samples.t[when]}
    ranks = np.array([-1 if e.rank is None else e.rank for e in samples.entities])[who]
    if name == files.PAIRS:
        peers = np.array([-1 if e.peer is None else e.peer for e in samples.entities])
        columns |= {"source": ranks, "target": peers[who]}
    else:
        columns["rank"] = ranks
    if samples.steps is not None:
        columns["step"] = samples.steps[when]
    for place, signal in enumerate(samples.signals):
        values = samples.x[when, place, who].astype(np.float64)
        columns[signal] = np.where(np.isfinite(values), values, np.nan)
    return columns


def _events(events: Sequence[Event]) -> dict[str, Any]:
    rows = [{**msgspec.to_builtins(event), "data": msgspec.json.encode(event.data).decode()} for event in events]
    return {name: [row.get(name) for row in rows] for name in files.EVENT_SCHEMA.names}


@dataclass(slots=True, kw_only=True)
class InMemoryRecording:
    """A recording in memory, one chunk a feed: what generators make."""

    fleet: FleetInfo
    by_source: dict[SignalSource, Samples] = field(default_factory=dict)
    by_step: dict[str, Samples] = field(default_factory=dict)
    """Job to its steps; so for the two below."""
    by_progress: dict[str, Samples] = field(default_factory=dict)
    by_pair: dict[str, Samples] = field(default_factory=dict)
    happened: tuple[Event, ...] = ()

    def devices(self, source: SignalSource) -> Iterator[Samples]:
        return _one(self.by_source.get(source))

    def steps(self, job: str) -> Iterator[Samples]:
        return _one(self.by_step.get(job))

    def progress(self, job: str) -> Iterator[Samples]:
        return _one(self.by_progress.get(job))

    def pairs(self, job: str) -> Iterator[Samples]:
        return _one(self.by_pair.get(job))

    def events(self) -> tuple[Event, ...]:
        return self.happened


def _one(samples: Samples | None) -> Iterator[Samples]:
    return iter(() if samples is None else (samples,))
