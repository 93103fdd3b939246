"""Where re-routed micro-batches fit: a greedy list schedule of one training iteration, or of several.

A dead worker (pipeline d, stage s) has peers with the same stage in the other pipelines. Its micro-batches go to them
in turn, and activations and gradients return to the original pipeline at s - 1 and s + 1 (ReCycle, SOSP'24: adaptive
pipelining). Each micro-batch is a forward F, a gradient of inputs B (on the critical path) and a gradient of weights W.
Coupled, B and W are one; decoupled, W waits for a bubble; staggered as well, a stage begins the next iteration once its
own optimizer has stepped, without waiting for the others. A worker takes B before F before W, and starts no more
forwards than 1F1B would hold. Times in slots or seconds: any unit, the same for all.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

Key = tuple[int, int, int, int]
"""Iteration, pipeline, stage, micro-batch."""


class Kind(IntEnum):
    """Of a task, in the order in which a worker prefers them."""

    BACKWARD = 0
    FORWARD = 1
    WEIGHT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is to be scheduled."""

    dp: int
    pp: int
    micro_batches: int
    """Per pipeline."""
    forward: float = 1.0
    backward: float = 1.0
    weight: float = 1.0
    dead: frozenset[tuple[int, int]] = frozenset()
    """(pipeline, stage) of workers that are gone."""

    def __post_init__(self) -> None:
        if min(self.dp, self.pp, self.micro_batches) < 1 or min(self.forward, self.backward, self.weight) <= 0.0:
            raise ValueError(f"counts of at least 1 and times above 0, not {self}")
        for stage in range(self.pp):
            if not self.alive(stage):
                raise ValueError(f"stage {stage} has no worker left: its state is nowhere, re-routing cannot help")

    def alive(self, stage: int) -> tuple[int, ...]:
        """Pipelines whose worker of this stage lives."""
        return tuple(d for d in range(self.dp) if (d, stage) not in self.dead)


class Room(IntEnum):
    """How many forwards a worker may hold without their backward; 1F1B holds pp - stage. More costs activations."""

    SCALED = 0
    """1F1B's in proportion to the micro-batches that a helper takes on."""
    TWO_MORE = 1
    """Two more for helpers, one for the others."""
    DOUBLED = 2
    """Twice as many for helpers: room for a second pipeline."""


def makespan(work: Work, *, decoupled: bool = False, rooms: tuple[Room, ...] = tuple(Room)) -> float:
    """Time of one iteration, with a barrier at its end: the best of the schedules with these rooms."""
    return min(_Schedule(work, room, decoupled=decoupled, staggered=False, iterations=1).run()[0] for room in rooms)


def period(work: Work, iterations: int = 8, rooms: tuple[Room, ...] = tuple(Room)) -> float:
    """Time from one iteration to the next, decoupled and staggered, once the start has worn off (the later half).

    Raises:
        ValueError: fewer than two iterations.
    """
    if iterations < 2:
        raise ValueError(f"a period lies between two iterations at least, not {iterations}")
    half = iterations // 2
    runs = [_Schedule(work, room, decoupled=True, staggered=True, iterations=iterations).run() for room in rooms]
    return min((ends[-1] - ends[half - 1]) / (iterations - half) for ends in runs)


@dataclass
class _Worker:
    cap: int
    """Forwards without their backward at most."""
    held: int = 0
    busy: bool = False
    ready: tuple[list[Key], list[Key], list[Key]] = field(default_factory=lambda: ([], [], []))
    """By kind, each a heap of (iteration, micro-batch, stage, pipeline): the oldest first."""

    def next_task(self) -> tuple[Kind, Key] | None:
        for kind in Kind:
            if self.ready[kind] and (kind is not Kind.FORWARD or self.held < self.cap):
                return kind, _key(heapq.heappop(self.ready[kind]))
        return None


def _key(entry: Key) -> Key:
    """Between a task's key and its place in a heap: pipeline and micro-batch change places; its own inverse."""
    k, one, stage, other = entry
    return k, other, stage, one


def _cap(work: Work, stage: int, room: Room) -> int:
    usual, alive = work.pp - stage, len(work.alive(stage))
    helps = alive < work.dp
    if room is Room.SCALED:
        return -(-usual * work.dp // alive)
    if room is Room.TWO_MORE:
        return usual + (2 if helps else 1)
    return usual * (2 if helps else 1)


class _Schedule:
    """Event-driven: tasks become ready, idle workers take the one that they prefer."""

    def __init__(self, work: Work, room: Room, *, decoupled: bool, staggered: bool, iterations: int) -> None:
        self.work, self.decoupled, self.staggered, self.iterations = work, decoupled, staggered, iterations
        self.workers = {(d, s): _Worker(_cap(work, s, room)) for s in range(work.pp) for d in work.alive(s)}
        self.due: list[tuple[float, int, Kind, Key]] = []
        self.left = {(k, s): work.dp * work.micro_batches for k in range(iterations) for s in range(work.pp)}
        self.ends = [0.0] * iterations
        self.entered: set[Key] = set()
        self.opened = [0] * work.pp
        self.times: Mapping[Kind, float] = {
            Kind.FORWARD: work.forward,
            Kind.BACKWARD: work.backward if decoupled else work.backward + work.weight,
            Kind.WEIGHT: work.weight,
        }

    def worker(self, key: Key) -> _Worker:
        """Who does it: its own worker, or in turn one that lives."""
        _k, d, s, m = key
        own = self.workers.get((d, s))
        if own is not None:
            return own
        alive = self.work.alive(s)
        return self.workers[alive[m % len(alive)], s]

    def run(self) -> list[float]:
        """When each iteration ended."""
        for d in range(self.work.dp):
            for m in range(self.work.micro_batches):
                self._offer(Kind.FORWARD, (0, d, 0, m))
        self._dispatch(0.0)
        while self.due:
            now = self.due[0][0]
            while self.due and self.due[0][0] == now:
                _, _, kind, key = heapq.heappop(self.due)
                self._done(now, kind, key)
            self._dispatch(now)
        return self.ends

    def _dispatch(self, now: float) -> None:
        for worker in self.workers.values():
            if worker.busy:
                continue
            taken = worker.next_task()
            if taken is None:
                continue
            kind, key = taken
            worker.busy = True
            worker.held += kind is Kind.FORWARD
            heapq.heappush(self.due, (now + self.times[kind], int(kind), kind, key))

    def _offer(self, kind: Kind, key: Key) -> None:
        heapq.heappush(self.worker(key).ready[kind], _key(key))

    def _done(self, now: float, kind: Kind, key: Key) -> None:
        k, d, s, m = key
        worker = self.worker(key)
        worker.busy = False
        if kind is Kind.FORWARD:
            if s + 1 < self.work.pp:
                self._arrive((k, d, s + 1, m))
            else:
                self._offer(Kind.BACKWARD, key)
        elif kind is Kind.BACKWARD:
            worker.held -= 1
            if s > 0:
                self._offer(Kind.BACKWARD, (k, d, s - 1, m))
            if self.decoupled:
                self._offer(Kind.WEIGHT, key)
            else:
                self._stepped(now, k, s)
        else:
            self._stepped(now, k, s)

    def _arrive(self, key: Key) -> None:
        """Activations are there; the forward waits until its stage is in that iteration."""
        if self.opened[key[2]] >= key[0]:
            self._offer(Kind.FORWARD, key)
        else:
            self.entered.add(key)

    def _stepped(self, now: float, k: int, s: int) -> None:
        """One micro-batch less; the last of a stage lets its optimizer step and opens its next iteration."""
        self.left[k, s] -= 1
        if self.left[k, s]:
            return
        self.ends[k] = max(self.ends[k], now)
        stages = [s] if self.staggered else list(range(self.work.pp))
        if k + 1 == self.iterations or any(self.left[k, stage] for stage in stages):
            return
        for stage in stages:
            self._open(k + 1, stage)

    def _open(self, k: int, stage: int) -> None:
        self.opened[stage] = k
        if stage == 0:
            waiting = {(k, d, 0, m) for d in range(self.work.dp) for m in range(self.work.micro_batches)}
        else:
            waiting = {key for key in self.entered if key[0] == k and key[2] == stage}
            self.entered -= waiting
        for key in sorted(waiting):
            self._offer(Kind.FORWARD, key)
