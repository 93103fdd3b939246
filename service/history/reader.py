"""Reads one node's series from files of history. This module imports Arrow: import it where it is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from mainstay.probes.signals import SIGNALS, WIDE_MISSING, SignalSource
from mainstay.service.history.archive import Archive
from mainstay.service.history.rollup import MICRO, rates
from mainstay.service.history.series import SeriesPart, SeriesQuery
from mainstay.service.history.tiers import DAY, RAW, HistoryFile, Tier, in_order_of_use, node_hash
from mainstay.service.telemetry.blocks import HOUR
from mainstay.service.telemetry.envelope import Points

LEAD_SECONDS: Final = 60
"""Read before a span of raw samples, so that its first reading of a counter has a rate."""

Span = tuple[float, float]
"""From, up to; Unix seconds."""
Rows = Callable[[Any], Any]
"""A table → some of its rows."""
_ROLLED: Final = ["device", "signal", "time", "mean", "low", "high", "count"]
_FILES_AT_ONCE: Final = 8
"""What decodes runs without Python's lock, and an object store answers many requests at once."""
_TIME: Final = pa.timestamp("us", "UTC")


def read_files(archive: Archive, files: Sequence[HistoryFile], columns: list[str], hashes: range, rows: Rows) -> Any:
    """Columns and rows of files, in their order; None where none can be read. Damaged ones are set aside.

    Args:
        archive: where the files are.
        files: of one tier and source.
        columns: their names.
        hashes: of the nodes, to find the row groups.
        rows: chooses the rows of a table.
    """

    def read(file: HistoryFile) -> Any:
        return _read_or_set_aside(archive, file, columns, hashes, rows)

    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        tables = [table for table in pool.map(read, files) if table is not None]
    return pa.concat_tables(tables, promote_options="default") if tables else None


def _read_or_set_aside(archive: Archive, file: HistoryFile, columns: list[str], hashes: range, rows: Rows) -> Any:
    try:
        return _read(archive, file, columns, hashes, rows)
    except FileNotFoundError:
        pass  # retention was faster
    except (OSError, pa.ArrowInvalid) as error:
        archive.report_unreadable(file, error)
    return None


def _read(archive: Archive, file: HistoryFile, columns: list[str], hashes: range, rows: Rows) -> Any:
    """Arrow's datasets do the same, and spend half a millisecond on the statistics of each row group."""
    with archive.files.open_input_file(file.path) as source:
        found = pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=True)
        groups = [k for k in range(found.num_row_groups) if _has_hashes(found.metadata.row_group(k), hashes)]
        needed = [*dict.fromkeys(["node_hash", "node", *columns])]
        return rows(found.read_row_groups(groups, columns=needed, use_threads=False)).select(columns)


def _has_hashes(group: Any, hashes: range) -> bool:
    known = group.column(0).statistics  # node_hash is the first column
    return bool(known.min < hashes.stop and known.max >= hashes.start)


def choose(chosen: Any, **names: Sequence[str]) -> Rows:
    """Rows for which an expression holds and whose columns have one of these names: it compares texts too slowly."""

    def rows_of(table: Any) -> Any:
        kept = np.ones(table.num_rows, bool)
        for column, texts in names.items():
            chunks = table[column].chunks
            has = [np.isin(c.dictionary.to_numpy(zero_copy_only=False), texts)[c.indices.to_numpy()] for c in chunks]
            kept &= np.concatenate(has or [kept])
        return table.filter(pa.array(kept)).filter(chosen)

    return rows_of


def files_of(
    archive: Archive, node: str, source: SignalSource, spans: Sequence[Span], wanted: Tier
) -> dict[Tier, list[HistoryFile]]:
    """Files with samples of a node: of the wanted tier, and where that lacks hours, of the next one that has them."""
    found: dict[Tier, list[HistoryFile]] = {}
    done: set[int] = set()
    for tier in in_order_of_use(wanted):
        mine = []
        for day in archive.days(tier):
            if _open_hours(day, day + DAY, spans) - done:
                files = [f for f in archive.of_day(tier, day) if f.source is source and f.holds(node)]
                mine += [f for f in files if _open_hours(f.start, f.stop, spans) - done]
        if mine:
            found[tier] = mine
            done.update(*map(_hours, mine))
    return found


def _hours(file: HistoryFile) -> range:
    return range(file.start // HOUR, file.stop // HOUR)


def _open_hours(start: int, stop: int, spans: Sequence[Span]) -> set[int]:
    """Hours of ``[start, stop)`` that touch a span."""
    hours = range(start // HOUR, stop // HOUR)
    return {h for first, last in spans for h in hours if h * HOUR < last and (h + 1) * HOUR > first}


def read_points(
    archive: Archive, files: dict[Tier, list[HistoryFile]], question: SeriesQuery, source: SignalSource, since: float
) -> Iterator[SeriesPart]:
    """(device, signal, points) of what the files hold from ``since`` Unix seconds on."""
    signals = [name for name in question.signals if SIGNALS[name].source is source]
    hashed, names = node_hash(question.node), {"node": [question.node]}
    hashes = range(hashed, hashed + 1)
    if question.device is not None:
        names["device"] = [question.device]
    done: list[int] = []
    for tier, chosen in files.items():
        first = pa.scalar(int((since - (LEAD_SECONDS if tier is RAW else 0)) * MICRO), _TIME)
        last = pa.scalar(int(question.stop * MICRO), _TIME)
        timed = (pc.field("time") >= first) & (pc.field("time") < last)
        if tier is RAW:
            table = read_files(archive, chosen, ["device", "time", *signals], hashes, choose(timed, **names))
            yield from _raw_points(table, signals, since)
        else:
            rows = choose(timed, **names, signal=signals)
            yield from _rolled_points(read_files(archive, chosen, _ROLLED, hashes, rows), done)
        done += [hour for file in chosen for hour in _hours(file)]


def _raw_points(table: Any, signals: Sequence[str], since: float) -> Iterator[SeriesPart]:
    for (device,), rows in _groups(table, ["device"]):
        times = _micros(rows)
        order = np.argsort(times, kind="stable")
        for name in signals:
            column = rows[name].combine_chunks()
            if SIGNALS[name].wide:
                totals = column.fill_null(WIDE_MISSING).to_numpy()[order]
                values: NDArray[np.float32] = rates(np.zeros(len(order), np.int64), times[order], totals)
            else:
                values = column.to_numpy(zero_copy_only=False)[order]
            kept = (times[order] >= since * MICRO) & ~np.isnan(values)
            if kept.any():
                yield device, name, Points.of_samples(times[order][kept] / MICRO, values[kept])


def _rolled_points(table: Any, done: Sequence[int]) -> Iterator[SeriesPart]:
    """Of a daily file, without the hours that were read from another tier."""
    for (device, signal), rows in _groups(table, ["device", "signal"]):
        times = _micros(rows)
        kept = ~np.isin(times // (HOUR * MICRO), done)
        columns = (rows[name].to_numpy()[kept] for name in ("mean", "low", "high", "count"))
        yield device, signal, Points(times[kept] / MICRO, *columns)


def _groups(table: Any, names: list[str]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The rows of each combination of keys."""
    if table is None or not table.num_rows:
        return
    whole = table.unify_dictionaries().combine_chunks()
    keys = [whole[name].chunk(0) for name in names]
    codes = np.stack([key.indices.to_numpy() for key in keys])
    distinct, which = np.unique(codes, axis=1, return_inverse=True)
    order = np.argsort(which, kind="stable")
    for group, places in enumerate(np.split(order, np.cumsum(np.bincount(which))[:-1])):
        texts = tuple(key.dictionary[int(code)].as_py() for key, code in zip(keys, distinct[:, group], strict=True))
        yield texts, whole.take(pa.array(places))


def _micros(rows: Any) -> NDArray[np.int64]:
    found: NDArray[np.int64] = rows["time"].cast(pa.int64()).to_numpy()
    return found
