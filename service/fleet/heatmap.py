"""The heat-map's data: one byte a slot in the stable order of the fleet. 255 is unknown, never zero."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mainstay.probes.core_types import HealthState
from mainstay.probes.signals import SIGNALS, Signal
from mainstay.service.common.db import Database
from mainstay.service.common.etag import etag
from mainstay.service.fleet import repository
from mainstay.service.fleet.schemas import HeatmapCellRead, HeatmapLayoutRead
from mainstay.service.telemetry.catalogs import source_of
from mainstay.service.telemetry.ring import TelemetryRing

UNKNOWN: Final = 255
TOP: Final = 250
LAYOUT_SECONDS: Final = 1.0
"""A layout is reused for this long: many open heat-maps cost one query a second."""
RECENT_SECONDS: Final = 15
"""A value older than this is not a snapshot of now."""
_RARE: Final = {"gpu_processes": 75}
"""Signals that are read once a minute."""
_STATES: Final = {state.value: place for place, state in enumerate(HealthState)}


@dataclass(frozen=True, slots=True)
class HeatmapLayout:
    """Slots in order; ``states`` are those of their nodes."""

    version: str
    slots: tuple[tuple[str, str, str], ...]
    """(node, device, kind)"""
    states: tuple[str, ...]
    places: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(node, device) → slot."""

    def read(self) -> HeatmapLayoutRead:
        slots = [HeatmapCellRead(slot=i, node=n, device=d, kind=k) for i, (n, d, k) in enumerate(self.slots)]
        return HeatmapLayoutRead(version=self.version, slots=slots)


@dataclass(frozen=True, slots=True)
class HeatmapValues:
    """Bytes, and the values that 0 and 250 stand for."""

    body: bytes
    low: float
    high: float


@dataclass
class LayoutCache:
    """The latest layout, at most a second old. Devices are read again only when a node has reported."""

    database: Database
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)
    _made_at: float = field(default=-math.inf, init=False)
    _layout: HeatmapLayout = field(default=HeatmapLayout("", (), ()), init=False)
    _reported: tuple[int, float | None] = field(default=(0, None), init=False)

    def get(self, now: float) -> HeatmapLayout:
        with self._lock:
            if not 0 <= now - self._made_at < LAYOUT_SECONDS:
                self._layout, self._made_at = self._load(), now
            return self._layout

    def _load(self) -> HeatmapLayout:
        with self.database.reading() as session:
            reported = repository.devices_reported(session)
            slots = self._layout.slots if reported == self._reported else tuple(repository.layout(session))
            states = repository.states(session)
        self._reported = reported
        of_slots = tuple(states.get(node, HealthState.UNKNOWN.value) for node, _, _ in slots)
        if slots is self._layout.slots:
            return replace(self._layout, states=of_slots)
        places = {(node, device): slot for slot, (node, device, _) in enumerate(slots)}
        return HeatmapLayout(etag(*slots).removeprefix('W/"').rstrip('"'), slots, of_slots, places)


def of_states(layout: HeatmapLayout) -> HeatmapValues:
    """The index of each slot's node state in ``HealthState``."""
    body = bytes(_STATES.get(state, UNKNOWN) for state in layout.states)
    return HeatmapValues(body, 0.0, float(len(_STATES) - 1))


def of_signal(layout: HeatmapLayout, ring: TelemetryRing, name: str, now: float) -> HeatmapValues:
    """The newest value of a signal in each slot, scaled between its limits, or between what is there now."""
    signal = SIGNALS[name]
    values = _newest(layout, ring, signal, int(now))
    low, high = _scale(signal, values)
    span = high - low
    with np.errstate(invalid="ignore"):
        scaled = np.clip((values - low) / (span or 1.0), 0.0, 1.0) * TOP
        body = np.where(np.isnan(values), UNKNOWN, np.rint(scaled)).astype(np.uint8)
    return HeatmapValues(body.tobytes(), low, high)


def _newest(layout: HeatmapLayout, ring: TelemetryRing, signal: Signal, second: int) -> NDArray[np.float64]:
    recent = _RARE.get(signal.name, RECENT_SECONDS)
    window = ring.window(signal.source, second - recent, second + 2, signals=[signal.name])
    newest = np.full(len(window.columns), np.nan)
    for row in window.values[:, 0, :]:  # oldest first: a newer known value replaces an older one
        newest = np.where(np.isnan(row), newest, row)
    found = np.full(len(layout.slots), np.nan)
    for column in np.flatnonzero(~np.isnan(newest)):
        place = layout.places.get(window.columns[column])
        if place is not None and source_of(window.columns[column][1]) is signal.source:
            found[place] = newest[column]
    return found


def _scale(signal: Signal, values: NDArray[np.float64]) -> tuple[float, float]:
    if signal.unit == "1" and signal.high == 1.001:  # a ratio, as the table declares them
        return 0.0, 1.0
    known = values[~np.isnan(values)]
    if not known.size:
        return 0.0, 1.0
    return float(known.min()), float(known.max())
