"""Tables of a recording, written piece by piece in bounded memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from mainstay.detectors.recording import files

_ROWS = 500_000
"""Rows gathered before they are written: a few ten megabytes."""


class Tables:
    """The Parquet files of a recording, written piece by piece."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._open: dict[str, Any] = {}
        self._held: dict[str, list[Any]] = {}
        self.rows: dict[str, int] = {}

    def __enter__(self) -> Self:
        for name in files.SCHEMAS:
            self._open[name] = pq.ParquetWriter(self._directory / name, files.SCHEMAS[name], compression="zstd")
            self._held[name], self.rows[name] = [], 0
        return self

    def __exit__(self, *_: object) -> None:
        for name, writer in self._open.items():
            self._flush(name)
            writer.close()

    def add_columns(self, name: str, columns: dict[str, Any]) -> None:
        """Rows as columns; a column that is not given is null, NaN becomes null."""
        size = len(columns["time"])
        arrays = [_array(columns.get(field.name), field.type, size) for field in files.SCHEMAS[name]]
        self._held[name].append(pa.Table.from_arrays(arrays, schema=files.SCHEMAS[name]))
        self.rows[name] += size
        if sum(len(table) for table in self._held[name]) >= _ROWS:
            self._flush(name)

    def _flush(self, name: str) -> None:
        if self._held[name]:
            self._open[name].write_table(pa.concat_tables(self._held[name]).unify_dictionaries())
            self._held[name] = []


def _array(values: Any, kind: Any, size: int) -> Any:
    if values is None:
        return pa.nulls(size, kind)
    if pa.types.is_dictionary(kind):
        return pa.array(values, pa.string()).dictionary_encode().cast(kind)
    return pa.array(values, kind, from_pandas=True)  # NaN becomes null
