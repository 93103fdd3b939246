"""What the detectors are shown: each second once, hosts beside their devices, whoever comes and goes."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest

from mainstay.detectors.base import Samples
from mainstay.detectors.finding import Finding
from mainstay.probes.frame import Axis, Frame
from mainstay.probes.signals import SignalSource, catalog
from mainstay.service.incidents.detector_runner import DetectorRunner, Fleet
from mainstay.service.incidents.device_feed import DeviceFeed
from mainstay.service.telemetry.catalogs import compile_catalog
from mainstay.service.telemetry.frame_batch import join
from mainstay.service.telemetry.ring import TelemetryRing
from tests.detectors.healthy import SIGNALS, HealthyFleet

MADE = catalog(SignalSource.HOST, SignalSource.GPU)
COMPILED = compile_catalog(MADE)
START = 1_800_000_000
MISSING = -(2**63)


def write(
    ring: TelemetryRing, node: str, t0: int, seconds: int, *, gpus: int = 2, host: bool = True, **values: Any
) -> None:
    """Frames of a node: ``values`` name GPU gauges; uptime counts from 1000."""
    entities = (("host",) if host else ()) + tuple(f"gpu{i}" for i in range(gpus))
    narrow = np.full((len(entities), len(MADE.narrow), seconds), np.nan, np.float32)
    if host:
        narrow[0, MADE.narrow.index("uptime_seconds")] = 1000 + np.arange(seconds)
    for name, value in values.items():
        narrow[1 if host else 0 :, MADE.narrow.index(name)] = value
    wide = np.full((len(entities), len(MADE.wide), seconds), MISSING, np.int64)
    put(ring, node, t0, entities=entities, narrow=narrow, wide=wide)


def put(
    ring: TelemetryRing, node: str, t0: int, *, entities: tuple[str, ...], narrow: np.ndarray, wide: np.ndarray
) -> None:
    w, v = wide.astype("<i8").tobytes(), narrow.astype("<f4").tobytes()
    frame = Frame(
        version=1, subject=node, axis=Axis.TIME, stream="s", sequence=t0, t0=float(t0), dt=1.0, catalog=MADE.digest,
        entities=entities, samples=narrow.shape[2], values=v, wide=w, crc32=zlib.crc32(w, zlib.crc32(v)),
    )  # fmt: skip
    ring.write(join([frame], COMPILED))


def feed_of(ring: TelemetryRing) -> DeviceFeed:
    return DeviceFeed(ring, SignalSource.GPU, ("gpu_temperature_celsius",), ("uptime_seconds",))


def read_samples(feed: DeviceFeed, now: float, cohorts: dict[tuple[str, str], str] | None = None) -> Samples:
    samples = feed.read_ready(now, cohorts or {})
    assert samples is not None
    return samples


def test_hosts_stand_beside_their_devices_also_when_they_come_late() -> None:
    ring = TelemetryRing(300)
    write(ring, "a", START, 10, host=False, gpu_temperature_celsius=50.0)
    feed = feed_of(ring)
    alone = read_samples(feed, START + 13.0)
    assert np.isnan(alone.x[:, 1]).all()
    write(ring, "a", START + 10, 10, gpu_temperature_celsius=51.0)
    write(ring, "b", START + 10, 10, gpu_temperature_celsius=60.0)
    both = read_samples(feed, START + 23.0)
    assert [e.node for e in both.entities] == ["a", "a", "b", "b"]
    assert (both.x[-1, 0] == [51, 51, 60, 60]).all()
    assert (both.x[-1, 1] == 1009).all()


def test_the_worst_gpu_of_a_node_stands_beside_its_host() -> None:
    ring, names = TelemetryRing(300), ("gpu_temperature_celsius", "gpu_power_watts")
    feed = DeviceFeed(ring, SignalSource.HOST, ("uptime_seconds",), gpu_signals=names)
    heat, power = np.array([[50.0], [61.0]]), np.array([[600.0], [90.0]])
    write(ring, "a", START, 10, gpu_temperature_celsius=heat, gpu_power_watts=power)
    write(ring, "bare", START, 10, gpus=0)
    before = read_samples(feed, START + 13.0)
    assert before.signals == ("uptime_seconds", *names)
    np.testing.assert_equal(before.x[-1].T.tolist(), [[1009, 61, 90], [1009, np.nan, np.nan]])
    write(ring, "bare", START + 10, 10, gpus=1, gpu_temperature_celsius=40.0)
    write(ring, "a", START + 10, 10, gpu_temperature_celsius=heat, gpu_power_watts=power)
    after = read_samples(feed, START + 23.0)
    np.testing.assert_equal(after.x[-1, 1].tolist(), [61, 40])


def test_each_second_is_shown_once_and_names_stay_the_same_objects() -> None:
    ring = TelemetryRing(300)
    feed = feed_of(ring)
    cohorts = {("a", "gpu0"): "pod", ("a", "gpu1"): "pod"}
    write(ring, "a", START, 20, gpu_temperature_celsius=50.0)
    first = read_samples(feed, START + 13.0, cohorts)
    second = read_samples(feed, START + 20.0, dict(cohorts))
    assert feed.read_ready(START + 20.0, cohorts) is None
    assert second.t[0] == first.t[-1] + 1
    assert second.entities is first.entities
    assert second.groups is first.groups == ("pod", "pod")
    third = read_samples(feed, START + 25.0, {("a", "gpu0"): "other"})
    assert third.groups == ("other", "alone:('a', 'gpu1')")


def replay(ring: TelemetryRing, data: Samples) -> None:
    """The telemetry of a fleet as its daemons would send it, one frame a node."""
    seconds = len(data.t)
    column = {name: i for i, name in enumerate(SIGNALS)}
    for node in range(data.x.shape[2] // 8):
        mine = data.x[:, :, node * 8 : node * 8 + 8]
        narrow = np.full((9, len(MADE.narrow), seconds), np.nan, np.float32)
        wide = np.full((9, len(MADE.wide), seconds), MISSING, np.int64)
        narrow[0, MADE.narrow.index("uptime_seconds")] = mine[:, column["uptime_seconds"], 0]
        for i, name in enumerate(MADE.narrow):
            if name in column and name != "uptime_seconds":
                narrow[1:, i] = mine[:, column[name]].T
        for i, name in enumerate(MADE.wide):
            if name in column:
                rates = mine[:, column[name]].T
                wide[1:, i] = np.where(np.isnan(rates), MISSING, np.cumsum(np.nan_to_num(rates), axis=1))
        names = ("host", *(f"gpu{i}" for i in range(8)))
        put(ring, f"n{node:04d}", int(data.t[0]), entities=names, narrow=narrow, wide=wide)


def watched(ring: TelemetryRing, watch: DetectorRunner, start: int, stop: int) -> list[Finding]:
    cohorts = {c: "pod" for source in (SignalSource.GPU, SignalSource.HOST) for c in ring.columns(source)}
    return [f for now in range(start, stop, 5) for f in watch.evaluate(Fleet(cohorts=cohorts), float(now))]


@pytest.mark.slow
def test_a_restarted_judge_raises_no_alarm_on_a_fleet_with_reboots() -> None:
    """All detectors start again in the middle of operation: jobs run, nodes boot, a driver was loaded again."""
    ring, fleet = TelemetryRing(900), HealthyFleet(64, 3)
    fleet.reboot(1, 60.0)
    fleet.reload_driver(2)
    replay(ring, fleet.next(300))
    end = int(fleet.now)
    for began in range(end - 240, end - 40, 100):
        found = watched(ring, DetectorRunner(ring, object()), began, end + 3)  # type: ignore[arg-type]
        assert [f for f in found if f.severity != "info"] == []
