"""History as Arrow tables and Parquet files. This module imports Arrow: import it where it is used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from mainstay.probes.signals import WIDE_MISSING, SignalSource, names
from mainstay.service.history.rollup import MICRO, Rollup
from mainstay.service.history.slabs import DeviceCodes, Slab
from mainstay.service.history.tiers import MINUTE, Tier
from mainstay.service.telemetry.catalogs import ring_signals

_ROW_GROUP: Final = 128 * 1024
"""Rows: some nodes of raw samples, about one of roll-ups of 10 s. Reading one node decodes no more than that."""
_SMALL_GROUP: Final = 32 * 1024
"""Of coarser roll-ups: charts read them from many files, one device of each (measured: a third of the time)."""
_NAME: Final = pa.dictionary(pa.int32(), pa.string())
_KEYS: Final = (
    ("node_hash", pa.uint32()), ("node", _NAME), ("device", _NAME), ("time", pa.timestamp("us", "UTC")),
)  # fmt: skip
ROLLUP: Final = pa.schema([
    *_KEYS, ("signal", _NAME), ("mean", pa.float32()), ("low", pa.float32()), ("high", pa.float32()),
    ("count", pa.int32()),
])  # fmt: skip
_FEW: Final = 4096
"""Distinct values of a column that a dictionary holds well; others are split into streams of bytes."""


@lru_cache
def raw_schema(source: SignalSource) -> Any:
    """Keys, then a column for each signal: float32 gauges, int64 counters, null where unknown."""
    narrow = [(name, pa.float32()) for name in names(source, wide=False)]
    return pa.schema([*_KEYS, *narrow, *((name, pa.int64()) for name in names(source, wide=True))])


@lru_cache
def slab_schema(source: SignalSource) -> Any:
    return pa.schema([("code", pa.int32()), *list(raw_schema(source))[3:]])


def slab_table(slab: Slab, source: SignalSource) -> Any:
    """Rows that are not sorted yet; unknown values as they are in frames."""
    columns = [slab.codes, slab.times, *slab.narrow, *slab.wide]
    schema = slab_schema(source)
    return pa.Table.from_arrays([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


@dataclass(frozen=True, slots=True, eq=False)
class SortedRows:
    """Rows sorted by device and time, each once."""

    ranks: NDArray[np.int64]
    codes: NDArray[np.int32]
    times: NDArray[np.int64]
    columns: dict[str, NDArray[Any]]
    """Signal → [row]."""

    def since(self, start: int, stop: int) -> NDArray[np.bool_]:
        """[row] whether it is in ``[start, stop)`` Unix seconds."""
        return (self.times >= start * MICRO) & (self.times < stop * MICRO)


def sort_rows(tables: Sequence[Any], ranks: NDArray[np.int64]) -> SortedRows:
    """Sort slabs. Rows of one device and time become one: of two known values, the larger."""
    joined = pa.concat_tables(tables).combine_chunks()
    codes, times = joined["code"].to_numpy(), joined["time"].cast(pa.int64()).to_numpy()
    placed = ranks[codes]
    oldest = int(times.min())
    # One key in place of two: the sort is fast on rows that are in order for long stretches, as they are in slabs.
    order = np.argsort(placed * (int(times.max()) - oldest + 1) + (times - oldest), kind="stable")
    placed, times = placed[order], times[order]
    is_new = np.append(True, (np.diff(placed) != 0) | (np.diff(times) != 0))
    starts, is_single = np.flatnonzero(is_new), bool(is_new.all())
    columns = {}
    for name in joined.column_names[2:]:
        column = joined[name].to_numpy()[order]
        if not is_single:
            larger = np.fmax if column.dtype == np.float32 else np.maximum
            column = larger.reduceat(column, starts)
        columns[name] = column
    return SortedRows(placed[starts], codes[order][starts], times[starts], columns)


def raw_table(rows: SortedRows, kept: NDArray[np.bool_], codes: DeviceCodes, source: SignalSource) -> Any:
    """The rows of ``kept`` as a table of ``raw_schema``."""
    schema = raw_schema(source)
    columns = [*_keys(rows.codes[kept], codes), pa.array(rows.times[kept], schema.field("time").type)]
    for column in rows.columns.values():
        values = column[kept]
        missing = np.isnan(values) if values.dtype == np.float32 else values == WIDE_MISSING
        columns.append(pa.array(values, mask=missing))
    return pa.Table.from_arrays(columns, schema=schema)


def rollup_table(rolled: Rollup, by_rank: NDArray[np.int32], codes: DeviceCodes, source: SignalSource) -> Any:
    """A roll-up as a table of ``ROLLUP``; ``by_rank`` gives the code of each rank."""
    keys = _keys(by_rank[rolled.ranks], codes)
    signal = pa.DictionaryArray.from_arrays(pa.array(rolled.signals, pa.int32()), pa.array(ring_signals(source)))
    values = [rolled.mean.astype(np.float32), rolled.low, rolled.high, rolled.count]
    times = pa.array(rolled.times, ROLLUP.field("time").type)
    return pa.Table.from_arrays([*keys, times, signal, *map(pa.array, values)], schema=ROLLUP)


def _keys(codes: NDArray[np.int32], known: DeviceCodes) -> list[Any]:
    used, places = np.unique(codes, return_inverse=True)
    hashes = np.array([known.hashes[code] for code in used], np.uint32)[places]
    texts = [pa.array([known.keys[code][k] for code in used], pa.string()).dictionary_encode() for k in (0, 1)]
    return [pa.array(hashes), *(text.take(pa.array(places)) for text in texts)]


def row_group(tier: Tier) -> int:
    """Rows of a row group."""
    return _SMALL_GROUP if tier.seconds >= MINUTE.seconds else _ROW_GROUP


def open_writer(target: Any, first: Any) -> Any:
    """A Parquet writer for tables like ``first``, whose values choose the encodings."""
    encodings, dictionary = {}, ["node", "device", "signal"]
    for field in first.schema:
        if pa.types.is_floating(field.type):
            if len(first[field.name].slice(0, _ROW_GROUP).unique()) <= _FEW:
                dictionary.append(field.name)
            else:
                encodings[field.name] = "BYTE_STREAM_SPLIT"
        elif not pa.types.is_dictionary(field.type):
            encodings[field.name] = "DELTA_BINARY_PACKED"
    return pq.ParquetWriter(
        target, first.schema, compression="zstd", compression_level=3, use_dictionary=dictionary,
        column_encoding=encodings, write_page_checksum=True, version="2.6", data_page_version="2.0",
    )  # fmt: skip
