"""A recording's directory as the feeds that detectors take, window by window, so that a long one fits into memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mainstay.detectors.base import Samples
from mainstay.detectors.finding import Entity
from mainstay.detectors.job.mesh import JobMesh
from mainstay.detectors.recording import files
from mainstay.detectors.recording.model import FleetInfo
from mainstay.detectors.recording.rates import RecordedRates
from mainstay.probes.core_types import HOST_DEVICE, NIC_PREFIX, Event
from mainstay.probes.decoding import UNREADABLE
from mainstay.probes.signals import SIGNALS, SignalKind, SignalSource, names

WINDOW_SECONDS = 600
WINDOW_STEPS = 512


class RecordingError(ValueError):
    """The directory is no recording; the message names the file and what is wrong with it."""


class RecordingDirectory:
    """A recording on disk. ``fleet.json`` must be there; of the tables, what is absent was not recorded.

    Raises:
        RecordingError: a file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ignored: list[str] = []
        """Columns that are no signal: told to the user, who may have misspelt one."""
        self.fleet = self._fleet()
        self._tables = {name: self._open(name) for name in files.NEEDED}

    def _fleet(self) -> FleetInfo:
        path = self.path / files.FLEET
        try:
            return files.read_fleet(path)
        except FileNotFoundError:
            raise RecordingError(f"{self.path} is not a recording: it has no {files.FLEET}") from None
        except (OSError, *UNREADABLE) as error:
            raise RecordingError(f"{path}: {error}") from error

    def _open(self, name: str) -> Any:
        path = self.path / name
        if not path.exists():
            return None
        try:
            table = pq.ParquetFile(path)
        except (OSError, pa.ArrowInvalid) as error:
            raise RecordingError(f"{path}: not a Parquet file: {error}") from error
        have = table.schema_arrow.names
        missing = [column for column in files.NEEDED[name] if column not in have]
        if missing:
            raise RecordingError(f"{path}: the column {missing[0]!r} is missing")
        known = {*files.NEEDED[name], *files.COLUMNS.get(name, ()), *files.EVENT_SCHEMA.names}
        self.ignored += [f"{name}: {column}" for column in have if column not in known]
        return table

    def _read(self, name: str, columns: Sequence[str] | None, where: Any) -> Any:
        if self._tables[name] is None:
            return None
        try:
            return pq.read_table(self.path / name, columns=columns, filters=where)
        except (OSError, pa.ArrowException) as error:
            raise RecordingError(f"{self.path / name}: {error}") from error

    # devices

    def devices(self, source: SignalSource) -> Iterator[Samples]:
        signals = names(source, wide=False) + names(source, wide=True)
        entities = self._entities(source, signals)
        if not entities:
            return
        counters = [place for place, name in enumerate(signals) if SIGNALS[name].kind is SignalKind.COUNTER]
        rates = RecordedRates(len(counters), len(entities))
        groups = tuple(self.fleet.group(str(e.node), str(e.device)) for e in entities)
        for t in _seconds(*self._range(files.SAMPLES, "time")):
            x = self._dense(t, signals, entities)
            x[:, counters] = rates.feed(t, x[:, counters])
            yield Samples(entities=entities, groups=groups, signals=signals, t=t, x=x.astype(np.float32))

    def _entities(self, source: SignalSource, signals: tuple[str, ...]) -> tuple[Entity, ...]:
        """Devices of this source that said anything, in order of name."""
        table = self._read(files.SAMPLES, ["node", "device", "signal"], pc.field("signal").isin(list(signals)))
        if table is None:
            return ()
        pairs = table.group_by(["node", "device"]).aggregate([])
        found = zip(pairs["node"].to_pylist(), pairs["device"].to_pylist(), strict=True)
        mine = sorted(pair for pair in found if None not in pair and source_of(pair[1]) is source)
        return tuple(Entity(node=node, device=device) for node, device in mine)

    def _dense(self, t: Any, signals: tuple[str, ...], entities: tuple[Entity, ...]) -> npt.NDArray[np.float64]:
        """[T, S, E]; of several values in one second the last counts."""
        table = self._read(files.SAMPLES, None, _during(t) & pc.field("signal").isin(list(signals)))
        x = np.full((len(t), len(signals), len(entities)), np.nan)
        times = _numbers(table, "time")
        order = np.argsort(times, kind="stable")
        row = {(entity.node, entity.device): place for place, entity in enumerate(entities)}
        who = _codes2(table, "node", "device", row)[order]
        what = _codes(table, "signal", {name: place for place, name in enumerate(signals)})[order]
        when = (np.floor(times[order]) - t[0]).astype(np.intp)
        good = (who >= 0) & (what >= 0)
        x[when[good], what[good], who[good]] = _numbers(table, "value")[order][good]
        x[~np.isfinite(x)] = np.nan
        return x

    def _range(self, name: str, column: str, job: str | None = None) -> tuple[float, float]:
        table = self._read(name, [column], None if job is None else pc.field("job") == job)
        if table is None or not len(table):
            return 0.0, -1.0
        ends = pc.min_max(table[column]).as_py()
        if ends["min"] is None or not np.isfinite([ends["min"], ends["max"]]).all():
            raise RecordingError(f"{self.path / name}: {column} must be a finite number in every row")
        return float(ends["min"]), float(ends["max"])

    # jobs

    def steps(self, job: str) -> Iterator[Samples]:
        who = _ranks(self.fleet.mesh(job))
        for table, signals in self._windows(files.STEPS, job):
            rows = who.mesh.rows(_numbers(table, "rank").astype(np.int64).tolist())
            yield _stepwise(table, signals, rows, who)

    def pairs(self, job: str) -> Iterator[Samples]:
        mesh = self.fleet.mesh(job)
        both = self._read(files.PAIRS, ["source", "target"], pc.field("job") == job)
        if both is None or not len(both):
            return
        ways = np.unique(np.stack([_numbers(both, "source"), _numbers(both, "target")]).astype(np.int64), axis=1)
        place = {(int(a), int(b)): row for row, (a, b) in enumerate(ways.T)}
        entities = tuple(Entity(job=job, rank=a, peer=b) for a, b in place)
        who = _Who(entities, ("pair",) * len(entities), mesh)
        for table, signals in self._windows(files.PAIRS, job):
            ends = np.stack([_numbers(table, "source"), _numbers(table, "target")]).astype(np.int64)
            rows = np.array([place[int(a), int(b)] for a, b in ends.T], np.intp)
            yield _stepwise(table, signals, rows, who)

    def _windows(self, name: str, job: str) -> Iterator[tuple[Any, tuple[str, ...]]]:
        """Rows of some hundred steps at a time, in order of time."""
        first, last = self._range(name, "step", job)
        for start in range(int(first), int(last) + 1, WINDOW_STEPS):
            within = (pc.field("step") >= start) & (pc.field("step") < start + WINDOW_STEPS)
            table = self._in_time(name, (pc.field("job") == job) & within)
            if len(table):
                yield table, self._signals(name)

    def _signals(self, name: str) -> tuple[str, ...]:
        table = self._tables[name]
        return () if table is None else tuple(c for c in files.COLUMNS[name] if c in table.schema_arrow.names)

    def _in_time(self, name: str, where: Any) -> Any:
        table = self._read(name, None, where)
        return table.take(pc.sort_indices(table, [("time", "ascending")]))

    def progress(self, job: str) -> Iterator[Samples]:
        who = _ranks(self.fleet.mesh(job))
        signals = self._signals(files.PROGRESS)
        for t in _seconds(*self._range(files.PROGRESS, "time", job)):
            table = self._in_time(files.PROGRESS, _during(t) & (pc.field("job") == job))
            rows = who.mesh.rows(_numbers(table, "rank").astype(np.int64).tolist())
            when = (np.floor(_numbers(table, "time")) - t[0]).astype(np.intp)
            x = np.full((len(t), len(signals), len(who.entities)), np.nan)
            for place, name in enumerate(signals):
                x[when[rows >= 0], place, rows[rows >= 0]] = _numbers(table, name)[rows >= 0]
            yield Samples(entities=who.entities, groups=who.groups, signals=signals, t=t, x=x, mesh=who.mesh)

    # facts

    def events(self) -> tuple[Event, ...]:
        """Raises ``RecordingError`` that names the row and what is wrong with it."""
        table = self._read(files.EVENTS, None, None)
        rows = [] if table is None else table.to_pylist()
        return tuple(sorted((self._event(n, row) for n, row in enumerate(rows)), key=lambda event: event.time))

    def _event(self, number: int, row: dict[str, Any]) -> Event:
        try:
            data = msgspec.json.decode(row.get("data") or "{}")
            known = {key: value for key, value in row.items() if value is not None and key in files.EVENT_SCHEMA.names}
            return msgspec.convert({**known, "data": data}, Event)
        except UNREADABLE as error:
            raise RecordingError(f"{self.path / files.EVENTS}: row {number}: {error}") from error


@dataclass(frozen=True, slots=True)
class _Who:
    """Rows of a job's feed."""

    entities: tuple[Entity, ...]
    groups: tuple[str, ...]
    mesh: JobMesh


def _ranks(mesh: JobMesh) -> _Who:
    """A row a rank; its role is its pipeline stage."""
    places = zip(mesh.ranks, mesh.nodes, strict=True)
    entities = tuple(Entity(job=mesh.job, rank=int(rank), node=node or None) for rank, node in places)
    return _Who(entities, tuple(f"pp{stage}" for stage in mesh.on("pp")), mesh)


def _seconds(first: float, last: float) -> Iterator[npt.NDArray[np.float64]]:
    """Whole seconds of each window."""
    for start in range(int(first), int(last) + 1, WINDOW_SECONDS):
        yield np.arange(start, min(start + WINDOW_SECONDS, int(last) + 1), dtype=np.float64)


def _during(t: npt.NDArray[np.float64]) -> Any:
    return (pc.field("time") >= t[0]) & (pc.field("time") < t[-1] + 1)


def _stepwise(table: Any, signals: tuple[str, ...], rows: npt.NDArray[np.intp], who: _Who) -> Samples:
    """[step, signal, entity]; of a step that was done again the first counts, as it was judged when it came."""
    number, ended = _numbers(table, "step").astype(np.int64), _numbers(table, "time")
    steps, when = np.unique(number, return_inverse=True)
    good = np.flatnonzero(rows >= 0)[::-1]
    x = np.full((len(steps), len(signals), len(who.entities)), np.nan)
    times = np.full((len(steps), len(who.entities)), -np.inf)
    times[when[good], rows[good]] = ended[good]
    for place, name in enumerate(signals):
        x[when[good], place, rows[good]] = _numbers(table, name)[good]
    t = np.maximum.accumulate(times.max(axis=1, initial=float(ended.min())))
    return Samples(entities=who.entities, groups=who.groups, signals=signals, t=t, x=x, steps=steps, mesh=who.mesh)


def source_of(device: str) -> SignalSource:
    if device == HOST_DEVICE:
        return SignalSource.HOST
    return SignalSource.NIC if device.startswith(NIC_PREFIX) else SignalSource.GPU


def _numbers(table: Any, column: str) -> npt.NDArray[np.float64]:
    """A column as float64, null as NaN."""
    return np.asarray(table[column].cast(pa.float64()).to_numpy(zero_copy_only=False))


def _codes(table: Any, column: str, places: dict[str, int]) -> npt.NDArray[np.intp]:
    """A column of words as their places; -1 for a word that has none, and for null."""
    words = table[column].cast(pa.string()).combine_chunks().dictionary_encode()
    lookup = np.array([*(places.get(word, -1) for word in words.dictionary.to_pylist()), -1], np.intp)
    code: npt.NDArray[np.int32] = words.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return lookup[code]


def _codes2(table: Any, one: str, two: str, places: dict[tuple[str | None, str | None], int]) -> npt.NDArray[np.intp]:
    """Two columns of words together as a place."""
    first = {word: n for n, word in enumerate(dict.fromkeys(str(pair[0]) for pair in places))}
    second = {word: n for n, word in enumerate(dict.fromkeys(str(pair[1]) for pair in places))}
    grid = np.full((len(first) + 1, len(second) + 1), -1, np.intp)
    for (a, b), place in places.items():
        grid[first[str(a)], second[str(b)]] = place
    return grid[_codes(table, one, first), _codes(table, two, second)]
