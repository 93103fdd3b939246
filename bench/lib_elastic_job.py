"""A job on nodes that come and go, followed event by event: it regroups at every loss and continues with what is left.

Two ways: without checkpoints the running step alone is lost (Oobleck: state comes from replicas that live on); with
them every step since the last whole checkpoint is (Varuna: morphing by restart). Nodes that come are taken in at the
next regroup, as in both systems. Iterations are discrete: throughput counts steps that ended.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby

from mainstay.recovery.simulate.traces import TraceChange


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """Checkpoints that training waits for."""

    cost_s: float
    every_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticJob:
    """What a job does on n nodes, and what a regroup costs it."""

    samples_per_s: Mapping[int, float]
    """By number of nodes; more than the largest key are idle, a missing or zero entry: the job stands still."""
    samples_per_step: float
    regroup_s: float
    """From a loss until training continues."""
    ready_s: float = 0.0
    """From a node's coming until it can be used."""
    saving: Saving | None = None
    works_on: bool = False
    """Steps continue at the old pace until the regroup ends, and count: so the simulator behind Oobleck's Table 2 has
    it (SOSP'23 artifact, tools/simulator: a step is only stale once the rendezvous is over). Optimistic by a
    regroup."""

    def step_s(self, nodes: int) -> float | None:
        """Seconds of one step on so many nodes; None if the job cannot run on them."""
        rate = self.samples_per_s.get(min(nodes, max(self.samples_per_s)), 0.0)
        return self.samples_per_step / rate if rate > 0.0 else None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run."""

    samples: float
    """Of steps that were kept."""
    seconds: float
    """From the first training until the last step that ended (kept or not)."""
    lost_steps: int
    """That had ended and were undone by going back to a checkpoint."""
    regroups: int

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.seconds if self.seconds > 0.0 else 0.0


@dataclass
class _Run:
    """State while a trace is followed."""

    job: ElasticJob
    steps: int = 0
    saved: int = 0
    """Steps that nothing can take away: those of the last whole checkpoint, or all that ended if there are none."""
    step_s: float | None = None
    """Of the running step; None while the job stands still."""
    now: float = 0.0
    """When the running step began."""
    first_s: float | None = None
    last_s: float = 0.0
    lost: int = 0
    regroups: int = 0
    owed: bool = False
    """A checkpoint is due after the first step that follows a loss (the same simulator of Varuna)."""
    ready: dict[str, float] = field(default_factory=dict)
    """Node -> since when it can be used."""

    def start_job(self, at: float) -> None:
        """Train on the nodes that are ready."""
        self.step_s = self.job.step_s(sum(ready <= at for ready in self.ready.values()))
        self.now = at
        if self.first_s is None and self.step_s is not None:
            self.first_s = self.last_s = at

    def train(self, end: float) -> None:
        """End the steps that end before ``end``."""
        if self.step_s is None:
            return
        if self.job.saving is not None:
            self._with_saving(self.job.saving, self.step_s, end)
            return
        whole = max(0, math.ceil((end - self.now) / self.step_s) - 1)
        self.steps += whole
        self.saved = self.steps
        self.now += whole * self.step_s
        self.last_s = self.now if whole else self.last_s

    def _with_saving(self, saving: Saving, step_s: float, end: float) -> None:
        while self.now + step_s < end:
            self.now += step_s
            self.last_s = self.now
            self.steps += 1
            if self.owed or self.steps % saving.every_steps == 0:
                self.owed = False
                self.now += saving.cost_s
                self.saved = self.steps if self.now < end else self.saved

    def lose(self) -> None:
        """Go back to what nothing can take away."""
        self.lost += self.steps - self.saved
        self.steps = self.saved
        self.owed = True
        self.regroups += 1


def follow(trace: Iterable[TraceChange], job: ElasticJob) -> Outcome:
    """Follow a trace until its last change.

    The first regroup begins when the first node is ready; losses at one instant make one regroup, and a loss during a
    regroup restarts it.
    """
    run = _Run(job)
    due: float | None = None
    """When the regroup that is under way ends."""
    for at, changes in groupby(trace, key=lambda change: change.at_s):
        listed = list(changes)
        run.ready.update({c.node: at + job.ready_s for c in listed if c.kind == "add"})
        gone = [c.node for c in listed if c.kind == "remove"]
        if due is None and run.ready and run.first_s is None:
            due = at + job.ready_s + job.regroup_s
        if due is not None and due <= at:
            _regrouped(run, due)
            due = None
        if gone:
            run.train(at)
            run.lose()
            for node in gone:
                del run.ready[node]
            due = at + job.regroup_s
            if not job.works_on:
                run.step_s = None
    seconds = run.last_s - run.first_s if run.first_s is not None else 0.0
    return Outcome(run.saved * job.samples_per_step, seconds, run.lost, run.regroups)


def _regrouped(run: _Run, due: float) -> None:
    """The regroup ended at ``due``: what ran until then stops, and training begins on what is ready."""
    run.train(due)
    run.start_job(due)
