"""Reads one node's series from files of history. This module imports Arrow: import it where it is used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from numpy.typing import NDArray

from mainstay.probes.signals import SIGNALS, WIDE_MISSING, SignalSource
from mainstay.service.history.archive import Archive
from mainstay.service.history.rollup import MICRO, rates
from mainstay.service.history.series import SeriesPart, SeriesQuery
from mainstay.service.history.tables import ROLLUP, raw_schema
from mainstay.service.history.tiers import DAY, RAW, HistoryFile, Tier, in_order_of_use, node_hash
from mainstay.service.telemetry.blocks import HOUR
from mainstay.service.telemetry.envelope import Points

LEAD_SECONDS: Final = 60
"""Read before a span of raw samples, so that its first reading of a counter has a rate."""

Span = tuple[float, float]
"""From, up to; Unix seconds."""
_ROLLED: Final = ["device", "signal", "time", "mean", "low", "high", "count"]
_TIME: Final = pa.timestamp("us", "UTC")


def read_files(archive: Archive, files: Sequence[HistoryFile], schema: Any, columns: list[str], rows: Any) -> Any:
    """The chosen columns and rows of the files, in their order; damaged ones are set aside."""
    try:
        return _read(archive, files, schema, columns, rows)
    except (OSError, pa.ArrowInvalid):
        return pa.concat_tables([_read_or_set_aside(archive, file, schema, columns, rows) for file in files])


def _read(archive: Archive, files: Sequence[HistoryFile], schema: Any, columns: list[str], rows: Any) -> Any:
    paths = [file.path for file in files]
    checked = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    layout = ds.ParquetFileFormat(default_fragment_scan_options=checked)
    found = ds.dataset(paths, schema=schema, filesystem=archive.files, format=layout)
    return found.to_table(columns=columns, filter=rows)


def _read_or_set_aside(archive: Archive, file: HistoryFile, schema: Any, columns: list[str], rows: Any) -> Any:
    try:
        return _read(archive, [file], schema, columns, rows)
    except FileNotFoundError:
        pass  # retention was faster
    except (OSError, pa.ArrowInvalid) as error:
        archive.report_unreadable(file, error)
    return pa.schema([schema.field(name) for name in columns]).empty_table()


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
    rows = (pc.field("node_hash") == pa.scalar(node_hash(question.node), pa.uint32())) & (
        pc.field("node") == question.node
    )
    if question.device is not None:
        rows &= pc.field("device") == question.device
    done: list[int] = []
    for tier, chosen in files.items():
        first = pa.scalar(int((since - (LEAD_SECONDS if tier is RAW else 0)) * MICRO), _TIME)
        last = pa.scalar(int(question.stop * MICRO), _TIME)
        timed = rows & (pc.field("time") >= first) & (pc.field("time") < last)
        if tier is RAW:
            table = read_files(archive, chosen, raw_schema(source), ["device", "time", *signals], timed)
            yield from _raw_points(table, signals, since)
        else:
            named = timed & pc.field("signal").isin(signals)
            yield from _rolled_points(read_files(archive, chosen, ROLLUP, _ROLLED, named), done)
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
    whole = table.unify_dictionaries().combine_chunks()
    if not whole.num_rows:
        return
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
