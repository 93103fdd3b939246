"""Bamboo (NSDI'23), followed event by event: each node also computes its successor's layers and takes over.

The rules are those of the simulator behind Oobleck's Table 2, its flaws included, so that the printed figures can be
reproduced. After a loss every step takes longer until the next rendezvous, also where the lost node was idle. A step
that ends during a rendezvous may ask for another one; the second, which finds no node, stops the job until the next
fatal loss or arrival. Pipelines have a fixed number of stages; nodes beyond whole pipelines wait.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from bench.lib_elastic_job import Outcome
from mainstay.recovery.simulate.traces import TraceChange

RISKY_SHARE = 0.05
"""Of nodes whose loss would be fatal, above which Bamboo reconfigures (its simulator: 2 x overloaded / active)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedundantJob:
    """A job of Bamboo's kind. Seconds."""

    samples_per_s: Mapping[int, float]
    samples_per_step: float
    stages: int
    rendezvous_s: float
    """Of all nodes, at the start and after a fatal loss."""
    reconfigure_s: float
    """Between steps."""
    failover_factor: float
    ready_s: float = 0.0


@dataclass
class _Run:
    job: RedundantJob
    alive: dict[str, bool] = field(default_factory=dict)
    """Node -> whether it can be used yet, in the order of coming."""
    coming: list[tuple[float, int, str]] = field(default_factory=list)
    """When nodes can be used, in the order of coming."""
    places: dict[str, set[tuple[int, int]]] = field(default_factory=dict)
    """(pipeline, stage) that each active node computes."""
    waiting: int = 0
    pipelines: int = 0
    status: Literal["stopped", "meeting", "running"] = "stopped"
    dues: list[tuple[float, float]] = field(default_factory=list)
    """Ends of the rendezvous that are under way, and how long each takes if a member goes meanwhile."""
    members: list[str] = field(default_factory=list)
    step_s: float = 0.0
    step_due: float | None = None
    hit: tuple[int, float] | None = None
    """Steps that had ended, and when, at the first loss since the last rendezvous."""
    stretched: bool = False
    steps: int = 0
    first_s: float | None = None
    last_s: float = 0.0
    regroups: int = 0

    def meet(self, now: float, takes_s: float) -> None:
        """Begin a rendezvous; the ranks that compute continue until it is over."""
        heapq.heappush(self.dues, (now + takes_s, takes_s))
        self.members = [node for node, usable in self.alive.items() if usable]
        self.status = "meeting"
        self.regroups += 1

    def came(self) -> None:
        """A node can be used: it joins the rendezvous, or waits for the next."""
        now, _, node = heapq.heappop(self.coming)
        if node not in self.alive:
            return
        self.alive[node] = True
        if self.status == "stopped":
            self.meet(now, self.job.rendezvous_s)
        elif self.status == "meeting":
            self.members.append(node)
        else:
            self.waiting += 1

    def met(self) -> None:
        """A rendezvous is over: ranks get new positions, or it begins again without those that went."""
        now, takes_s = heapq.heappop(self.dues)
        if any(node not in self.alive for node in self.members):
            self.members = [node for node, usable in self.alive.items() if usable]
            heapq.heappush(self.dues, (now + takes_s, takes_s))
            return
        self.hit, self.stretched = None, False
        self.pipelines = len(self.members) // self.job.stages
        active = self.pipelines * self.job.stages
        self.places.update({node: {divmod(i, self.job.stages)} for i, node in enumerate(self.members[:active])})
        for node in self.members[active:]:
            self.places.pop(node, None)
        self.waiting = len(self.members) - active
        self.members = []
        self._start(now)

    def _start(self, now: float) -> None:
        rate = self.job.samples_per_s.get(min(sum(self.alive.values()), max(self.job.samples_per_s)), 0.0)
        if self.pipelines == 0 or rate <= 0.0:
            self.status, self.step_due = "stopped", None
            return
        self.status = "running"
        self.step_s = self.job.samples_per_step / rate
        self.step_due = now + self.step_s
        if self.first_s is None:
            self.first_s = self.last_s = now

    def stepped(self) -> None:
        """A step ended; one in which a node took over lasts longer."""
        assert self.step_due is not None
        now = self.step_due
        if self.hit is not None and not self.stretched and self.hit[0] == self.steps:
            self.stretched = True
            self.step_due = now + (now - self.hit[1]) * (self.job.failover_factor - 1.0)
            return
        self.steps += 1
        self.last_s = now
        if self._should_reconfigure():
            self.meet(now, self.job.reconfigure_s)
            self.step_due = None
        else:
            self.step_due = now + self.step_s

    def _should_reconfigure(self) -> bool:
        overloaded = sum(len(places) > 1 for places in self.places.values())
        active = self.pipelines * self.job.stages - overloaded
        if overloaded and (self.waiting >= overloaded or 2 * overloaded / active > RISKY_SHARE):
            return True
        return (active + self.waiting) // self.job.stages > self.pipelines

    def lose(self, node: str, now: float) -> None:
        """A node goes: its predecessor takes over, or no node can."""
        del self.alive[node]
        places = self.places.pop(node, set())
        if len(places) > 1 or (places and not self._taken_over(next(iter(places)))):
            self.meet(now, self.job.rendezvous_s)
        elif self.status == "running" and self.hit is None:
            self.hit = self.steps, now
            self.stretched = False
            self.step_s *= self.job.failover_factor

    def _taken_over(self, place: tuple[int, int]) -> bool:
        before = place[0], (place[1] - 1) % self.job.stages
        shadow = next((node for node, held in self.places.items() if before in held), None)
        if shadow is None:
            return True
        if len(self.places[shadow]) > 1:
            return False
        self.places[shadow].add(place)
        return True

    def until(self, end: float) -> None:
        """Everything that happens before ``end``: nodes come before rendezvous end before steps do."""
        while True:
            nexts = (self.coming[0][0] if self.coming else None, self.dues[0][0] if self.dues else None, self.step_due)
            ahead = [(at, order) for order, at in enumerate(nexts) if at is not None and at < end]
            if not ahead:
                return
            (self.came, self.met, self.stepped)[min(ahead)[1]]()


def follow_redundant(trace: Iterable[TraceChange], job: RedundantJob) -> Outcome:
    """Follow a trace until its last change."""
    run = _Run(job)
    for number, change in enumerate(trace):
        run.until(change.at_s)
        if change.kind == "remove":
            run.lose(change.node, change.at_s)
        else:
            run.alive[change.node] = False
            heapq.heappush(run.coming, (change.at_s + job.ready_s, number, change.node))
    seconds = run.last_s - run.first_s if run.first_s is not None else 0.0
    return Outcome(run.steps * job.samples_per_step, seconds, 0, run.regroups)
