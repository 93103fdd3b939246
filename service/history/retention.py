"""Forgets old files of history, and makes daily files of the coarsest tier. This module imports Arrow."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import select

from mainstay.service.common.db import Database
from mainstay.service.history.archive import Archive
from mainstay.service.history.reader import choose, read_files
from mainstay.service.history.tables import ROLLUP, open_writer, row_group
from mainstay.service.history.tiers import (
    DAY,
    MINUTE,
    RAW,
    TEN_MINUTES,
    TEN_SECONDS,
    WHOLE_DAY,
    HistoryFile,
    Tier,
    day_text,
    file_name,
)
from mainstay.service.incidents.models import FindingRow, IncidentRow
from mainstay.service.settings import HistorySettings
from mainstay.service.telemetry.blocks import HOUR

MARGIN_SECONDS: Final = 3600.0
"""Kept before and after an incident."""
SLICES: Final = 32
"""Of a part, merged one after the other: 4 nodes each."""
_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Window:
    """An incident's time with its margins, and its node."""

    node: str
    start: float
    stop: float

    def keeps(self, file: HistoryFile) -> bool:
        return file.start < self.stop and file.stop > self.start and file.holds(self.node)


def incident_windows(database: Database, now: float) -> list[Window]:
    """The incidents that are stored, one window for each node that they or their findings name."""
    times = (IncidentRow.opened_at, IncidentRow.closed_at)
    own = select(IncidentRow.node, *times).where(IncidentRow.node.is_not(None))
    found = select(FindingRow.node, *times).join(IncidentRow, FindingRow.incident_id == IncidentRow.id)
    with database.reading() as session:
        rows = session.execute(own.union(found.where(FindingRow.node.is_not(None)))).all()
    return [
        Window(node, opened - MARGIN_SECONDS, (now if closed is None else closed) + MARGIN_SECONDS)
        for node, opened, closed in rows
        if node
    ]


def limits_of(settings: HistorySettings) -> dict[Tier, float]:
    """Seconds for which each tier is kept."""
    days = {
        RAW: settings.raw_days,
        TEN_SECONDS: settings.ten_second_days,
        MINUTE: settings.minute_days,
        TEN_MINUTES: settings.ten_minute_days,
    }
    return {tier: kept * DAY for tier, kept in days.items()}


def forget(archive: Archive, limits: Mapping[Tier, float], windows: Sequence[Window], now: float) -> int:
    """Delete files older than their tier is kept; how many.

    Raw samples and roll-ups of 10 s stay where a window covers one of the nodes of the file.
    """
    count = 0
    for tier, seconds in limits.items():
        for day in archive.days(tier):
            if day >= now - seconds:
                break
            old = [file for file in archive.of_day(tier, day) if file.stop <= now - seconds]
            if tier in {RAW, TEN_SECONDS}:
                old = [file for file in old if not any(window.keeps(file) for window in windows)]
            for file in old:
                archive.delete(file.path)
            count += len(old)
            if day + DAY <= now - seconds and not archive.of_day(tier, day):
                archive.delete_folder(f"{tier.name}/{day_text(day)}")
    if count:
        _log.info("deleted %d old files of history", count)
    return count


def merge_days(archive: Archive, before: float) -> int:
    """Merge hourly files of the coarsest tier that no late block can change any more; how many days.

    Args:
        archive: where the files are.
        before: Unix seconds; days that end later are left alone.
    """
    count = 0
    for day in archive.days(TEN_MINUTES):
        if day + DAY > before:
            break
        hourly = [file for file in archive.of_day(TEN_MINUTES, day) if file.stop - file.start == HOUR]
        for files in _alike(hourly).values():
            _merge(archive, files, day)
        if hourly:
            _delete_hours(archive, day)
            count += 1
    return count


def _alike(files: Sequence[HistoryFile]) -> dict[Any, list[HistoryFile]]:
    groups = defaultdict(list)
    for file in sorted(files, key=lambda file: file.start):
        groups[file.source, file.part, file.parts].append(file)
    return groups


def _merge(archive: Archive, files: Sequence[HistoryFile], day: int) -> None:
    one = files[0]
    path = f"{TEN_MINUTES.name}/{day_text(day)}/{WHOLE_DAY}/{file_name(one.source, one.part, one.parts)}"
    tables = (table for table in _sorted_slices(archive, files) if table.num_rows)
    first = next(tables, None)
    if first is None:
        return
    with archive.writing(path) as target, open_writer(target, first) as writer:
        writer.write_table(first, row_group_size=row_group(TEN_MINUTES))
        for table in tables:
            writer.write_table(table, row_group_size=row_group(TEN_MINUTES))


def _sorted_slices(archive: Archive, files: Sequence[HistoryFile]) -> Iterator[Any]:
    """The rows of hourly files by device and time, a few nodes at once."""
    one = files[0]
    edges = [-(-((one.part * SLICES + k) << 32) // (one.parts * SLICES)) for k in range(SLICES + 1)]
    for low, high in pairwise(edges):
        hashed = pc.field("node_hash")
        rows = (hashed >= pa.scalar(low, pa.uint32())) & (hashed <= pa.scalar(high - 1, pa.uint32()))
        table = read_files(archive, files, ROLLUP.names, range(low, high), choose(rows))
        if table is not None and table.num_rows:
            table = table.unify_dictionaries().combine_chunks()
            keys = [table[name].chunk(0).indices.to_numpy() for name in ("signal", "device", "node")]
            times = table["time"].cast(pa.int64()).to_numpy()
            yield table.take(pa.array(np.lexsort((times, *keys, table["node_hash"].to_numpy()))))


def _delete_hours(archive: Archive, day: int) -> None:
    for hour in range(24):
        archive.delete_folder(f"{TEN_MINUTES.name}/{day_text(day)}/{hour:02}")
