"""The files of an hour hold what its frames carried, however irregular they are."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from mainstay.probes.bundle import encode_bundle, pack
from mainstay.probes.frame import Axis, Frame, checksum, encode
from mainstay.probes.signals import SIGNALS, WIDE_MISSING, Catalog, SignalSource, catalog
from mainstay.service.common.db import Database
from mainstay.service.history.archive import Archive
from mainstay.service.history.compactor import Compactor
from mainstay.service.history.tiers import RAW, TIERS, Tier, node_hash
from mainstay.service.telemetry.blocks import HOUR, BlockKind, StoredBlock
from mainstay.service.telemetry.blocks_sqlite import SqliteBlockStore
from mainstay.service.telemetry.catalogs import CatalogIndex, source_of
from mainstay.service.telemetry.stored_frames import StoredFrames

T0 = 1_800_000_000 // HOUR * HOUR
MICRO = 1_000_000
CATALOGS = (catalog(SignalSource.GPU), catalog(SignalSource.HOST, SignalSource.GPU))
SAMPLES = 10
Values = dict[tuple[str, str, str], dict[int, float]]
"""(node, device, signal) → time in microseconds → value."""


@dataclass
class Fleet:
    """Nodes that send frames as a fleet in trouble does; what they carry is noted."""

    draw: np.random.Generator
    store: SqliteBlockStore
    known: Values = field(default_factory=lambda: defaultdict(dict))
    times: dict[tuple[str, str], set[int]] = field(default_factory=lambda: defaultdict(set))
    sequence: int = 0

    def send(self, nodes: list[str], made: Catalog, dt: float, starts: list[float]) -> None:
        """Frames of nodes, alone or in bundles."""
        for start in starts:
            self.sequence += 1
            frames = [self._frame(node, made, dt, start) for node in nodes]
            stop = start + (SAMPLES - 1) * dt
            if len(frames) == 1:
                body, name, kind = encode(frames[0]), nodes[0], BlockKind.TIME
            else:
                bundle = pack(frames, relay="relay", stream="r", sequence=self.sequence)
                body, name, kind = encode_bundle(bundle), "relay", BlockKind.BUNDLE
            members = tuple(nodes) if len(nodes) > 1 else ()
            self.store.append([StoredBlock(name, kind, "s", self.sequence, start, stop, body, members=members)])

    def _frame(self, node: str, made: Catalog, dt: float, start: float) -> Frame:
        devices = (*(("host",) if made is CATALOGS[1] else ()), "gpu0", "gpu1")
        times = np.round((start + dt * np.arange(SAMPLES)) * 1e6).astype(np.int64)
        narrow = np.full((len(devices), len(made.narrow), SAMPLES), np.nan, "<f4")
        wide = np.full((len(devices), len(made.wide), SAMPLES), WIDE_MISSING, "<i8")
        for d, device in enumerate(devices):
            self.times[node, device].update(times.tolist())
            for tensor, signals in ((narrow, made.narrow), (wide, made.wide)):
                for s, name in enumerate(signals):
                    if SIGNALS[name].source is source_of(device):
                        tensor[d, s] = self._values(s, d, tensor[d, s], times)
                        self._note((node, device, name), times, tensor[d, s])
        values, wides = narrow.tobytes(), wide.tobytes()
        return Frame(
            version=1, subject=node, axis=Axis.TIME, stream=f"s-{node}", sequence=self.sequence, t0=start, dt=dt,
            catalog=made.digest, entities=devices, samples=SAMPLES, crc32=checksum(values, wides), values=values,
            wide=wides,
        )  # fmt: skip

    def _values(self, signal: int, device: int, unknown: Any, times: Any) -> Any:
        """By its number, a signal is missing, still, different in each device, now and then missing, or in motion."""
        kind = signal % 6
        if kind == 0 or (kind == 3 and self.draw.random() < 0.3):
            return unknown
        if kind == 1 or (kind == 2 and device == 0):
            return np.full_like(unknown, 1)
        if kind == 2:
            return np.full_like(unknown, self.draw.integers(0, 2))
        if unknown.dtype == np.float32:
            found = self.draw.uniform(0, 1, SAMPLES).astype("<f4")
        else:  # grows with time, and is reset now and then
            found = (times - (T0 - HOUR) * MICRO) // 1000 * (1 if self.draw.random() < 0.9 else 0)
        return np.where(self.draw.random(SAMPLES) < (0.2 if kind == 4 else 0), unknown, found)

    def _note(self, key: tuple[str, str, str], times: Any, values: Any) -> None:
        for time, value in zip(times.tolist(), values.tolist(), strict=True):
            if not math.isnan(value) and value != WIDE_MISSING:
                self.known[key][time] = max(value, self.known[key].get(time, value))


def expect_raw(fleet: Fleet, source: SignalSource) -> list[tuple[Any, ...]]:
    """(node, device, time, values) in order."""
    keys = sorted((node_hash(n), n, d) for n, d in fleet.times if source_of(d) is source)
    signals = pq_signals(source)
    return [
        (node, device, time, *(fleet.known[node, device, name].get(time) for name in signals))
        for _, node, device in keys
        for time in sorted(fleet.times[node, device])
        if T0 * MICRO <= time < (T0 + HOUR) * MICRO
    ]


def pq_signals(source: SignalSource) -> list[str]:
    wide = [name for name, signal in SIGNALS.items() if signal.source is source and signal.wide]
    return [name for name, signal in SIGNALS.items() if signal.source is source and not signal.wide] + wide


def expect_rolled(fleet: Fleet, source: SignalSource, tier: Tier) -> dict[tuple[Any, ...], list[float]]:
    """(node, device, signal, start of the bucket) → its samples."""
    found: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    width = tier.seconds * MICRO
    for (node, device, name), values in fleet.known.items():
        if source_of(device) is not source:
            continue
        samples = sorted(values.items())
        if SIGNALS[name].wide:
            pairs = pairwise(samples)
            samples = [(t, float(np.float32((v - u) / ((t - s) / MICRO)))) for (s, u), (t, v) in pairs if v >= u]
        for time, value in samples:
            if T0 * MICRO <= time < (T0 + HOUR) * MICRO:
                found[node, device, name, time // width * width].append(value)
    return found


def send_irregular(fleet: Fleet) -> None:
    draw = fleet.draw
    for nodes, made in ((["a", "b", "c"], CATALOGS[0]), (["d"], CATALOGS[1]), (["e", "f"], CATALOGS[1])):
        dt = float(draw.choice([0.5, 1.0, 2.0, 7.0]))
        offset = float(draw.choice([0.0, 0.25, 0.001]))
        first = float(draw.choice([-50.0, 0.0, 300.0, 303.0]))  # some before the hour, some only in the middle of it
        starts = [T0 + first + offset + dt * SAMPLES * k for k in range(int(draw.integers(1, 25)))]
        lost = draw.random(len(starts)) < draw.choice([0.0, 0.2])
        starts = [start for start, is_lost in zip(starts, lost, strict=True) if not is_lost]
        if draw.random() < 0.5:
            draw.shuffle(starts)
        fleet.send(nodes, made, dt, starts)
        if draw.random() < 0.5:  # again with other values, other catalogs, another period, and other company
            again = [start + float(draw.choice([0.0, dt, 0.1])) for start in starts[:: int(draw.integers(2, 5))]]
            fleet.send(nodes[:1], CATALOGS[int(draw.integers(2))], float(draw.choice([dt, 0.5])), again)


def send_regular(fleet: Fleet) -> None:
    starts = [float(T0 + SAMPLES * k) for k in range(-3, 40)]
    fleet.send(["a", "b", "c"], CATALOGS[0], 1.0, starts)
    fleet.send(["d"], CATALOGS[1], 1.0, starts)


@pytest.mark.parametrize(
    ("seed", "send", "budget"),
    [
        (0, send_regular, 2**28),
        (1, send_regular, 1),
        *((k, send_irregular, 2**28 if k % 2 else 1) for k in range(2, 14)),
    ],
)
def test_files_hold_what_frames_carried(tmp_path: Path, seed: int, send: Any, budget: int) -> None:
    store = SqliteBlockStore(tmp_path / "blocks")
    fleet = Fleet(np.random.default_rng(seed), store)
    send(fleet)
    frames = StoredFrames(CatalogIndex(Database(f"sqlite:///{tmp_path / 'main.db'}")))
    Compactor(store, frames, Archive(str(tmp_path / "out")), lambda: 200, tmp_path, budget).compact(T0 // HOUR, None)
    for source in (SignalSource.HOST, SignalSource.GPU):
        for tier in TIERS:
            rows: list[dict[str, Any]] = []
            for path in sorted((tmp_path / "out").glob(f"{tier.name}/**/{source}-*.parquet")):
                table = pq.read_table(path)
                table = table.set_column(3, "time", table["time"].cast("int64"))
                rows += table.to_pylist()
            if tier is RAW:
                shown = [tuple(row[name] for name in list(row)[1:]) for row in rows]
                assert shown == expect_raw(fleet, source)
                continue
            expected = expect_rolled(fleet, source, tier)
            keys = [(row["node"], row["device"], row["signal"], row["time"]) for row in rows]
            order = pq_signals(source)
            assert keys == sorted(expected, key=lambda k: (node_hash(k[0]), k[0], k[1], order.index(k[2]), k[3]))
            shown = [(row["low"], row["high"], row["count"]) for row in rows]
            assert shown == [(min(values), max(values), len(values)) for values in map(expected.get, keys) if values]
            means = [np.mean(expected[key], dtype=np.float64) for key in keys]
            np.testing.assert_allclose([row["mean"] for row in rows], means, rtol=1e-6)
