"""The heat-map's data: one byte a slot in the stable order of the fleet. 255 is unknown, never zero."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from mainstay.probes.core_types import HealthState
from mainstay.probes.signals import SIGNALS, Signal, SignalSource
from mainstay.service.common.compression import CachedBody
from mainstay.service.common.etag import digest
from mainstay.service.fleet.directory import Fleet, FleetNode
from mainstay.service.telemetry.catalogs import source_of
from mainstay.service.telemetry.ring import Column, TelemetryRing

UNKNOWN: Final = 255
TOP: Final = 250
RECENT_SECONDS: Final = 15
"""A value older than this is not a snapshot of now."""
KEPT: Final = 20
"""How many times as long as a slow layout took to make it is kept."""
_RARE: Final = {"gpu_processes": 75}
"""Signals that are read once a minute."""
_STATES: Final = {state.value: place for place, state in enumerate(HealthState)}


@dataclass(frozen=True, slots=True, eq=False)
class HeatmapLayout:
    """Slots in order: those of the first node, then those of the second, and so on."""

    version: str
    names: Sequence[str]
    counts: NDArray[np.intp]
    """[node] how many slots it has."""
    slots: dict[Column, int]
    """(node, device) → slot."""
    body: CachedBody
    """``HeatmapLayoutRead`` as JSON, not by pydantic: a large fleet takes it a third of a second."""


@dataclass(frozen=True, slots=True)
class HeatmapValues:
    """Bytes, and the values that 0 and 250 stand for."""

    body: bytes
    low: float
    high: float


@dataclass
class LayoutCache:
    """The latest layout, and where the ring's columns are in it.

    Args:
        slow_seconds: a layout that took more processor time to make is kept for ``KEPT`` times as long, although nodes
            came: while a large cluster boots, each look would make another.
    """

    slow_seconds: float = 0.05
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)
    _layout: HeatmapLayout | None = field(default=None, init=False, repr=False)
    _of: int = field(default=-1, init=False)
    _keep_until: float = field(default=0.0, init=False)
    _columns: dict[SignalSource, tuple[HeatmapLayout, Sequence[Column | None], NDArray[np.intp]]] = field(
        default_factory=dict, init=False, repr=False
    )

    def get(self, fleet: Fleet) -> HeatmapLayout:
        """Made again only when a node came, or one's devices or rack changed."""
        with self._lock:
            now, began = time.monotonic(), time.thread_time()
            if self._layout is None or (self._of != fleet.layout and now >= self._keep_until):
                self._layout, self._of = _make(fleet), fleet.layout
                took = time.thread_time() - began
                self._keep_until = now + (KEPT * took if took > self.slow_seconds else 0.0)
            return self._layout

    def places(self, layout: HeatmapLayout, source: SignalSource, columns: Sequence[Column | None]) -> NDArray[np.intp]:
        """[column] its slot; -1 where the layout has none."""
        known = self._columns.get(source)
        if known is not None and known[0] is layout and known[1] == columns:
            return known[2]
        slots = layout.slots
        places = np.array(
            [-1 if key is None or source_of(key[1]) is not source else slots.get(key, -1) for key in columns], np.intp
        )
        self._columns[source] = (layout, columns, places)
        return places


def _make(fleet: Fleet) -> HeatmapLayout:
    nodes = [(node, _shape(node)) for node in fleet.nodes.values()]
    nodes = [(node, shape) for node, shape in nodes if shape]
    names = [node.name for node, _ in nodes]
    columns: dict[str, Any] = {"nodes": names}
    for many, one, values in (
        ("racks", "rack_of", [node.rack for node, _ in nodes]),
        ("switches", "switch_of", [node.switches[0] if node.switches else "" for node, _ in nodes]),
        ("power_domains", "power_domain_of", [node.power_domain for node, _ in nodes]),
        ("cohorts", "cohort_of", [node.cohort for node, _ in nodes]),
        ("shapes", "shape_of", [shape for _, shape in nodes]),
    ):
        places = {value: place for place, value in enumerate(dict.fromkeys(values))}
        columns |= {many: list(places), one: [places[value] for value in values]}
    version = digest(msgspec.json.encode(columns))
    devices = ((node.name, device) for node, shape in nodes for device in shape)
    return HeatmapLayout(
        version=version,
        names=names,
        counts=np.array([len(shape) for _, shape in nodes], np.intp),
        slots={column: slot for slot, column in enumerate(devices)},
        body=CachedBody(msgspec.json.encode({"version": version} | columns)),
    )


def _shape(node: FleetNode) -> tuple[str, ...]:
    """The host and the GPUs."""
    return tuple(device.id for device in node.devices if device.kind != "nic")


def of_states(layout: HeatmapLayout, states: Mapping[str, str]) -> HeatmapValues:
    """The index of each slot's node state in ``HealthState``; ``states`` lacks nodes of which none is known."""
    places = np.array([_STATES[states[name]] if name in states else UNKNOWN for name in layout.names], np.uint8)
    return HeatmapValues(np.repeat(places, layout.counts).tobytes(), 0.0, float(len(_STATES) - 1))


def of_signal(cache: LayoutCache, layout: HeatmapLayout, ring: TelemetryRing, name: str, now: float) -> HeatmapValues:
    """The newest value of a signal in each slot, scaled between its limits, or between what is there now."""
    signal = SIGNALS[name]
    newest = ring.newest(signal.source, name, int(now) - _RARE.get(name, RECENT_SECONDS), int(now) + 2)
    places = cache.places(layout, signal.source, newest.columns)
    values = np.full(len(layout.slots), np.nan, np.float32)
    values[places[places >= 0]] = newest.values[places >= 0]
    low, high = _scale(signal, values)
    span = high - low
    with np.errstate(invalid="ignore"):
        scaled = np.clip((values - low) / (span or 1.0), 0.0, 1.0) * TOP
        body = np.where(np.isnan(values), UNKNOWN, np.rint(scaled)).astype(np.uint8)
    return HeatmapValues(body.tobytes(), low, high)


def _scale(signal: Signal, values: NDArray[np.float32]) -> tuple[float, float]:
    if signal.unit == "1" and signal.high == 1.001:  # a ratio, as the table declares them
        return 0.0, 1.0
    known = values[~np.isnan(values)]
    if not known.size:
        return 0.0, 1.0
    return float(known.min()), float(known.max())
