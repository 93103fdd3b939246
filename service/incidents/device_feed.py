"""What the detectors of devices see: chunks cut from the rings, each second exactly once.

Invariant: a feed only moves forward. It waits a little for what is still on its way, then what is missing is NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mainstay.detectors.base import Samples
from mainstay.detectors.finding import Entity
from mainstay.probes.signals import SignalSource
from mainstay.service.telemetry.ring import Column, TelemetryRing, Window

LAG_SECONDS: Final = 3
"""Frames hold a second or two and travel for less than one; later seconds are judged without them. A second that every
device has sent is judged at once."""
SPEAKING_SECONDS: Final = 10
"""Whoever said nothing for so long is not waited for."""
CHUNK_SECONDS: Final = 120
"""Longest chunk: what is replayed after a restart, and what a stalled judge makes up for."""
FORGET_NODE_SECONDS: Final = 3600.0
"""A node silent for longer was lost before this process started: it stays unknown, without a new alarm."""


@dataclass
class DeviceFeed:
    """Seconds of one source: rows are devices, groups their cohorts."""

    ring: TelemetryRing
    source: SignalSource
    signals: tuple[str, ...]
    host_signals: tuple[str, ...] = ()
    """Signals of the node's host that stand beside each of its devices."""
    _cursor: int | None = field(default=None, init=False)
    _columns: tuple[Column, ...] = field(default=(), init=False)
    _entities: tuple[Entity, ...] = field(default=(), init=False)
    _groups: tuple[str, ...] = field(default=(), init=False)
    _cohorts: Mapping[Column, str] | None = field(default=None, init=False)
    _hosts: tuple[Column, ...] | None = field(default=None, init=False)
    _host_of: NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, np.intp), init=False)
    """Each column's place among ``_hosts``; -1 without one."""

    def read_ready(self, now: float, cohorts: Mapping[Column, str]) -> Samples | None:
        """The seconds that became ready since the last call, or None.

        A device without a cohort is in one of its own, where it is compared with no other.
        """
        stop = self._ready(int(now))
        start = stop - CHUNK_SECONDS if self._cursor is None else max(self._cursor, stop - CHUNK_SECONDS)
        if start >= stop:
            return None
        self._cursor = stop
        window = self.ring.window(self.source, start, stop, signals=self.signals)
        if not window.columns:
            return None
        self._follow(window.columns, cohorts)
        times = window.seconds.astype(np.float64)
        signals, x = window.signals, window.values
        if self.host_signals:
            x = np.concatenate([x, self._beside(window)], axis=1)
            signals += self.host_signals
        return Samples(entities=self._entities, groups=self._groups, signals=signals, t=times, x=x)

    def _follow(self, columns: tuple[Column, ...], cohorts: Mapping[Column, str]) -> None:
        """Rename entities and groups only when they change: detectors skip work for identical tuples."""
        moved = columns != self._columns
        if moved:
            known = dict(
                zip(self._columns, self._entities, strict=True)
            )  # whoever stays is the same object (rows.places)
            self._columns, self._hosts = columns, None
            self._entities = tuple(known.get(at) or Entity(node=at[0], device=at[1]) for at in columns)
        if moved or cohorts is not self._cohorts:
            self._cohorts = cohorts
            groups = tuple(cohorts.get(column) or f"alone:{column}" for column in columns)
            self._groups = self._groups if groups == self._groups else groups

    def _ready(self, now: int) -> int:
        """The first second that is not evaluated yet: data of some nodes may still be in transit."""
        reached = self.ring.reached(self.source, now - SPEAKING_SECONDS)
        return now - LAG_SECONDS if reached is None else max(now - LAG_SECONDS, min(reached, now) + 1)

    def _beside(self, window: Window) -> Any:
        """[second, host signal, column]: what each column's host measured in the same second."""
        start, stop = window.start, window.start + len(window.values)
        hosts = self.ring.window(SignalSource.HOST, start, stop, signals=self.host_signals)
        if hosts.columns != self._hosts:
            place = {node: i for i, (node, _) in enumerate(hosts.columns)}
            self._hosts = hosts.columns
            self._host_of = np.array([place.get(node, -1) for node, _ in window.columns], np.intp)
        padded = np.concatenate([hosts.values, np.full((*hosts.values.shape[:2], 1), np.nan, np.float32)], axis=2)
        return padded[:, :, self._host_of]


def heartbeats(now: float, last: Mapping[str, float], other: Mapping[str, float]) -> Samples | None:
    """One sample of who was heard when: rows are nodes heard within ``FORGET_NODE_SECONDS``."""
    nodes = sorted(node for node, at in last.items() if now - at < FORGET_NODE_SECONDS)
    if not nodes:
        return None
    heard = [[last[node] for node in nodes], [other.get(node, np.nan) for node in nodes]]
    return Samples(
        entities=tuple(Entity(node=node) for node in nodes),
        groups=("fleet",) * len(nodes),
        signals=("last_beat", "last_other"),
        t=np.array([now]),
        x=np.array([heard], np.float64),
    )
