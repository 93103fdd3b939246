"""Turns an hour of blocks into files of history. This module imports Arrow: import it where it is used.

An hour is read one sender at a time. Its samples are put into slots by the hash of the node, in memory or in temporary
files, and each slot is then sorted, rolled up, and written alone: memory does not grow with the fleet. To compact an
hour again replaces its files by ones that hold the same and what came late.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from mainstay.probes.signals import SignalSource
from mainstay.service.history.archive import Archive, Mark
from mainstay.service.history.rollup import coarsen, roll_up
from mainstay.service.history.slabs import DeviceCodes, Slab, slabs_of
from mainstay.service.history.spill import BUDGET, Spill
from mainstay.service.history.tables import (
    open_writer,
    raw_table,
    rollup_table,
    row_group,
    sort_rows,
)
from mainstay.service.history.tiers import (
    NODES_PER_PART,
    RAW,
    ROLLUPS,
    Tier,
    file_name,
    hour_folder,
    node_hash,
    part_of,
)
from mainstay.service.telemetry.blocks import HOUR, BlockKind, BlockStore, StoredBlock
from mainstay.service.telemetry.catalogs import RING_SOURCES, CatalogScope, Compiled
from mainstay.service.telemetry.stored_frames import StoredFrames

SLOTS: Final = 16
"""Slots of a part: 8 nodes each, some 80 MB where every signal of 8 GPUs is sampled each second."""
LEAD_SECONDS: Final = 60
"""Read before the hour, so that the first reading of a counter in it has a rate."""
SECONDS_AT_ONCE: Final = 360
"""Of blocks that are decoded at once: 104 MB of bundles of 128 nodes."""
_KINDS: Final = (BlockKind.TIME, BlockKind.BUNDLE)
_log: Final = logging.getLogger(__name__)


@dataclass
class Compactor:
    """Writes the files of hours.

    Args:
        store: where blocks are read.
        reader: reads them.
        archive: where files are written.
        nodes: number of nodes of the fleet; it determines how many files an hour has.
        folder: for temporary files.
        budget: bytes of samples in memory.
    """

    store: BlockStore
    reader: StoredFrames
    archive: Archive
    nodes: Callable[[], int]
    folder: Path
    budget: int = BUDGET

    def late(self, marks: Iterable[Mark]) -> Mark | None:
        """The first of these hours that has blocks which came after it was compacted."""
        return next((mark for mark in marks if self.blocks(mark.hour) > mark.blocks), None)

    def blocks(self, hour: int) -> int:
        """Blocks that may hold samples of an hour: they reach at most an hour past their own."""
        return self.store.count(hour - 1) + self.store.count(hour)

    def compact(self, hour: int, mark: Mark | None) -> Mark:
        """Write the files of an hour, and then the mark that records it."""
        blocks = self.blocks(hour)
        parts = mark.parts if mark else -(-max(self.nodes(), 1) // NODES_PER_PART)
        with tempfile.TemporaryDirectory(prefix="compact-", dir=self.folder) as folder:
            work = _HourWork(self.archive, hour, parts, Spill(Path(folder), self.budget))
            for sender in sorted({*self.store.senders(hour - 1), *self.store.senders(hour)}):
                self._read(sender, work)
            work.write()
        done = Mark(hour, blocks, parts)
        self.archive.put_mark(done)
        _log.info("hour %s is compacted from %d blocks", hour_folder(RAW, hour)[4:], blocks)
        return done

    def _read(self, sender: str, work: _HourWork) -> None:
        start, stop = work.hour * HOUR - LEAD_SECONDS, (work.hour + 1) * HOUR
        blocks = self.store.read(start, stop, subject=sender, kinds=_KINDS, relayed=False)
        for _, group in groupby(blocks, key=lambda block: block.start // SECONDS_AT_ONCE):
            _, checked = self.reader.read(list(group), _is_of_devices)
            work.add_batches(checked.batches)


def _is_of_devices(_block: StoredBlock, compiled: Compiled) -> bool:
    return compiled.scope is CatalogScope.DEVICES


@dataclass
class _HourWork:
    """One hour on its way from blocks to files."""

    archive: Archive
    hour: int
    parts: int
    spill: Spill
    codes: dict[SignalSource, DeviceCodes] = field(default_factory=lambda: {s: DeviceCodes() for s in RING_SOURCES})

    def add_batches(self, batches: Any) -> None:
        for source in RING_SOURCES:
            for slot, slab in slabs_of(batches, source, self.codes[source], self._slot):
                self.spill.hold(source, slot, slab)

    def _slot(self, node: str) -> int:
        return part_of(node_hash(node), self.parts * SLOTS)

    def write(self) -> None:
        for source in RING_SOURCES:
            ranks = self.codes[source].ranks()
            for part in range(self.parts):
                self._write_part(source, part, ranks)

    def _write_part(self, source: SignalSource, part: int, ranks: Any) -> None:
        with ExitStack() as files:
            writers: dict[Tier, Any] = {}
            for slot in range(part * SLOTS, (part + 1) * SLOTS):
                slabs = self.spill.pop(source, slot)
                if not slabs:
                    continue
                for tier, table in self._tables(source, slabs, ranks):
                    if tier not in writers and table.num_rows:
                        path = f"{hour_folder(tier, self.hour)}/{file_name(source, part, self.parts)}"
                        target = files.enter_context(self.archive.writing(path))
                        writers[tier] = files.enter_context(open_writer(target, table))
                    if table.num_rows:
                        writers[tier].write_table(table, row_group_size=row_group(tier))

    def _tables(self, source: SignalSource, slabs: Sequence[Slab], ranks: Any) -> Iterator[tuple[Tier, Any]]:
        rows = sort_rows(slabs, ranks, source).within(self.hour * HOUR, (self.hour + 1) * HOUR)
        if not len(rows.times):
            return
        codes = self.codes[source]
        yield RAW, raw_table(rows, codes, source)
        rolled = roll_up(rows, ROLLUPS[0].seconds)
        for tier in ROLLUPS:
            rolled = coarsen(rolled, tier.seconds) if tier is not ROLLUPS[0] else rolled
            yield tier, rollup_table(rolled, rows.codes, codes, source)
