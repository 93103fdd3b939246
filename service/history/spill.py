"""Slabs by source and slot, in memory up to a budget and then in files. This module imports Arrow."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import ipc

from mainstay.probes.signals import SignalSource

BUDGET: Final = 256 * 2**20
_OPTIONS: Final = ipc.IpcWriteOptions(compression="lz4")


@dataclass
class Spill:
    """Tables of each (source, slot), to be read slot by slot."""

    folder: Path
    budget: int = BUDGET
    """Bytes in memory; beyond, everything is written out."""
    _held: dict[tuple[SignalSource, int], list[Any]] = field(default_factory=lambda: defaultdict(list))
    _bytes: int = 0

    def hold(self, source: SignalSource, slot: int, table: Any) -> None:
        self._held[source, slot].append(table)
        self._bytes += table.nbytes
        if self._bytes > self.budget:
            self._write_out()

    def pop(self, source: SignalSource, slot: int) -> list[Any]:
        """The tables of a slot, which are forgotten."""
        tables = self._held.pop((source, slot), [])
        path = self._path(source, slot)
        if path.exists():
            with pa.OSFile(str(path)) as file:
                while file.tell() < file.size():
                    tables.append(ipc.open_stream(file).read_all())
            path.unlink()
        return tables

    def _write_out(self) -> None:
        for (source, slot), tables in self._held.items():
            with (
                self._path(source, slot).open("ab") as file,
                ipc.new_stream(file, tables[0].schema, options=_OPTIONS) as stream,
            ):
                for table in tables:
                    stream.write_table(table)
        self._held.clear()
        self._bytes = 0

    def _path(self, source: SignalSource, slot: int) -> Path:
        return self.folder / f"{source}-{slot}.arrows"
