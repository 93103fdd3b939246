"""History as Arrow tables and Parquet files. This module imports Arrow: import it where it is used."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from mainstay.probes.signals import SignalSource, names
from mainstay.service.history.rollup import Rollup, SortedRows, is_missing, rates, starts_of
from mainstay.service.history.slabs import DeviceCodes, Slab, bits
from mainstay.service.history.tiers import MINUTE, Tier
from mainstay.service.telemetry.catalogs import ring_signals

_ROW_GROUP: Final = 128 * 1024
"""Rows: some nodes of raw samples, about one of roll-ups of 10 s. Reading one node decodes no more than that."""
_SMALL_GROUP: Final = 32 * 1024
"""Of coarser roll-ups: charts read them from many files, one device of each (measured: a third of the time)."""
_NAME: Final = pa.dictionary(pa.int32(), pa.string())
_KEYS: Final = tuple(
    pa.field(name, kind, nullable=False)
    for name, kind in (
        ("node_hash", pa.uint32()),
        ("node", _NAME),
        ("device", _NAME),
        ("time", pa.timestamp("us", "UTC")),
    )
)
_AGGREGATES: Final = (("mean", pa.float32()), ("low", pa.float32()), ("high", pa.float32()), ("count", pa.int32()))
ROLLUP: Final = pa.schema([
    *_KEYS, *(pa.field(name, kind, nullable=False) for name, kind in (("signal", _NAME), *_AGGREGATES)),
])  # fmt: skip
_BATCH: Final = 64 * 1024
"""Values that are encoded at once."""
_FEW: Final = 4096
"""Distinct values of a column that a dictionary holds well; others are split into streams of bytes."""


@lru_cache
def raw_schema(source: SignalSource) -> Any:
    """Keys, then a column for each signal: float32 gauges, int64 counters, null where unknown."""
    narrow = [(name, pa.float32()) for name in names(source, wide=False)]
    return pa.schema([*_KEYS, *narrow, *((name, pa.int64()) for name in names(source, wide=True))])


def sort_rows(slabs: Sequence[Slab], ranks: NDArray[np.int64], source: SignalSource) -> SortedRows:
    """Sort slabs. Rows of one device and time become one: of two known values, the larger."""
    codes = np.concatenate([slab.codes for slab in slabs])
    order = np.lexsort((np.concatenate([slab.times[:, 0] for slab in slabs]), ranks[codes]))
    sizes = np.repeat([slab.times.shape[1] for slab in slabs], [len(slab.codes) for slab in slabs])
    places, sizes, codes = (np.cumsum(sizes) - sizes)[order], sizes[order], codes[order]
    rows = np.repeat(places - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())

    def joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
        found: NDArray[Any] = np.concatenate([part.ravel() for part in parts])[rows]
        return found

    begins = starts_of(codes)
    device_of = np.repeat(np.arange(len(begins)), np.diff(begins, append=len(codes)))
    devices, times = np.repeat(device_of, sizes), joined([slab.times for slab in slabs])
    if not ((np.diff(times) > 0) | (np.diff(devices) > 0)).all():  # runs overlap: late or repeated frames
        by = np.lexsort((times, devices))
        rows, devices, times = rows[by], devices[by], times[by]
    starts = starts_of(devices, times)
    devices, times = devices[starts], times[starts]
    series: dict[int, NDArray[Any]] = {}
    still: dict[int, NDArray[Any]] = {}
    offset = 0
    for parts in ([slab.narrow for slab in slabs], [slab.wide for slab in slabs]):
        first = np.concatenate([part.first for part in parts], axis=1)[:, order]
        moved = (bits(first) != bits(first[:, begins])[:, device_of]).any(axis=1)
        for part in parts:
            moved[part.changing] = True
        for signal, moves in enumerate(moved.tolist()):
            if not moves:
                still[offset + signal] = first[signal, begins]
                continue
            values = joined([p.each(signal, s.times.shape[1]) for p, s in zip(parts, slabs, strict=True)])
            if len(starts) < len(rows):
                larger = np.fmax if values.dtype == np.float32 else np.maximum
                values = larger.reduceat(values, starts)
            series[offset + signal] = values
        offset += len(first)
    is_first = np.zeros(len(times), bool)
    is_first[starts_of(devices)] = True
    counters = len(names(source, wide=False))
    rated = {n: rates(devices, times, values) for n, values in series.items() if n >= counters}
    return SortedRows(codes[begins], devices, times, is_first, series, rated, still)


def raw_table(rows: SortedRows, known: DeviceCodes, source: SignalSource) -> Any:
    """The rows as a table of ``raw_schema``."""
    schema, sizes = raw_schema(source), np.bincount(rows.devices, minlength=len(rows.codes))
    columns = [*_keys(rows.codes, sizes, known), pa.array(rows.times, schema.field("time").type)]
    for signal, field in enumerate(list(schema)[len(columns) :]):
        values = rows.series.get(signal)
        if values is None and is_missing(rows.still[signal]).all():
            columns.append(pa.nulls(len(rows.times), field.type))
            continue
        values = np.repeat(rows.still[signal], sizes) if values is None else values
        missing = is_missing(values)
        columns.append(pa.array(values, mask=missing if missing.any() else None))
    return pa.Table.from_arrays(columns, schema=schema)


def rollup_table(rolled: Rollup, codes: NDArray[np.int32], known: DeviceCodes, source: SignalSource) -> Any:
    """A roll-up as a table of ``ROLLUP``; ``codes`` are those of its devices."""
    sizes = np.bincount(rolled.devices, minlength=len(codes))
    edges, rows = np.concatenate([[0], np.cumsum(sizes)]).tolist(), len(rolled.signals)

    def by_device(grid: NDArray[Any]) -> NDArray[Any]:
        found = np.empty(rolled.count.size, grid.dtype)
        for start, stop in pairwise(edges):
            found[rows * start : rows * stop].reshape(rows, -1)[:] = grid[:, start:stop]
        return found

    mean = (rolled.total / np.maximum(rolled.count, 1)).astype(np.float32)
    signals = by_device(np.broadcast_to(rolled.signals[:, None], rolled.count.shape))
    columns = [
        *_keys(codes, sizes * rows, known),
        pa.array(by_device(np.broadcast_to(rolled.times, rolled.count.shape)), ROLLUP.field("time").type),
        pa.DictionaryArray.from_arrays(signals, pa.array(ring_signals(source)), safe=False),
        *(pa.array(by_device(grid)) for grid in (mean, rolled.low, rolled.high, rolled.count)),
    ]
    table = pa.Table.from_arrays(columns, schema=ROLLUP)
    return table if rolled.count.all() else table.filter(pc.field("count") > 0)


def _keys(codes: NDArray[np.int32], sizes: NDArray[np.intp], known: DeviceCodes) -> list[Any]:
    """Hash, node, and device in as many rows as each device has."""
    hashes = np.array([known.hashes[code] for code in codes], np.uint32)
    found = [pa.array(np.repeat(hashes, sizes))]
    for k in (0, 1):
        text = pa.array([known.keys[code][k] for code in codes], pa.string()).dictionary_encode()
        rows = np.repeat(text.indices.to_numpy(), sizes)
        found.append(pa.DictionaryArray.from_arrays(rows, text.dictionary, safe=False))
    return found


def row_group(tier: Tier) -> int:
    """Rows of a row group."""
    return _SMALL_GROUP if tier.seconds >= MINUTE.seconds else _ROW_GROUP


def open_writer(target: Any, first: Any) -> Any:
    """A Parquet writer for tables like ``first``, whose values choose the encodings.

    Measured: a stream for each byte of the values takes little time and space, raw samples need less space as
    differences if they are counters, and as a dictionary if they are few and use all of their bytes.
    """
    encodings, dictionary = {}, ["node", "device", "signal"]
    for field in first.schema:
        if field.name not in dictionary:
            encodings[field.name] = "BYTE_STREAM_SPLIT"
            values = bits(first[field.name].slice(0, _SMALL_GROUP).drop_null().to_numpy())
            if "signal" in first.column_names or (values == values[:1]).all():
                continue
            if values.dtype == np.int64:
                encodings[field.name] = "DELTA_BINARY_PACKED"
            elif (values & 0xFFFF).any() and len(np.unique(values)) <= _FEW and field.name != "node_hash":
                dictionary.append(field.name)
                del encodings[field.name]
    return pq.ParquetWriter(
        target, first.schema, compression="zstd", compression_level=1, use_dictionary=dictionary,
        column_encoding=encodings, write_page_checksum=True, version="2.6", data_page_version="2.0",
        write_statistics=["node_hash", "time"], write_batch_size=_BATCH,
    )  # fmt: skip
