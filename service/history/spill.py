"""Slabs by source and slot, in memory up to a budget and then in files."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mainstay.probes.signals import SignalSource
from mainstay.service.history.slabs import Slab

BUDGET: Final = 256 * 2**20


@dataclass
class Spill:
    """Slabs of each (source, slot), to be read slot by slot."""

    folder: Path
    budget: int = BUDGET
    """Bytes in memory; beyond, everything is written out."""
    _held: dict[tuple[SignalSource, int], list[Slab]] = field(default_factory=lambda: defaultdict(list))
    _bytes: int = 0

    def hold(self, source: SignalSource, slot: int, slab: Slab) -> None:
        self._held[source, slot].append(slab)
        self._bytes += sum(array.nbytes for array in slab.arrays)
        if self._bytes > self.budget:
            self._write_out()

    def pop(self, source: SignalSource, slot: int) -> list[Slab]:
        """The slabs of a slot, which are forgotten."""
        slabs = self._held.pop((source, slot), [])
        path = self._path(source, slot)
        if path.exists():
            slabs += Slab.decode_all(memoryview(path.read_bytes()))
            path.unlink()
        return slabs

    def _write_out(self) -> None:
        for (source, slot), slabs in self._held.items():
            with self._path(source, slot).open("ab") as file:
                file.writelines(slab.encode() for slab in slabs)
        self._held.clear()
        self._bytes = 0

    def _path(self, source: SignalSource, slot: int) -> Path:
        return self.folder / f"{source}-{slot}.slabs"
