"""Recordings written in one go, by benches and tests; a service records in parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mainstay.detectors.base import Samples
from mainstay.detectors.recording.files import (
    EVENT_SCHEMA,
    EVENTS,
    FLEET,
    PAIRS,
    PROGRESS,
    SAMPLE_SCHEMA,
    SAMPLES,
    SCHEMAS,
    STEPS,
)
from mainstay.detectors.recording.model import DEVICE_SOURCES, FleetInfo, Recording
from mainstay.probes.core_types import Event
from mainstay.probes.signals import SIGNALS, SignalKind, SignalSource


def write(recording: Recording, directory: Path) -> None:
    """Write a recording; the directory is made and must not hold another one.

    Raises:
        FileExistsError: it holds one already.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if (directory / FLEET).exists():
        raise FileExistsError(f"{directory} holds a recording already")
    sources = [recording.devices(source) for source in DEVICE_SOURCES]
    _write(directory / SAMPLES, SAMPLE_SCHEMA, (t for chunks in sources for t in _sample_tables(chunks)))
    jobs = [job.id for job in recording.fleet.jobs]
    feeds = {STEPS: recording.steps, PROGRESS: recording.progress, PAIRS: recording.pairs}
    for name, feed in feeds.items():
        _write(directory / name, SCHEMAS[name], (_wide_table(name, job, s) for job in jobs for s in feed(job)))
    _write(directory / EVENTS, EVENT_SCHEMA, [_event_table(recording.events())])
    (directory / FLEET).write_bytes(msgspec.json.format(msgspec.json.encode(recording.fleet), indent=1) + b"\n")


def _write(path: Path, schema: Any, tables: Iterable[Any]) -> None:
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for table in tables:
            writer.write_table(table)


def _sample_tables(chunks: Iterable[Samples]) -> Iterator[Any]:
    """Long tables, a row a value that is known; counters as totals, which is how everybody else records them."""
    totals: dict[int, Any] = {}
    for number, samples in enumerate(chunks):
        x = samples.x.astype(np.float64)
        for place, name in enumerate(samples.signals):
            if _is_counter(name):
                start = totals.get(place, 0.0) if number else 0.0
                known = np.isfinite(x[:, place])
                total = start + np.cumsum(np.where(known, x[:, place], 0.0), axis=0)
                totals[place] = total[-1]
                x[:, place] = np.where(known, np.round(total), np.nan)
        yield _sample_table(samples, x)


def _sample_table(samples: Samples, x: Any) -> Any:
    second, signal, entity = np.nonzero(np.isfinite(x))
    nodes = [str(e.node) for e in samples.entities]
    devices = [str(e.device) for e in samples.entities]
    columns = [
        pa.array(samples.t[second]),
        _coded(entity, nodes),
        _coded(entity, devices),
        _coded(signal, list(samples.signals)),
        pa.array(x[second, signal, entity]),
    ]
    return pa.Table.from_arrays(columns, schema=SAMPLE_SCHEMA)


def _coded(places: Any, words: Sequence[str]) -> Any:
    """A dictionary column; parquet wants each word once."""
    unique = sorted(set(words))
    code = np.array([unique.index(word) for word in words] or [0], np.int32)
    return pa.DictionaryArray.from_arrays(pa.array(code[places], pa.int32()), pa.array(unique, pa.string()))


def _wide_table(name: str, job: str, samples: Samples) -> Any:
    """A row for each entity and time at which anything is known."""
    when, who = np.nonzero(np.isfinite(samples.x).any(axis=1))
    keys: dict[str, Any] = {"job": _coded(np.zeros(len(who), np.intp), [job]), "time": pa.array(samples.t[when])}
    ranks = np.array([-1 if e.rank is None else e.rank for e in samples.entities], np.int32)
    if name == PAIRS:
        peers = np.array([-1 if e.peer is None else e.peer for e in samples.entities], np.int32)
        keys |= {"source": pa.array(ranks[who]), "target": pa.array(peers[who])}
    else:
        keys["rank"] = pa.array(ranks[who])
    if samples.steps is not None:
        keys["step"] = pa.array(samples.steps[when])
    schema = SCHEMAS[name]
    columns = [keys[field.name] if field.name in keys else _column(samples, field.name, when, who) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _column(samples: Samples, name: str, when: Any, who: Any) -> Any:
    if name not in samples.signals:
        return pa.nulls(len(when), pa.float64())
    values = samples.x[when, samples.signals.index(name), who].astype(np.float64)
    return pa.array(values, mask=~np.isfinite(values))


def _event_table(events: Sequence[Event]) -> Any:
    rows = [{**msgspec.to_builtins(event), "data": msgspec.json.encode(event.data).decode()} for event in events]
    return pa.Table.from_pylist(rows, schema=EVENT_SCHEMA)


def _is_counter(name: str) -> bool:
    return name in SIGNALS and SIGNALS[name].kind is SignalKind.COUNTER


@dataclass(kw_only=True)
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
