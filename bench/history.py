"""What months of history cost: bytes a sample, processor time of the compaction, and seconds of a chart of 30 days.

``python -m bench.history [--nodes N] [--json FILE]``. Block files of an hour are written as the service writes them and
compacted. The nodes have the 8 GPUs and the signals of the fleet in ``bench.fleet``, with two changes that make them
harder to compress: each sample has noise of its own (that fleet sends the same frame again and again), and counters
that grow. Values have the steps of the sensors (1 C, 1 %, 1 mW, 15 MHz). A second row takes the frames of
``bench.fleet`` as they are. 30 days for the chart are 30 copies of the files of a day, with other times.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.lib_fleet import GPU, GPUS, Samples
from bench.report import RESULTS, Row, publish
from mainstay.probes.bundle import encode_bundle, pack
from mainstay.probes.frame import FRAME_VERSION, Axis, Frame, checksum
from mainstay.probes.signals import WIDE_MISSING
from mainstay.service.common import migrate
from mainstay.service.common.db import Database
from mainstay.service.history.archive import Archive
from mainstay.service.history.compactor import Compactor
from mainstay.service.history.query import History
from mainstay.service.history.retention import merge_days
from mainstay.service.history.series import SeriesQuery
from mainstay.service.history.tables import open_writer, row_group
from mainstay.service.history.tiers import TEN_MINUTES, TIERS, day_text
from mainstay.service.telemetry.blocks import HOUR, BlockKind, BlockStore, StoredBlock
from mainstay.service.telemetry.blocks_sqlite import SqliteBlockStore
from mainstay.service.telemetry.catalogs import CatalogIndex
from mainstay.service.telemetry.ring import TelemetryRing
from mainstay.service.telemetry.stored_frames import StoredFrames

DAY: Final = 24 * HOUR
T0: Final = 1_800_000_000 // DAY * DAY
SECONDS: Final = 10
"""Of one frame."""
BUNDLE: Final = 128
YEAR_NODES: Final = 10_000
_STEPS: Final = {
    "gpu_utilization_ratio": (0.9, 0.05, 0.01), "gpu_memory_used_bytes": (6e10, 1e8, 2.0**20),
    "gpu_temperature_celsius": (60, 1, 1), "gpu_memory_temperature_celsius": (70, 1, 1),
    "gpu_power_watts": (500, 40, 0.001), "gpu_sm_clock_hertz": (1.7e9, 2e7, 1.5e7),
    "gpu_memory_clock_hertz": (2.6e9, 0, 1e6), "gpu_throttle_reasons": (4, 0, 1),
    "gpu_temperature_margin_celsius": (25, 1, 1), "gpu_recovery_action": (0, 0, 1), "gpu_remap_pending": (0, 0, 1),
    "gpu_remap_failed": (0, 0, 1),
}  # fmt: skip
"""Mean, deviation, and step of what a GPU at work measures; each also wanders slowly by half its deviation."""
_GROWING: Final = {"gpu_energy_millijoules_total": 500_000, "gpu_throttle_power_cap_nanoseconds_total": 10**8}
"""Counters that grow, per second; the others stay as they are."""


def hour_of(seed: int, hour: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """An hour of one node: [GPU, signal, second], narrow and wide."""
    draw = np.random.default_rng((seed, hour))
    narrow = np.full((GPUS, len(GPU.narrow), HOUR), np.nan, "<f4")
    for name, (mean, deviation, step) in _STEPS.items():
        wander = np.cumsum(draw.standard_normal((GPUS, HOUR)), axis=1) / np.sqrt(HOUR) / 2
        values = mean + deviation * (draw.standard_normal((GPUS, HOUR)) + wander)
        narrow[:, GPU.narrow.index(name)] = np.clip(np.round(values / step) * step, 0, np.inf if mean > 1 else 1)
    wide = np.zeros((GPUS, len(GPU.wide), HOUR), "<i8")
    for name, speed in _GROWING.items():
        grown = np.cumsum(draw.integers(speed * 9 // 10, speed * 11 // 10, (GPUS, HOUR)), axis=1)
        wide[:, GPU.wide.index(name)] = 10**12 + hour * HOUR * speed + grown
    return narrow, wide


@dataclass
class Fleet:
    """Block files of ``nodes`` nodes, relayed in bundles of 128; the samples that are not missing are counted."""

    store: BlockStore
    nodes: int
    readings: int = 0
    body_bytes: int = 0

    def put_hour(self, hour: int, make: Callable[[int, int], tuple[Any, Any]]) -> None:
        for first in range(0, self.nodes, BUNDLE):
            members = range(first, min(first + BUNDLE, self.nodes))
            made = {node: make(node, hour) for node in members}
            for narrow, wide in made.values():
                self.readings += int((~np.isnan(narrow)).sum() + (wide != WIDE_MISSING).sum())
            for start in range(0, HOUR, SECONDS):
                frames = [self._frame(node, hour, start, *made[node]) for node in members]
                self._put(first, hour * (HOUR // SECONDS) + start // SECONDS, frames)

    def _put(self, relay: int, sequence: int, frames: list[Frame]) -> None:
        name, t0 = f"relay{relay}", frames[0].t0
        body = encode_bundle(pack(frames, relay=name, stream="r", sequence=sequence))
        self.body_bytes += len(body)
        names = tuple(frame.subject for frame in frames)
        self.store.append([
            StoredBlock(name, BlockKind.BUNDLE, "r", sequence, t0, t0 + SECONDS - 1, body, members=names)
        ])  # fmt: skip

    def _frame(self, node: int, hour: int, start: int, narrow: Any, wide: Any) -> Frame:
        part = slice(start, start + SECONDS)
        values, wides = narrow[:, :, part].tobytes(), wide[:, :, part].tobytes()
        name = f"n{node:05}"
        return Frame(
            version=FRAME_VERSION, subject=name, axis=Axis.TIME, stream=f"s-{name}",
            sequence=hour * (HOUR // SECONDS) + start // SECONDS, t0=float(T0 + hour * HOUR + start), dt=1.0,
            catalog=GPU.digest, entities=tuple(f"GPU-{name}-{k}" for k in range(GPUS)), samples=SECONDS,
            crc32=checksum(values, wides), values=values, wide=wides,
        )  # fmt: skip


def same_frames(_node: int, _hour: int) -> tuple[Any, Any]:
    """The frames of ``bench.fleet`` as they are: the same 10 s all hour long."""
    samples = Samples(SECONDS)
    narrow = np.frombuffer(samples.values, "<f4").reshape(GPUS, len(GPU.narrow), SECONDS)
    wide = np.frombuffer(samples.wide, "<i8").reshape(GPUS, len(GPU.wide), SECONDS)
    return np.tile(narrow, HOUR // SECONDS), np.tile(wide, HOUR // SECONDS)


@dataclass
class Place:
    """A block store and an archive in a folder."""

    folder: Path
    nodes: int

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        database = Database(f"sqlite:///{self.folder / 'mainstay.db'}")
        migrate.upgrade(database)
        self.catalogs = CatalogIndex(database)
        self.store = SqliteBlockStore(self.folder / "blocks")
        self.archive = Archive(str(self.folder / "history"))
        self.fleet = Fleet(self.store, self.nodes)
        self.compactor = Compactor(
            self.store, StoredFrames(self.catalogs), self.archive, lambda: self.nodes, self.folder
        )

    def sizes(self) -> dict[str, int]:
        """Bytes of each tier."""
        files = {tier.name: (self.folder / "history").glob(f"{tier.name}/**/*.parquet") for tier in TIERS}
        return {name: sum(path.stat().st_size for path in paths) for name, paths in files.items()}

    def chart(self, now: float, days: float, points: int = 300) -> tuple[float, int]:
        """Seconds of a chart of one GPU, and its points that have a value."""
        history = History(TelemetryRing(600), self.store, self.catalogs, str(self.folder / "history"), now - 300)
        question = SeriesQuery(
            node="n00001", device="GPU-n00001-3", signals=("gpu_power_watts",), start=now - days * DAY, stop=now,
            points=points,
        )  # fmt: skip
        begun = time.perf_counter()
        _, lines = history.answer(question, now)
        spent = time.perf_counter() - begun
        return spent, sum(int(np.isfinite(line.envelope.mean).sum()) for line in lines)


def measure(work: Callable[[], object]) -> tuple[float, int]:
    """Processor seconds of ``work``, and how many bytes more the process held meanwhile."""
    over, before = threading.Event(), _resident()
    most = [before]

    def watch() -> None:
        while not over.wait(0.01):
            most.append(max(most.pop(), _resident()))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    begun = time.process_time()
    work()
    spent = time.process_time() - begun
    over.set()
    watcher.join()
    return spent, most[0] - before


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def compaction(folder: Path, nodes: int) -> Iterator[Row]:
    for what, make in (("noise of its own in each sample", hour_of), ("frames of bench.fleet", same_frames)):
        place = Place(folder / make.__name__, nodes)
        place.fleet.put_hour(0, make)
        spent, grown = measure(partial(place.compactor.compact, T0 // HOUR, None))
        samples = place.fleet.readings
        sizes = place.sizes()
        each = {name: size / samples for name, size in sizes.items()}
        note = ", ".join(f"{name}: {size:.3f}" for name, size in each.items())
        hard = make is hour_of
        yield Row(
            claim=f"history of {nodes} nodes, {what}: all tiers", figure=sum(each.values()), unit="B/sample",
            target="<= 0.8" if hard else "", holds=sum(each.values()) <= 0.8 if hard else None, kind="simulated",
            baseline=f"blocks: {place.fleet.body_bytes / samples:.3f} B/sample", note=note,
        )  # fmt: skip
        yield Row(
            claim=f"compaction, {what}", figure=spent / samples * 1e6, unit="CPU-s per million samples",
            target="<= 0.04" if hard else "", holds=spent / samples * 1e6 <= 0.04 if hard else None, kind="live", n=1,
            note=f"{samples:,} samples; memory grew by {grown / 2**20:.0f} MiB meanwhile",
        )  # fmt: skip


def months(folder: Path, nodes: int, days: int) -> Iterator[Row]:
    """Charts over copies of one day; its last hour is in blocks, as in a running service."""
    place = Place(folder / "months", nodes)
    for hour in range(24):
        place.fleet.put_hour(hour, hour_of)
        place.compactor.compact(T0 // HOUR + hour, None)
        if hour:
            place.store.drop_before(T0 // HOUR + hour)
    samples = place.fleet.readings
    hourly = place.sizes()
    merge_days(place.archive, T0 + DAY)
    sizes = place.sizes()
    _copy_days(place, days)
    for last, shown, points in ((days, days, 300), (days, days, 1000), (days, 7, 300), (1, 1, 300), (1, 1, 4000)):
        now = T0 + last * DAY
        first, filled = place.chart(now, shown, points)
        again = float(np.median([place.chart(now, shown, points)[0] for _ in range(5)]))
        limit = (shown, points) == (days, 300)
        yield Row(
            claim=f"chart of one GPU, {shown} days, {points} points", figure=again, unit="s",
            target="<= 1" if limit else "", holds=max(first, again) <= 1 if limit else None, kind="live", n=5,
            note=f"the first {first:.3f} s; {filled} points have a value",
        )  # fmt: skip
    year = sizes["10m"] / nodes * YEAR_NODES * 365
    yield Row(
        claim=f"a year of roll-ups of 10 min, {YEAR_NODES:,} nodes, extrapolated", figure=year / 1e12, unit="TB",
        target="", holds=None, kind="simulated",
        baseline=f"hourly files: {hourly['10m'] / sizes['10m']:.2f} times that",
        note=f"{sizes['10m'] / nodes / 1e6:.2f} MB a node and day, from a day of {nodes} nodes; "
        f"{sizes['10m'] / samples:.4f} B/sample",
    )  # fmt: skip
    kept = {"raw": 7, "10s": 30, "1m": 90, "10m": 400}
    total = sum(sizes[name] * days for name, days in kept.items()) / nodes * YEAR_NODES
    yield Row(
        claim=f"all tiers at their default ages, {YEAR_NODES:,} nodes, extrapolated", figure=total / 1e12, unit="TB",
        target="", holds=None, kind="simulated",
        note=", ".join(f"{n} {d} d: {sizes[n] * d / nodes * YEAR_NODES / 1e12:.2f} TB" for n, d in kept.items()),
    )  # fmt: skip


def _copy_days(place: Place, days: int) -> None:
    """The daily files of the first day once more for each later one."""
    root = place.folder / "history" / TEN_MINUTES.name
    for path in (root / day_text(T0)).glob("**/*.parquet"):
        table = pq.read_table(path)
        at = table.column_names.index("time")
        for day in range(1, days):
            times = table["time"].cast(pa.int64()).to_numpy() + day * DAY * 10**6
            later = table.set_column(at, table.schema.field(at), pa.array(times, table["time"].type))
            target = root / day_text(T0 + day * DAY) / path.parent.name
            target.mkdir(parents=True, exist_ok=True)
            with (target / path.name).open("wb") as file, open_writer(file, later) as writer:
                writer.write_table(later, row_group_size=row_group(TEN_MINUTES))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--json", type=Path, default=RESULTS / "history.json")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        rows = [*compaction(Path(directory), given.nodes), *months(Path(directory), 16, given.days)]
    publish("history", rows, given.json)


if __name__ == "__main__":
    main()
