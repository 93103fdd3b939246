"""Tiers of history, and where the samples of a node lie in each.

A file holds one source (host, gpu, or nic) of some nodes over one hour, or, of the coarsest tier, over one day::

    10s/2026-11-26/17/gpu-000-of-079.parquet
    10m/2026-11-26/day/gpu-000-of-079.parquet

A node's part follows from a hash of its name, so that no index is needed. Rows are sorted by that hash, node, and
device: the statistics of a row group tell whether it holds a node.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from mainstay.probes.signals import SignalSource
from mainstay.service.telemetry.blocks import HOUR

DAY: Final = 24 * HOUR
WHOLE_DAY: Final = "day"
NODES_PER_PART: Final = 128
_FILE: Final = re.compile(r"(\w+)/(\d{4}-\d\d-\d\d)/(\d\d|day)/([a-z]+)-(\d+)-of-(\d+)\.parquet")


@dataclass(frozen=True, slots=True)
class Tier:
    """One resolution of history."""

    name: str
    seconds: int
    """Width of a bucket; of raw samples 1, which is the finest that a chart shows."""


RAW: Final = Tier("raw", 1)
TEN_SECONDS: Final = Tier("10s", 10)
MINUTE: Final = Tier("1m", 60)
TEN_MINUTES: Final = Tier("10m", 600)
ROLLUPS: Final = (TEN_SECONDS, MINUTE, TEN_MINUTES)
TIERS: Final = (RAW, *ROLLUPS)
_BY_NAME: Final = {tier.name: tier for tier in TIERS}
LONG_SPAN: Final = 7 * DAY
"""Longer charts read daily files only: hourly ones are too many."""


def node_hash(node: str) -> int:
    return zlib.crc32(node.encode())


def part_of(hashed: int, parts: int) -> int:
    """Parts are equal ranges of hashes."""
    return hashed * parts >> 32


@dataclass(frozen=True, slots=True)
class HistoryFile:
    """One file of history; the path is relative to the archive."""

    path: str
    tier: Tier
    start: int
    """Unix seconds."""
    stop: int
    source: SignalSource
    part: int
    parts: int

    def holds(self, node: str) -> bool:
        return part_of(node_hash(node), self.parts) == self.part


def day_text(second: float) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%d")


def day_start(text: str) -> int:
    """Unix seconds.

    Raises:
        ValueError: the text is no day.
    """
    return int(datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp())


def hour_folder(tier: Tier, hour: int) -> str:
    return f"{tier.name}/{day_text(hour * HOUR)}/{hour % 24:02}"


def file_name(source: SignalSource, part: int, parts: int) -> str:
    return f"{source}-{part:03}-of-{parts:03}.parquet"


def parse_path(path: str) -> HistoryFile | None:
    """The file with this path; None where it is no file of history, such as one that is still written."""
    match = _FILE.fullmatch(path)
    if match is None or match[1] not in _BY_NAME:
        return None
    try:
        day, source = day_start(match[2]), SignalSource(match[4])
    except ValueError:
        return None
    start, length = (day, DAY) if match[3] == WHOLE_DAY else (day + int(match[3]) * HOUR, HOUR)
    return HistoryFile(path, _BY_NAME[match[1]], start, start + length, source, int(match[5]), int(match[6]))


def without_merged(files: Iterable[HistoryFile]) -> list[HistoryFile]:
    """Leave out hourly files whose day is there: they are about to be deleted."""
    found = list(files)
    days = {(f.tier, f.source, f.part, f.parts, f.start) for f in found if f.stop - f.start == DAY}
    return [
        f
        for f in found
        if f.stop - f.start == DAY or (f.tier, f.source, f.part, f.parts, f.start // DAY * DAY) not in days
    ]


def tier_for(width: float, span: float) -> Tier:
    """The coarsest tier that still fills buckets of ``width`` seconds.

    Buckets become whole multiples of the tier's, so that each low and high belongs to its bucket. A tier that costs
    more than a fifth of the points is left for a finer one.
    """
    if span > LONG_SPAN:
        return TEN_MINUTES
    return next(tier for tier in reversed(TIERS) if width >= tier.seconds and rounded(width, tier) <= 1.25 * width)


def rounded(width: float, tier: Tier) -> float:
    """The width as a whole multiple of the tier's."""
    return -(-width // tier.seconds) * tier.seconds


def in_order_of_use(wanted: Tier) -> tuple[Tier, ...]:
    """The wanted tier, then finer ones, then coarser ones: what is read where the wanted one was deleted."""
    place = TIERS.index(wanted)
    return (*reversed(TIERS[: place + 1]), *TIERS[place + 1 :])
