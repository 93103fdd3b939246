"""Hours of blocks become files, and charts of any span read them: the same series, lows and highs included."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from mainstay.probes.bundle import encode_bundle, pack
from mainstay.probes.frame import Axis, Frame, checksum, encode
from mainstay.probes.signals import WIDE_MISSING, SignalSource, catalog
from mainstay.service.app import build_services, close_services
from mainstay.service.history import compactor, loops
from mainstay.service.history.series import SeriesQuery
from mainstay.service.history.tiers import TIERS, HistoryFile, parse_path
from mainstay.service.incidents.models import IncidentRow
from mainstay.service.services import Services
from mainstay.service.settings import Settings
from mainstay.service.telemetry.blocks import BlockKind, StoredBlock
from mainstay.service.telemetry.catalogs import compile_catalog
from mainstay.service.telemetry.frame_batch import join
from tests.fakes.clock import ManualClock

HOUR = 3600
DAY = 24 * HOUR
T0 = 1_800_000_000 // DAY * DAY + 5 * HOUR
MADE = catalog(SignalSource.HOST, SignalSource.GPU)
POWER, ENERGY, LOAD = "gpu_power_watts", "gpu_energy_millijoules_total", "load_1m"


@dataclass
class World:
    """Services without loops, frames of nodes, and the loop of history."""

    services: Services
    clock: ManualClock
    work: loops.HistoryWork
    sequence: int = 0
    power: dict[tuple[str, str], list[tuple[float, float]]] = field(default_factory=dict)
    """(node, device) → (time, watts) as stored."""

    def frame(self, node: str, start: float, samples: int = 60, dt: float = 1.0) -> Frame:
        """Two GPUs and the host: random power, energy that grows by 100 each second, load of 1."""
        devices = ("host", "gpu0", "gpu1")
        self.sequence += 1
        draw = np.random.default_rng(self.sequence)
        narrow = np.full((3, len(MADE.narrow), samples), np.nan, "<f4")
        wide = np.full((3, len(MADE.wide), samples), WIDE_MISSING, "<i8")
        watts = draw.uniform(100, 700, (2, samples)).astype("<f4")
        times = start + dt * np.arange(samples)
        narrow[1:, MADE.narrow.index(POWER)] = watts
        narrow[0, MADE.narrow.index(LOAD)] = 1.0
        wide[1:, MADE.wide.index(ENERGY)] = np.round(100 * (times - T0)) + 10**15
        for k in range(2):
            self.power.setdefault((node, f"gpu{k}"), []).extend(zip(times, watts[k].astype(float), strict=True))
        values, wides = narrow.tobytes(), wide.tobytes()
        return Frame(
            version=1, subject=node, axis=Axis.TIME, stream=f"s-{node}", sequence=self.sequence, t0=start, dt=dt,
            catalog=MADE.digest, entities=devices, samples=samples, crc32=checksum(values, wides), values=values,
            wide=wides,
        )  # fmt: skip

    def send(self, node: str, start: float, stop: float, **changes: Any) -> None:
        frames = [self.frame(node, t, **changes) for t in np.arange(start, stop, 60.0).tolist()]
        for one in frames:
            self.services.ring.write(join([one], compile_catalog(MADE)))
        self.services.blocks.append([
            StoredBlock(node, BlockKind.TIME, f.stream, f.sequence, f.t0, f.t0 + (f.samples - 1) * f.dt, encode(f))
            for f in frames
        ])  # fmt: skip

    def relay(self, nodes: list[str], start: float, stop: float) -> None:
        for t in np.arange(start, stop, 60.0).tolist():
            self.sequence += 1
            bundle = pack([self.frame(node, t) for node in nodes], relay="relay", stream="r", sequence=self.sequence)
            self.services.blocks.append([
                StoredBlock("relay", BlockKind.BUNDLE, "r", bundle.sequence, t, t + 59, encode_bundle(bundle),
                            members=tuple(nodes))
            ])  # fmt: skip

    def keep(self) -> None:
        """Run the loop until nothing is due."""
        while self.work.run_once():
            pass

    def query(self, start: float, stop: float, *signals: str, points: int = 300, node: str = "n1") -> dict[Any, Any]:
        """(device, signal) → envelope, and "t" → times."""
        question = SeriesQuery(
            node=node, device=None, signals=signals or (POWER,), start=start, stop=stop, points=points
        )
        buckets, lines = self.services.history.answer(question, int(self.clock.now()))
        return {"t": buckets.times, "width": buckets.width} | {(s.device, s.signal): s.envelope for s in lines}

    def expect(self, node: str, device: str, times: Any, width: float) -> tuple[Any, Any, Any]:
        """Mean, low, and high of the stored power in each bucket."""
        known = np.array(self.power[node, device])
        buckets = [known[(known[:, 0] >= t) & (known[:, 0] < t + width), 1] for t in times]
        return tuple(np.array([f(b) if len(b) else np.nan for b in buckets]) for f in (np.mean, np.min, np.max))

    def check_power(self, start: float, stop: float, *, points: int = 300, node: str = "n1") -> float:
        """A chart of power shows exactly what was stored; the width of its buckets."""
        found = self.query(start, stop, points=points, node=node)
        for device in ("gpu0", "gpu1"):
            mean, low, high = self.expect(node, device, found["t"], found["width"])
            shown = found[device, POWER]
            np.testing.assert_allclose(shown.mean, mean, rtol=1e-6)
            np.testing.assert_array_equal(shown.low, low)
            np.testing.assert_array_equal(shown.high, high)
        return float(found["width"])

    @property
    def folder(self) -> Path:
        return self.services.settings.data_dir / "history"

    def files(self, tier: str) -> list[HistoryFile]:
        paths = [path.relative_to(self.folder).as_posix() for path in sorted(self.folder.glob(f"{tier}/**/*"))]
        return [file for path in paths if (file := parse_path(path))]


def build(settings: Settings) -> World:
    clock = ManualClock(float(T0 + 2 * HOUR))
    services = build_services(settings, clock)
    return World(services, clock, loops.HistoryWork(services))


@pytest.fixture
def world(make_settings: Callable[..., Settings]) -> Iterator[World]:
    made = build(make_settings(telemetry={"retention_hours": 3}))
    yield made
    close_services(made.services)


@pytest.fixture
def world_anywhere(make_settings: Callable[..., Settings], database_url: str) -> Iterator[World]:
    made = build(make_settings(database_url=database_url))
    yield made
    close_services(made.services)


@pytest.mark.parametrize(("points", "width"), [(3600, 1), (300, 12), (120, 30), (60, 60), (6, 600)])
def test_a_chart_of_a_compacted_hour_shows_what_was_stored(world: World, points: int, width: int) -> None:
    world.send("n1", T0, T0 + HOUR)
    world.keep()
    assert {tier.name: len(world.files(tier.name)) for tier in TIERS} == {"raw": 2, "10s": 2, "1m": 2, "10m": 2}
    world.services.blocks.drop_before(T0 // HOUR + 2)
    assert world.check_power(T0, T0 + HOUR, points=points) == width


def test_files_are_written_from_either_block_store(world_anywhere: World) -> None:
    world = world_anywhere
    world.send("n1", T0, T0 + HOUR)
    world.relay(["n2", "n3"], T0, T0 + HOUR)
    world.keep()
    world.services.blocks.drop_before(T0 // HOUR + 2)
    for node in ("n1", "n2", "n3"):
        assert world.check_power(T0, T0 + HOUR, points=60, node=node) == 60


def test_raw_samples_are_as_the_frames_carried_them(world: World) -> None:
    world.send("n1", T0 + 0.25, T0 + 600, samples=600, dt=0.1)
    world.keep()
    (file,) = [f for f in world.files("raw") if f.source is SignalSource.GPU]
    table = pq.read_table(world.folder / file.path).to_pydict()
    rows = [k for k, device in enumerate(table["device"]) if device == "gpu1"]
    stored = sorted(world.power["n1", "gpu1"])
    assert [table[POWER][k] for k in rows] == [watts for _, watts in stored]
    assert [table["time"][k].timestamp() for k in rows] == [round(t, 6) for t, _ in stored]
    assert [table[ENERGY][k] for k in rows] == [round(100 * (t - T0)) + 10**15 for t, _ in stored]
    assert set(table["gpu_temperature_celsius"]) == {None}, "unknown is null"


def test_a_counter_is_a_rate_across_hours(world: World) -> None:
    world.send("n1", T0, T0 + 2 * HOUR)
    world.clock.advance(HOUR)
    world.keep()
    world.services.blocks.drop_before(T0 // HOUR + 3)
    for points in (2 * HOUR, 720, 120, 12):
        energy = world.query(T0, T0 + 2 * HOUR, ENERGY, points=points)["gpu0", ENERGY]
        first = 1 if points == 2 * HOUR else 0  # the first reading of all has no rate
        np.testing.assert_allclose(energy.low[first:], 100, rtol=1e-3)
        np.testing.assert_allclose(energy.high[first:], 100, rtol=1e-3)


def test_a_chart_joins_files_blocks_and_the_ring_without_seam(world: World) -> None:
    world.send("n1", T0, T0 + 2 * HOUR)  # the first hour is compacted, the second one is not
    world.keep()
    assert world.services.history.archive.marks().keys() == {T0 // HOUR}
    world.check_power(T0 + 1800, T0 + 2 * HOUR, points=3600)
    world.check_power(T0 + 1800, T0 + 2 * HOUR, points=4000)
    world.check_power(T0, T0 + 2 * HOUR, points=72)
    energy = world.query(T0 + 1800, T0 + 2 * HOUR, ENERGY, points=4000)["gpu0", ENERGY]
    assert (np.round(energy.mean) == 100).all(), "no reading lacks its rate where one source ends"


def test_each_sample_counts_once_however_often_it_came(world: World) -> None:
    world.send("n1", T0, T0 + 600)
    known = list(world.services.blocks.read(T0, T0 + 600, kinds=[BlockKind.TIME]))
    again = [StoredBlock("n1", b.kind, "again", b.sequence, b.start, b.stop, b.body) for b in known]
    world.services.blocks.append(again)
    world.keep()
    (file,) = [f for f in world.files("10m") if f.source is SignalSource.GPU]
    table = pq.read_table(world.folder / file.path).to_pydict()
    assert set(table["count"]) == {600, 599}, "599 rates"


def test_late_blocks_show_at_once_and_are_compacted_in_turn(world: World) -> None:
    world.send("n1", T0, T0 + 600)
    world.keep()
    world.send("n1", T0 + 600, T0 + 1200)
    world.check_power(T0, T0 + HOUR, points=6)
    world.clock.advance(loops.LATE_SECONDS)
    world.keep()
    world.services.blocks.drop_before(T0 // HOUR + 2)
    world.check_power(T0, T0 + HOUR, points=6)
    assert len(world.services.history.archive.marks()) == 2, "of the hour, and of the one that its last block may reach"


def test_an_hour_whose_blocks_are_dropped_stays(world: World) -> None:
    world.send("n1", T0, T0 + HOUR)
    world.keep()
    before = {path: path.read_bytes() for path in world.folder.glob("raw/**/*.parquet")}
    world.services.blocks.drop_before(T0 // HOUR + 2)
    world.clock.advance(3 * HOUR)
    world.keep()
    assert {path: path.read_bytes() for path in world.folder.glob("raw/**/*.parquet")} == before


def test_compaction_again_writes_the_same(world: World) -> None:
    world.send("n1", T0, T0 + 600)
    world.keep()
    mark = world.services.history.archive.marks()[T0 // HOUR]
    before = {path: path.read_bytes() for path in world.folder.glob("**/*.parquet")}
    assert world.work._compactor().compact(T0 // HOUR, mark) == mark
    assert {path: path.read_bytes() for path in world.folder.glob("**/*.parquet")} == before


def test_memory_is_bounded_by_files(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [f"n{k}" for k in range(20)]
    monkeypatch.setattr(compactor, "NODES_PER_PART", 4)
    monkeypatch.setattr(world.work, "_nodes", lambda: 20)
    for node in nodes:
        world.send(node, T0, T0 + 600)
    made = world.work._compactor()
    made.budget = 1
    made.compact(T0 // HOUR, None)
    assert len({f.part for f in world.files("raw")}) > 1
    assert not list(world.services.settings.data_dir.glob("compact-*"))
    world.clock.advance(HOUR)
    for node in nodes:
        world.check_power(T0, T0 + 600, points=60, node=node)


@pytest.mark.parametrize("spoil", [
    lambda body: body[: len(body) // 2], lambda body: b"", lambda body: body[:200] + bytes(200) + body[400:],
])  # fmt: skip
def test_a_damaged_file_is_set_aside_and_made_again(world: World, spoil: Callable[[bytes], bytes]) -> None:
    world.send("n1", T0, T0 + HOUR)
    world.keep()
    (file,) = [f for f in world.files("10m") if f.source is SignalSource.GPU]
    path = world.folder / file.path
    path.write_bytes(spoil(path.read_bytes()))
    assert ("gpu0", POWER) not in world.query(T0, T0 + HOUR, points=6)
    assert path.with_name(f"{path.name}.damaged").exists()
    world.check_power(T0, T0 + HOUR, points=6)  # from the blocks: the hour counts as not compacted
    world.keep()
    assert path.exists()
    world.check_power(T0, T0 + HOUR, points=6)


def test_old_tiers_go_and_charts_use_what_is_left(world: World) -> None:
    world.send("n1", T0, T0 + HOUR)
    world.keep()
    for days, left in ((8, "10s"), (31, "1m"), (91, "10m")):
        world.clock.time = float(T0 + days * DAY)
        world.send("n1", world.clock.time - 2 * HOUR, world.clock.time - 2 * HOUR + 60)  # the loop has work
        world.services.blocks.drop_before(int(world.clock.time) // HOUR - 3)
        world.keep()
        kept = {tier.name for tier in TIERS if any(f.start == T0 for f in world.files(tier.name))}
        kept |= {"10m"} & {f.tier.name for f in world.files("10m") if f.start == T0 // DAY * DAY}
        assert kept == {"10s": {"10s", "1m", "10m"}, "1m": {"1m", "10m"}, "10m": {"10m"}}[left]
        seconds = {"10s": 10, "1m": 60, "10m": 600}[left]
        assert world.check_power(T0, T0 + HOUR, points=3600) == seconds
    world.clock.time = float(T0 + 402 * DAY)
    world.send("n1", world.clock.time - 2 * HOUR, world.clock.time - 2 * HOUR + 60)
    world.keep()
    assert not any(f.start < T0 + DAY for tier in TIERS for f in world.files(tier.name))


def test_hours_around_an_incident_stay_whole(world: World) -> None:
    world.send("n1", T0, T0 + HOUR)
    world.keep()
    with world.services.database.session() as session:
        session.add(IncidentRow(
            id="i", title="i", summary="", state="closed", version=1, severity="warning", needs_operator=False,
            opened_at=T0 + 1.5 * HOUR, closed_at=T0 + 1.6 * HOUR, updated_at=T0, ranks=[], kinds=["xid"], node="n1",
        ))  # fmt: skip
    world.clock.time = float(T0 + 60 * DAY)
    world.send("n1", world.clock.time - 2 * HOUR, world.clock.time - 2 * HOUR + 60)
    world.keep()
    assert world.check_power(T0, T0 + HOUR, points=3600) == 1


def test_hours_of_the_coarsest_tier_become_a_day(world: World) -> None:
    for hour in range(3):
        world.send("n1", T0 + hour * HOUR, T0 + (hour + 1) * HOUR)
        world.send("n2", T0 + hour * HOUR, T0 + (hour + 1) * HOUR)
    world.clock.advance(2 * HOUR)
    world.keep()
    assert len(world.files("10m")) == 6
    world.clock.time = float(T0 + 2 * DAY)
    world.send("n1", world.clock.time - 2 * HOUR, world.clock.time - 2 * HOUR + 60)
    world.keep()
    first_day = [f for f in world.files("10m") if f.start < T0 + DAY]
    assert {f.stop - f.start for f in first_day} == {DAY}
    assert len(first_day) == 2
    world.services.blocks.drop_before(T0 // HOUR + 4)
    for node in ("n1", "n2"):
        assert world.check_power(T0, T0 + 3 * HOUR, points=18, node=node) == 600


def test_a_chart_of_all_times_reads_what_there_is(world: World) -> None:
    world.send("n1", T0, T0 + HOUR)
    world.keep()
    world.services.blocks.drop_before(T0 // HOUR + 2)
    found = world.query(0, T0 + 2 * HOUR)["gpu0", POWER]
    assert np.nanmax(found.high) == max(watts for _, watts in world.power["n1", "gpu0"])


def test_the_service_without_finished_hours_makes_no_files(world: World) -> None:
    world.send("n1", T0 + HOUR, T0 + HOUR + 60)
    assert not world.work.run_once()
    assert not world.folder.exists()


def _everything() -> fs.FileSelector:
    return fs.FileSelector("10m", recursive=True)


def test_an_object_store_holds_the_same_files(make_settings: Callable[..., Settings], tmp_path: Path) -> None:
    address = f"fsspec+memory:///{tmp_path.name}"  # Arrow's other file systems, S3 among them, take this path
    world = build(make_settings(history={"url": address}, telemetry={"retention_hours": 3}))
    world.send("n1", T0, T0 + HOUR)
    world.keep()
    world.services.blocks.drop_before(T0 // HOUR + 2)
    assert world.check_power(T0, T0 + HOUR, points=60) == 60
    world.clock.time = float(T0 + 40 * DAY)
    world.send("n1", world.clock.time - 2 * HOUR, world.clock.time - 2 * HOUR + 60)
    world.keep()
    archive = world.services.history.archive
    first = T0 // DAY * DAY
    left = {tier.name: [f.stop - f.start for f in archive.of_day(tier, first)] for tier in TIERS}
    assert left == {"raw": [], "10s": [], "1m": [HOUR, HOUR], "10m": [DAY, DAY]}
    assert world.check_power(T0, T0 + HOUR, points=6) == 600
    for file in archive.of_day(TIERS[-1], first):
        with archive.files.open_output_stream(file.path) as target:
            target.write(b"x" * 100)
    assert ("gpu0", POWER) not in world.query(T0, T0 + HOUR, points=6)
    assert len([info for info in archive.files.get_file_info(_everything()) if info.path.endswith(".damaged")]) == 1
    assert world.check_power(T0, T0 + HOUR, points=6) == 600, "from the tier below"
    assert not world.folder.exists()
    close_services(world.services)
