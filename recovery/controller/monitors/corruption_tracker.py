"""Which epochs hold what a corrupt node has computed, and which do not: known afterwards, when the verdict comes late.

For every committed epoch the ledger keeps when it was committed and which nodes took part. A verdict "node X computes
wrongly since t" taints the steps that X took part in and that ended after t, and all that came after on the same way:
gradients are averaged, so that one wrong rank is in all parameters. With ``--on-corruption rollback`` the job then
goes back to the newest clean step that memory or disk still has, and X's ranks run on another node.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Any, Final, NamedTuple

from mainstay.recovery.controller.failure import GenerationFailure
from mainstay.recovery.controller.job import Job, log
from mainstay.recovery.controller.planning.planner_input_builder import PlannerInputBuilder
from mainstay.recovery.options import CorruptionPolicy
from mainstay.recovery.work_assignment import LossPolicy

MOST: Final = 8192
"""Epochs remembered one by one; of older ones ever fewer, so that a job of any length fits into a megabyte."""
SKEW_SECONDS: Final = 2.0
"""Clocks of a node, the service and the coordinator may be so far apart: a verdict counts from so much earlier."""


class _Written(NamedTuple):
    """Steps up to ``epoch``, since the entry before."""

    epoch: int
    begun: float
    at: float
    """Unix seconds at which it was committed."""
    nodes: frozenset[str]


class EpochWriters:
    """Who wrote which epoch of the job's present past. Pure.

    Args:
        epoch: with which the job began: 0, or the step that it resumed.
        started: Unix seconds.
    """

    def __init__(self, epoch: int = 0, started: float = 0.0) -> None:
        self._written = [_Written(epoch, started, started, frozenset())]
        self._back_at = started

    @property
    def newest(self) -> int:
        return self._written[-1].epoch

    def committed(self, epoch: int, at: float, nodes: frozenset[str]) -> None:
        """``nodes`` made the steps up to ``epoch``, committed ``at`` that time; the first word counts."""
        last = self._written[-1]
        if epoch <= last.epoch:
            return
        self._written.append(_Written(epoch, max(last.at, self._back_at), max(at, last.at), nodes))
        if len(self._written) > MOST:
            self._thin()

    def _thin(self) -> None:
        """Of the older half every other entry goes; its writers count with the entry after it."""
        for i in range(len(self._written) // 4 * 2 - 1, 0, -2):
            gone, kept = self._written.pop(i), self._written[i]
            self._written[i] = kept._replace(begun=gone.begun, nodes=gone.nodes | kept.nodes)

    def went_back(self, epoch: int, at: float = 0.0) -> None:
        """The job begins again at ``epoch``: what came after is not its past any more, what comes begins ``at``."""
        self._back_at = max(self._back_at, at)
        while len(self._written) > 1 and self.newest > epoch:
            self._written.pop()

    def last_clean_epoch(self, node: str, since: float, until: float | None = None) -> int | None:
        """The newest epoch before the first that ``node`` took part in after ``since``.

        Args:
            node: that computes wrongly.
            since: Unix seconds.
            until: it was repaired, or sent away, then; None: it still computes wrongly.

        Returns:
            The newest epoch of all if none is corrupt; None if not even the first is known to be clean: the verdict
            is of a time before this run, which continued from another's step.
        """
        written = self._written
        if since < written[0].at and written[0].epoch > 0:
            return None
        first = max(1, bisect_left(written, since, key=attrgetter("at")))
        for before, one in pairwise(written[first - 1 :]):
            if node in one.nodes and one.at > since and (until is None or one.begun < until):
                return before.epoch
        return self.newest


@dataclass(slots=True)
class CorruptionRecord:
    """A verdict that ``node`` computes wrongly, at least since the Unix time ``since``, and what became of it."""

    node: str
    since: float
    reason: str
    handled: float | None = None
    """The node's ranks were sent away from the device then."""
    wanted: int | None = None
    """The clean epoch that a restore under way is for."""


class CorruptionTracker:
    """One a coordinator. Pass all verdicts to ``apply_verdicts``, also repeatedly; each is acted upon once."""

    def __init__(self, job: Job, inputs: PlannerInputBuilder) -> None:
        self._job = job
        self._inputs = inputs
        self._ledger: EpochWriters | None = None
        self._corrupt_steps: dict[str, CorruptionRecord] = {}

    @property
    def ledger(self) -> EpochWriters:
        """Begun with the first step, when it is known where the job continues from."""
        if self._ledger is None:
            self._ledger = EpochWriters(self._job.begun_at, self._job.state.started_at)
        return self._ledger

    def committed(self, epoch: int) -> None:
        """A rank has committed ``epoch``; the first to report it gives the time."""
        if epoch > self.ledger.newest:
            self.ledger.committed(epoch, time.time(), frozenset(rank.node for rank in self._job.members.ranks))

    def went_back(self, epoch: int) -> None:
        """The job begins again at ``epoch``."""
        self.ledger.went_back(epoch, time.time())
        for taint in self._corrupt_steps.values():
            wanted, taint.wanted = taint.wanted, None
            if wanted is not None and epoch > wanted:
                log.error(
                    "DEGRADED %s: no snapshot of step %d or before is left; it continues from corrupt step %d",
                    self._job.options.job,
                    wanted,
                    epoch,
                )

    def apply_verdicts(self, verdicts: Iterable[CorruptionRecord]) -> None:
        """All verdicts that hold. One about a node that is no better than a known one of it says nothing new."""
        for verdict in verdicts:
            known = self._corrupt_steps.get(verdict.node)
            if known is None or verdict.since < known.since - SKEW_SECONDS:
                self._corrupt_steps[verdict.node] = verdict
                self._judge(verdict)

    def _judge(self, taint: CorruptionRecord) -> None:
        job, node = self._job, taint.node
        clean, newest = self._clean(taint), self.ledger.newest
        if clean == newest:
            log.warning("node %s computes wrongly (%s), but took part in no step since", node, taint.reason)
            return
        what = "no step is known to be clean" if clean is None else f"steps after {clean} are corrupt"
        log.error("CORRUPT %s: node %s computes wrongly (%s): %s", job.options.job, node, taint.reason, what)
        if job.options.on_corruption is not CorruptionPolicy.ROLLBACK or job.state.over or job.members.shape is None:
            return
        ranks = frozenset(rank.number for rank in job.members.ranks if rank.node == node)
        homes = self._inputs.homes(set(ranks), ranks) if job.state.on_loss is LossPolicy.WAIT else {}
        problem = "nothing to go back to" if clean is None else homes if isinstance(homes, str) else ""
        if problem:
            log.error("DEGRADED %s: %s; training continues, on corrupt steps", job.options.job, problem)
            return
        taint.wanted, taint.handled = clean, time.time()
        reason = f"steps after {clean} are corrupt by node {node}: {taint.reason}"
        job.control.failed(GenerationFailure(ranks=set(ranks), reason=reason, exclude=ranks, before=clean))

    def _clean(self, taint: CorruptionRecord) -> int | None:
        return self.ledger.last_clean_epoch(taint.node, taint.since - SKEW_SECONDS, taint.handled)

    def report(self) -> list[dict[str, Any]]:
        """As a job report tells it: what taints the steps that the job stands on."""
        return [
            {
                "node": taint.node,
                "since": taint.since,
                "reason": taint.reason,
                "clean": (clean := self._clean(taint)),
                "corrupt": clean is None or clean < self.ledger.newest,
            }
            for taint in self._corrupt_steps.values()
        ]
