"""Which epochs hold what a corrupt node has computed, and which do not: known afterwards, when the verdict comes late.

For every committed epoch the ledger keeps when it was committed and which nodes took part. A verdict "node X computes
wrongly since t" taints the steps that X took part in and that ended after t, and all that came after on the same way:
gradients are averaged, so that one wrong rank is in the parameters of all. With ``--on-taint restore`` the job then
goes back to the newest clean step that memory or disk still has, and X's ranks run elsewhere.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from recovery.launcher.membership import Failure
from recovery.launcher.options import OnTaint

if TYPE_CHECKING:
    from recovery.launcher.coordinator import Coordinator

log = logging.getLogger("mainstay.coordinator")

MOST: Final = 8192
"""Epochs remembered one by one; of older ones ever fewer, so that a job of any length fits into a megabyte."""
SKEW_SECONDS: Final = 2.0
"""Clocks of a node, the service and the coordinator may be so far apart: a verdict counts from so much earlier."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Somebody found out that ``node`` computes wrongly, at least since the Unix time ``since``."""

    node: str
    since: float
    reason: str


class Ledger:
    """Who wrote which epoch of the job's present past. Pure.

    Args:
        epoch: with which the job began: 0, or the step that it resumed.
        started: Unix seconds.
    """

    def __init__(self, epoch: int = 0, started: float = 0.0) -> None:
        self._epochs = [epoch]
        self._times = [started]
        self._begun = [started]
        self._back_at = started
        self._nodes: list[frozenset[str]] = [frozenset()]

    @property
    def newest(self) -> int:
        return self._epochs[-1]

    def committed(self, epoch: int, at: float, nodes: frozenset[str]) -> None:
        """``nodes`` made the steps up to ``epoch``, committed ``at`` that time; the first word counts."""
        if epoch <= self._epochs[-1]:
            return
        self._epochs.append(epoch)
        self._begun.append(max(self._times[-1], self._back_at))
        self._times.append(max(at, self._times[-1]))
        self._nodes.append(nodes)
        if len(self._epochs) > MOST:
            self._thin()

    def _thin(self) -> None:
        """Of the older half every other entry goes; its writers count with the entry after it."""
        half = len(self._epochs) // 4 * 2
        for i in range(half - 1, 0, -2):
            self._nodes[i + 1] |= self._nodes[i]
            self._begun[i + 1] = self._begun[i]
            del self._epochs[i], self._times[i], self._begun[i], self._nodes[i]

    def went_back(self, epoch: int, at: float = 0.0) -> None:
        """The job begins again at ``epoch``: what came after is not its past any more, what comes begins ``at``."""
        self._back_at = max(self._back_at, at)
        while len(self._epochs) > 1 and self._epochs[-1] > epoch:
            self._epochs.pop()
            self._times.pop()
            self._begun.pop()
            self._nodes.pop()

    def clean_until(self, node: str, since: float, until: float | None = None) -> int | None:
        """The newest epoch before the first that ``node`` took part in after ``since``.

        Args:
            node: that computes wrongly.
            since: Unix seconds.
            until: it was mended, or sent away, then; None: it still computes wrongly.

        Returns:
            The newest epoch of all if none is tainted; None if not even the first is known to be clean: the verdict
            is of a time before this run, which went on from another's step.
        """
        if since < self._times[0] and self._epochs[0] > 0:
            return None
        first = max(1, bisect_left(self._times, since))
        for i in range(first, len(self._epochs)):
            if node in self._nodes[i] and self._times[i] > since and (until is None or self._begun[i] < until):
                return self._epochs[i - 1]
        return self._epochs[-1]


@dataclass(slots=True)
class Taint:
    """A verdict, and what became of it."""

    verdict: Verdict
    handled: float | None = None
    """The node's ranks were sent away from the device then."""
    wanted: int | None = None
    """The clean epoch that a restore under way is for."""


class Taints:
    """One a coordinator. ``hear`` whatever verdicts there are, again and again; each is acted upon once."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._c = coordinator
        self._ledger: Ledger | None = None
        self._taints: dict[str, Taint] = {}

    @property
    def ledger(self) -> Ledger:
        """Begun with the first step, when it is known where the job goes on from."""
        if self._ledger is None:
            self._ledger = Ledger(self._c.disk.begun_at, self._c.started_at)
        return self._ledger

    def committed(self, epoch: int) -> None:
        """A rank has committed ``epoch``; the first to say so gives the time."""
        if epoch > self.ledger.newest:
            self.ledger.committed(epoch, time.time(), frozenset(rank.node for rank in self._c.members.ranks))

    def went_back(self, epoch: int) -> None:
        """The job begins again at ``epoch``."""
        self.ledger.went_back(epoch, time.time())
        for taint in self._taints.values():
            wanted, taint.wanted = taint.wanted, None
            if wanted is not None and epoch > wanted:
                log.error(
                    "DEGRADED %s: no snapshot is left of step %d or before; it goes on from step %d, which is tainted",
                    self._c.options.job,
                    wanted,
                    epoch,
                )

    def hear(self, verdicts: Iterable[Verdict]) -> None:
        """All verdicts that hold. One about a node that is no better than a known one of it says nothing new."""
        for verdict in verdicts:
            known = self._taints.get(verdict.node)
            if known is None or verdict.since < known.verdict.since - SKEW_SECONDS:
                self._taints[verdict.node] = taint = Taint(verdict)
                self._judge(taint)

    def _judge(self, taint: Taint) -> None:
        c, node = self._c, taint.verdict.node
        clean, newest = self._clean(taint), self.ledger.newest
        if clean == newest:
            log.warning("node %s computes wrongly (%s), but took part in no step since", node, taint.verdict.reason)
            return
        what = "no step is known to be clean" if clean is None else f"steps after {clean} are tainted"
        log.error("TAINTED %s: node %s computes wrongly (%s): %s", c.options.job, node, taint.verdict.reason, what)
        if c.options.on_taint is not OnTaint.RESTORE or c.over or c.members.shape is None:
            return
        if clean is None:
            log.error("DEGRADED %s: nothing to go back to; training goes on, on tainted steps", c.options.job)
            return
        taint.wanted, taint.handled = clean, time.time()
        ranks = frozenset(rank.number for rank in c.members.ranks if rank.node == node)
        reason = f"steps after {clean} are tainted by node {node}: {taint.verdict.reason}"
        c.failed(Failure(ranks=set(ranks), time=time.time(), reason=reason, shun=ranks, before=clean))

    def _clean(self, taint: Taint) -> int | None:
        verdict = taint.verdict
        return self.ledger.clean_until(verdict.node, verdict.since - SKEW_SECONDS, taint.handled)

    def report(self) -> list[dict[str, Any]]:
        """As a job report tells it: what taints the steps that the job stands on."""
        told = []
        for taint in self._taints.values():
            clean = self._clean(taint)
            told.append(
                {
                    "node": taint.verdict.node,
                    "since": taint.verdict.since,
                    "reason": taint.verdict.reason,
                    "clean": clean,
                    "tainted": clean is None or clean < self.ledger.newest,
                }
            )
        return told
