"""What ``/metrics`` and remote write cost at 10,000 nodes with 8 GPUs and 2 ports each: time, size, and who waits.

``python -m bench.metrics_page [--nodes N] [--json FILE]``. The rings are real and hold two seconds of frames with all
signals; the page is made in this process, without HTTP, from a fleet in memory. A second thread wants Python's lock
each millisecond, as the event loop of the service does, and notes how long it waits.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from bench.report import RESULTS, Row, publish
from mainstay.probes.frame import Axis, Frame, checksum
from mainstay.probes.signals import SIGNALS, WIDE_MISSING, SignalSource, catalog
from mainstay.service.app import SWITCH_SECONDS
from mainstay.service.common import compression, migrate
from mainstay.service.common.db import Database
from mainstay.service.exposition.page import FleetPage
from mainstay.service.exposition.protobuf import Series
from mainstay.service.exposition.remote_write import compressed, requests
from mainstay.service.fleet.directory import Fleet, FleetDevice, FleetNode
from mainstay.service.telemetry.catalogs import compile_catalog
from mainstay.service.telemetry.frame_batch import FRAMES, join
from mainstay.service.telemetry.ring import TelemetryRing

GPUS: Final = 8
T0: Final = 1_800_000_000
ENTITIES: Final = ("host", *(f"gpu{i}" for i in range(GPUS)), "nic:mlx5_0:1", "nic:mlx5_1:1")
SOURCES: Final = (SignalSource.HOST, *[SignalSource.GPU] * GPUS, *[SignalSource.NIC] * 2)
CATALOG: Final = catalog(SignalSource.HOST, SignalSource.GPU, SignalSource.NIC)
TIMES: Final = 5


def body(seed: int) -> tuple[bytes, bytes]:
    """Two seconds of all signals of one node: [entity, signal, second], narrow and wide."""
    draw = np.random.default_rng(seed)
    narrow = np.full((len(ENTITIES), len(CATALOG.narrow), 2), np.nan, "<f4")
    wide = np.full((len(ENTITIES), len(CATALOG.wide), 2), WIDE_MISSING, "<i8")
    for row, source in enumerate(SOURCES):
        for column, name in enumerate(CATALOG.narrow):
            if SIGNALS[name].source is source:
                narrow[row, column] = draw.random(2) * min(SIGNALS[name].high, 700.0)
        for column, name in enumerate(CATALOG.wide):
            if SIGNALS[name].source is source:
                wide[row, column] = draw.integers(0, 10**12)
    return narrow.tobytes(), wide.tobytes()


def fill(nodes: int) -> TelemetryRing:
    ring, compiled, bodies = TelemetryRing(600), compile_catalog(CATALOG), [body(seed) for seed in range(16)]
    for first in range(0, nodes, FRAMES):
        frames = []
        for number in range(first, min(first + FRAMES, nodes)):
            narrow, wide = bodies[number % len(bodies)]
            frames.append(
                Frame(
                    version=1, subject=f"n{number:05}", axis=Axis.TIME, stream="s", sequence=1, t0=float(T0), dt=1.0,
                    catalog=CATALOG.digest, entities=ENTITIES, samples=2, crc32=checksum(narrow, wide), values=narrow,
                    wide=wide,
                )
            )  # fmt: skip
        ring.write(join(frames, compiled))
    return ring


def fleet_of(nodes: int) -> Fleet:
    draw = random.Random(1)

    def card(node: str, index: int) -> FleetDevice:
        facts = {"pci": f"0000:{index}7:00.0", "driver": "550.54.15"}
        return FleetDevice(
            node=node, id=f"gpu{index}", index=index, kind="gpu", model="NVIDIA H100 80GB HBM3",
            serial=f"{draw.getrandbits(42):013}", uuid=f"GPU-{uuid.UUID(int=draw.getrandbits(128))}",
            memory_bytes=80 * 2**30, present=True, previous_node=None, facts=facts,
        )  # fmt: skip

    empty: dict[str, Any] = dict.fromkeys(FleetNode.__slots__, "")
    known = {}
    for number in range(nodes):
        name = f"n{number:05}"
        cards = tuple(card(name, index) for index in range(GPUS))
        known[name] = FleetNode(**empty | {"name": name, "state": "healthy", "all_devices": cards})
    return Fleet(known, 1)


def page_of(nodes: int, directory: Path) -> FleetPage:
    """The page over real rings and a database without jobs."""
    database, fleet = Database(f"sqlite:///{directory / 'mainstay.db'}"), fleet_of(nodes)
    migrate.upgrade(database)
    shown = SimpleNamespace(gpus=True, hosts=True, ports=True, nodes=True, stale_seconds=45)
    services: Any = SimpleNamespace(
        settings=SimpleNamespace(exposition=shown), ring=fill(nodes), clock=SimpleNamespace(now=lambda: T0 + 2.0),
        database=database, fleet=SimpleNamespace(current=lambda _session: fleet),
    )  # fmt: skip
    return FleetPage(services)


class Waiter(threading.Thread):
    """Wants Python's lock each millisecond."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.over, self.longest = threading.Event(), 0.0

    def run(self) -> None:
        while not self.over.is_set():
            begun = time.perf_counter()
            time.sleep(0.001)
            self.longest = max(self.longest, time.perf_counter() - begun - 0.001)


def once(pieces: Iterable[bytes]) -> tuple[float, float, int]:
    """Processor seconds, longest wait in seconds, and bytes of what is made."""
    waiter = Waiter()
    waiter.start()
    begun = time.process_time()
    size = sum(map(len, pieces))
    spent = time.process_time() - begun
    waiter.over.set()
    waiter.join()
    return spent, waiter.longest, size


def forms(made: FleetPage) -> dict[str, Callable[[], Iterable[bytes]]]:
    """What is made of the fleet, by name: pages, and the requests of one interval of remote write."""
    series = Series(T0 * 1000)
    sent = FleetPage(made.services, series)
    return {
        "/metrics, {}, plain": lambda: compression.stream(made.parts(), None),
        "/metrics, {}, gzip": lambda: compression.stream(made.parts(), "gzip"),
        "remote write, {}": lambda: map(compressed, requests(sent.parts(), series.end)),
    }


def measure(nodes: int, directory: Path) -> Iterator[Row]:
    made = page_of(nodes, directory)
    sys.setswitchinterval(SWITCH_SECONDS)
    for form, make in forms(made).items():
        spent, longest, _ = once(make())
        first = f"the first time, which makes the labels: {spent:.2f} s, wait {longest * 1e3:.0f} ms"
        found = np.array([once(make()) for _ in range(TIMES)])
        figures = {
            "processor time": (float(np.median(found[:, 0])), "s"),
            "size": (float(found[0, 2]) / 1e6, "MB"),
            "longest wait for the lock": (float(found[:, 1].max()) * 1e3, "ms"),
        }
        claim = form.format(f"{nodes:,} nodes, {nodes * GPUS:,} GPUs")
        for what, (figure, unit) in figures.items():
            yield Row(
                claim=f"{claim}: {what}", figure=figure, unit=unit, target="", holds=None, kind="live", n=TIMES,
                note="" if "gzip" in form else first,
            )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--json", type=Path, default=RESULTS / "metrics_page.json")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        publish("metrics_page", list(measure(given.nodes, Path(directory))), given.json)


if __name__ == "__main__":
    main()
