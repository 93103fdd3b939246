"""The input of the device detectors: chunks of the rings that contain each second exactly once.

Invariant: a feed only moves forward. It waits briefly for data in transit; after that, missing values are NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import compress, repeat
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mainstay.detectors.base import Samples
from mainstay.detectors.finding import Entity
from mainstay.detectors.host.gpu_extremes import extremes, gpu_rows
from mainstay.probes.signals import SignalSource
from mainstay.service.telemetry.ring import Column, TelemetryRing, Window

LAG_SECONDS: Final = 3
"""A frame holds one or two seconds and arrives within one more; detectors evaluate a second without frames that are
later. They evaluate a second immediately when every device has sent it."""
REPORTING_SECONDS: Final = 10
"""The feed does not wait for devices without a frame in this time."""
CHUNK_SECONDS: Final = 120
"""Longest chunk: the seconds that detectors evaluate after a restart or after a pause of the detection loop."""
FORGET_NODE_SECONDS: Final = 3600.0
"""A node that was silent for longer when this process started stays unknown and causes no new alarm."""


@dataclass
class DeviceFeed:
    """The seconds of one source. Rows are devices; groups are their cohorts."""

    ring: TelemetryRing
    source: SignalSource
    signals: tuple[str, ...]
    host_signals: tuple[str, ...] = ()
    """Signals of the host that are repeated for each of its devices."""
    gpu_signals: tuple[str, ...] = ()
    """Signals of the GPUs of a node of which one value stands beside its host."""
    _cursor: int | None = field(default=None, init=False)
    _columns: tuple[Column, ...] = field(default=(), init=False)
    _entities: tuple[Entity, ...] = field(default=(), init=False)
    _groups: tuple[str, ...] = field(default=(), init=False)
    _cohorts: Mapping[Column, str] | None = field(default=None, init=False)
    _hosts: tuple[Column, ...] | None = field(default=None, init=False)
    _host_of: NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, np.intp), init=False)
    """The index of the host of each column in ``_hosts``; -1 if it has none."""
    _gpus: tuple[Column, ...] | None = field(default=None, init=False)
    _gpu_rows: NDArray[np.intp] = field(default_factory=lambda: np.zeros((0, 0), np.intp), init=False)
    """The indices of the GPUs of each column in ``_gpus``."""

    def read_ready(self, now: float, cohorts: Mapping[Column, str]) -> Samples | None:
        """Return the seconds that became ready since the last call, or None.

        A device without a cohort gets its own group, so it is compared with no other device.
        """
        stop = self._ready(int(now))
        start = stop - CHUNK_SECONDS if self._cursor is None else max(self._cursor, stop - CHUNK_SECONDS)
        if start >= stop:
            return None
        self._cursor = stop
        own, beside = len(self.signals), len(self.host_signals)
        empty = beside + len(self.gpu_signals)
        window = self.ring.window(self.source, start, stop, signals=self.signals, empty_rows=empty)
        if not window.columns:
            return None
        self._update_entities(window.columns, cohorts)
        times = window.seconds.astype(np.float64)
        if beside:
            window.values[:, own : own + beside] = self._host_values(window)
        if self.gpu_signals:
            window.values[:, own + beside :] = self._gpu_values(window)
        signals = window.signals + self.host_signals + self.gpu_signals
        return Samples(entities=self._entities, groups=self._groups, signals=signals, t=times, x=window.values)

    def _update_entities(self, columns: tuple[Column, ...], cohorts: Mapping[Column, str]) -> None:
        """Rename entities and groups only when they change: detectors skip work for identical tuples."""
        has_changed = columns != self._columns
        if has_changed:
            known = dict(zip(self._columns, self._entities, strict=True))  # identity matters: see rows.places
            self._columns, self._hosts, self._gpus = columns, None, None
            self._entities = tuple(known.get(at) or Entity(node=at[0], device=at[1]) for at in columns)
        if has_changed or cohorts is not self._cohorts:
            self._cohorts = cohorts
            groups = tuple(cohorts.get(column) or f"alone:{column}" for column in columns)
            self._groups = self._groups if groups == self._groups else groups

    def _ready(self, now: int) -> int:
        """The first second that is not evaluated yet: data of some nodes may still be in transit."""
        reached = self.ring.reached(self.source, now - REPORTING_SECONDS)
        return now - LAG_SECONDS if reached is None else max(now - LAG_SECONDS, min(reached, now) + 1)

    def _host_values(self, window: Window) -> Any:
        """Return [second, host signal, column]: the values of the host of each column in the same second."""
        start, stop = window.start, window.start + len(window.values)
        hosts = self.ring.window(SignalSource.HOST, start, stop, signals=self.host_signals)
        if hosts.columns != self._hosts:
            place = {node: i for i, (node, _) in enumerate(hosts.columns)}
            self._hosts = hosts.columns
            self._host_of = np.array([place.get(node, -1) for node, _ in window.columns], np.intp)
        padded = np.concatenate([hosts.values, np.full((*hosts.values.shape[:2], 1), np.nan, np.float32)], axis=2)
        return padded[:, :, self._host_of]

    def _gpu_values(self, window: Window) -> Any:
        """Return [second, GPU signal, column]: one value of the GPUs of each column's node in the same second."""
        start, stop = window.start, window.start + len(window.values)
        gpus = self.ring.window(SignalSource.GPU, start, stop, signals=self.gpu_signals)
        if gpus.columns != self._gpus:
            self._gpus = gpus.columns
            self._gpu_rows = gpu_rows([node for node, _ in window.columns], [node for node, _ in gpus.columns])
        return extremes(self.gpu_signals, gpus.values, self._gpu_rows)


def heartbeats(
    now: float, nodes: tuple[str, ...], last: NDArray[np.float64], other: Mapping[str, float]
) -> Samples | None:
    """Return when each node last reported, as one sample. Rows: nodes with a report in ``FORGET_NODE_SECONDS``.

    Args:
        now: Unix seconds.
        nodes: names, in order; the same tuple again while the fleet does not change.
        last: [node] Unix seconds of the last frame; NaN where there was none.
        other: node → Unix seconds of the last event or step.
    """
    known = now - last < FORGET_NODE_SECONDS
    if not known.any():
        return None
    entities = _entities_of(nodes)
    if not known.all():
        entities, nodes = tuple(compress(entities, known)), tuple(compress(nodes, known))
    reported = np.full((2, len(nodes)), np.nan)
    reported[0] = last[known]
    if other:
        reported[1] = np.fromiter(map(other.get, nodes, repeat(np.nan)), np.float64, len(nodes))
    return Samples(
        entities=entities,
        groups=("fleet",) * len(nodes),
        signals=("last_beat", "last_other"),
        t=np.array([now]),
        x=reported[None],
    )


@lru_cache(maxsize=4)
def _entities_of(nodes: tuple[str, ...]) -> tuple[Entity, ...]:
    return tuple(map(_entity_of, nodes))


@lru_cache(maxsize=100_000)
def _entity_of(node: str) -> Entity:
    """The same object each time: detectors skip work for rows that they know."""
    return Entity(node=node)
