"""What the array detectors see: chunks cut from the rings, each second and each step exactly once.

Invariant: a feed only moves forward. It waits a little for what is still on its way, then what is missing is NaN.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from detectors.base import Samples
from detectors.finding import Entity
from probes.signals import SignalSource
from service.telemetry.ring import Column, Ring, Window
from service.telemetry.steps import StepStore

LAG_SECONDS: Final = 3
"""Frames hold a second or two and travel for less than one; later seconds are judged without them. A second that every
device has sent is judged at once."""
SPEAKING_SECONDS: Final = 10
"""Whoever said nothing for so long is not waited for."""
CHUNK_SECONDS: Final = 120
"""Longest chunk: what is replayed after a restart, and what a stalled judge makes up for."""
LATE_STEPS: Final = 3
"""A step is judged without a rank that is this many steps behind."""
CHUNK_STEPS: Final = 1024
FORGET_NODE_SECONDS: Final = 3600.0
"""A node silent for longer was lost before anybody listened here: it stays unknown, without a new alarm."""


@dataclass
class DeviceFeed:
    """Seconds of one source: rows are devices, groups their cohorts."""

    ring: Ring
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

    def take(self, now: float, cohorts: Mapping[Column, str]) -> Samples | None:
        """The seconds that became ready since the last call, or None.

        A device without a cohort is in one of its own, where nobody is compared with it.
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
        """Name entities and groups anew only when they change: the same tuples again spare the detectors a look."""
        moved = columns != self._columns
        if moved:
            self._columns, self._hosts = columns, None
            self._entities = tuple(Entity(node=node, device=device) for node, device in columns)
        if moved or cohorts is not self._cohorts:
            self._cohorts = cohorts
            groups = tuple(cohorts.get(column) or f"alone:{column}" for column in columns)
            self._groups = self._groups if groups == self._groups else groups

    def _ready(self, now: int) -> int:
        """The first second that is not judged yet: somebody's data may still be on its way."""
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


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where a rank of a job runs, and with whom it may be compared."""

    rank: int
    node: str
    role: str


@dataclass
class StepFeed:
    """Steps of one job: rows are ranks, groups their roles."""

    steps: StepStore
    job: str
    signals: tuple[str, ...]
    _cursor: int | None = field(default=None, init=False)
    _time: float = field(default=0.0, init=False)

    def take(self, places: Sequence[RankPlace]) -> Samples | None:
        """The steps that became ready since the last call, or None."""
        head = self.steps.last_step(self.job)
        if head is None or not places:
            return None
        start = max(0, head + 1 - CHUNK_STEPS) if self._cursor is None else self._cursor
        window = self.steps.window(self.job, start, head + 1)
        known = [place for place in places if place.rank < len(window.values)]
        if not known or not len(window.steps):
            return None
        rows = np.array([place.rank for place in known], np.intp)
        x = np.stack([window.signal(name)[rows].T for name in self.signals], axis=1)
        ready = self._ready(x, window.steps, head)
        if not ready:
            return None
        self._cursor = int(window.steps[ready - 1]) + 1
        return Samples(
            entities=tuple(Entity(job=self.job, rank=place.rank, node=place.node) for place in known),
            groups=tuple(place.role for place in known),
            signals=self.signals,
            t=self._times(window.ends[rows, :ready]),
            x=x[:ready],
            steps=window.steps[:ready],
        )

    def _ready(self, x: Any, steps: Any, head: int) -> int:
        """How many of the first steps everybody has reported, or will not report any more."""
        complete = np.isfinite(x[:, 0, :]).all(axis=1) | (head - steps >= LATE_STEPS)
        return len(steps) if complete.all() else int(np.argmin(complete))

    def _times(self, ends: Any) -> Any:
        """When each step ended, never falling; a step without any time takes its predecessor's."""
        latest = np.where(np.isfinite(ends), ends, -np.inf).max(axis=0)
        times = np.maximum.accumulate(np.maximum(latest, self._time))
        self._time = float(times[-1])
        return times


def places_of(topology: Mapping[str, Any]) -> tuple[RankPlace, ...]:
    """Ranks of a job's topology in order. The role is the pipeline stage: only its ranks do the same work."""
    ranks: Iterable[Mapping[str, Any]] = topology["ranks"]
    places = [RankPlace(rank=r["rank"], node=r["node"], role=f"pp{r['pp']}") for r in ranks]
    return tuple(sorted(places, key=lambda place: place.rank))


def beats(now: float, last: Mapping[str, float], other: Mapping[str, float]) -> Samples | None:
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
