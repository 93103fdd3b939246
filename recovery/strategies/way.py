"""The contract of every way of recovering, carried out or not: first whether it can be, then what it does to a job.

``mask`` knows no prices: it says in one sentence why a way cannot be, or None. ``action`` fills a ``pricing.event
.Action``, and ``pricing.event`` alone turns that into seconds, so that all ways have one objective. Both are pure.
``ask`` is the only door: a way is masked or acts, never both.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from recovery.outlook import GONE, Fault, Outlook
from recovery.plan import StrategyName, WayName
from recovery.pricing.event import Action, until_back


class Way(Protocol):
    """One way of recovering. Pure: the same outlook gives the same answer."""

    @property
    def way(self) -> WayName: ...

    @property
    def systems(self) -> str:
        """Where it comes from, for a reader."""
        ...

    @property
    def executed_as(self) -> StrategyName | None:
        """As what a running job's planner chooses it; None: never by itself, an option or a command may."""
        ...

    def mask(self, outlook: Outlook) -> str | None:
        """Why it cannot be, in one sentence; None if it can."""
        ...

    def action(self, outlook: Outlook) -> Action:
        """What it does, where ``mask`` is None."""
        ...


def ask(way: Way, outlook: Outlook) -> Action | str:
    """The action, or the sentence why there is none."""
    why = way.mask(outlook)
    return way.action(outlook) if why is None else why


def nothing_lost(outlook: Outlook) -> str | None:
    """For ways that bring back what is gone."""
    if outlook.fault in GONE:
        return None
    return "Nothing is lost: the workers concerned still hold their state."


def placeless(outlook: Outlook) -> str | None:
    """For ways that need a worker in the place of each lost one. A process's place is where it was."""
    if outlook.fault in {Fault.ERROR, Fault.PROCESS} or outlook.pool.standbys + outlook.pool.spares >= outlook.gone:
        return None
    there = outlook.pool.standbys + outlook.pool.spares
    return f"{outlook.gone} workers are to be replaced, and {there} standbys and spares are there."


def unheld(outlook: Outlook) -> str | None:
    """For ways that take live state from a data-parallel peer: what only the lost workers held cannot come from one."""
    if not outlook.held.replicated:
        return "This job shards its state among data-parallel peers: what is lost, no peer holds."
    stage = next((s for s, lost in enumerate(outlook.lost) if lost >= outlook.shape.dp), None)
    return None if stage is None else f"No worker of stage {stage} is left, so nobody holds its state."


def single_pipeline(outlook: Outlook, dropped: int) -> int:
    """Workers that hold the last copy of their stage when so many pipelines are left out; snapshots elsewhere count."""
    return outlook.shape.pp if outlook.shape.dp - dropped == 1 and not _elsewhere(outlook) else 0


def single_stages(outlook: Outlook) -> int:
    """The same where only the lost workers are missing."""
    if _elsewhere(outlook):
        return 0
    return sum(1 for lost in outlook.lost if lost and outlook.shape.dp - lost == 1)


def _elsewhere(outlook: Outlook) -> bool:
    return outlook.held.peer_s is not None or outlook.held.parity_s is not None


def waiting(outlook: Outlook, action: Action) -> Action:
    """An action that goes on without the lost workers: a process is back when it has started, a node when repaired."""
    if outlook.fault in {Fault.ERROR, Fault.PROCESS}:
        return replace(action, back_after_s=outlook.costs.spawn_cold_s, exposed_s=outlook.costs.spawn_cold_s)
    return replace(action, until_repair=True)


def waiting_s(outlook: Outlook) -> float:
    """Seconds for which an action that waits for repairs is degraded, on average: E[min(R, X)] over the quantiles."""
    return sum(each.share * until_back(each.seconds, outlook.job_rate) for each in outlook.odds.repairs)


def rejoins(outlook: Outlook) -> float:
    """What it costs the job to take a repaired worker in at the end of a step: regroup, state, first step."""
    return outlook.costs.regroup_s + outlook.move_s + outlook.warm_up_s
