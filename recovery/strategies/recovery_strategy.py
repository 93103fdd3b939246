"""The contract of every recovery strategy, carried out or not: first whether it can be, then what it does to a job.

``infeasible_reason`` knows no prices: it says in one sentence why a way cannot be, or None. ``recovery_action`` fills a
``RecoveryAction``, and ``failure_cost`` alone turns that into seconds, so that all have one objective. Both are pure.
Use ``estimate_action``: a strategy is infeasible or has an action, never both.
"""

from __future__ import annotations

from dataclasses import replace

from mainstay.recovery.cost_inputs import GONE, CostInputs, FaultKind
from mainstay.recovery.cost_model.failure_cost import RecoveryAction, until_back
from mainstay.recovery.recovery_plan import RecoveryStrategyName, RestoreStrategyName


class RecoveryStrategy:
    """One recovery strategy. Pure: the same cost inputs gives the same answer."""

    way: RecoveryStrategyName
    executed_as: RestoreStrategyName | None = None
    """As what a running job's planner chooses it; None: only an option or a command chooses it."""
    awaits_return: bool = False
    """Whether the job runs degraded until a worker is back."""

    def infeasible_reason(self, cost_inputs: CostInputs) -> str | None:
        """Why it cannot be, in one sentence; None if it can."""
        raise NotImplementedError

    def recovery_action(self, cost_inputs: CostInputs) -> RecoveryAction:
        """What it does, where ``infeasible_reason`` is None."""
        raise NotImplementedError


def estimate_action(way: RecoveryStrategy, cost_inputs: CostInputs) -> RecoveryAction | str:
    """The action, or the sentence why there is none."""
    why = way.infeasible_reason(cost_inputs)
    if why is not None:
        return why
    action = way.recovery_action(cost_inputs)
    return _waiting(cost_inputs, action) if way.awaits_return else action


def nothing_lost(cost_inputs: CostInputs) -> str | None:
    """For ways that bring back what is gone."""
    if cost_inputs.fault in GONE:
        return None
    return "Nothing is lost: the workers concerned still hold their state."


def placeless(cost_inputs: CostInputs) -> str | None:
    """For ways that need a worker in the place of each lost one. A process's place is where it was."""
    there = cost_inputs.pool.standbys + cost_inputs.pool.spares
    if cost_inputs.fault in {FaultKind.ERROR, FaultKind.PROCESS} or there >= cost_inputs.gone:
        return None
    return f"{cost_inputs.gone} workers are to be replaced, and {there} standbys and spares are there."


def unheld(cost_inputs: CostInputs) -> str | None:
    """For ways that take live state from a data-parallel peer: what only the lost workers held cannot come from one."""
    if not cost_inputs.held.replicated:
        return "This job shards its state among data-parallel peers: what is lost, no peer holds."
    stage = next((s for s, lost in enumerate(cost_inputs.lost) if lost >= cost_inputs.shape.dp), None)
    return None if stage is None else f"No worker of stage {stage} is left, so no worker holds its state."


def single_pipeline(cost_inputs: CostInputs, dropped: int) -> int:
    """Workers with the last copy of their stage when so many pipelines are left out; snapshots on other nodes count."""
    return cost_inputs.shape.pp if cost_inputs.shape.dp - dropped == 1 and not _elsewhere(cost_inputs) else 0


def single_stages(cost_inputs: CostInputs) -> int:
    """The same where only the lost workers are missing."""
    if _elsewhere(cost_inputs):
        return 0
    return sum(1 for lost in cost_inputs.lost if lost and cost_inputs.shape.dp - lost == 1)


def _elsewhere(cost_inputs: CostInputs) -> bool:
    return cost_inputs.held.peer_s is not None or cost_inputs.held.parity_s is not None


def _waiting(cost_inputs: CostInputs, action: RecoveryAction) -> RecoveryAction:
    """An action that continues without lost workers, which re-join: a process when it has started, a node repaired."""
    action = replace(action, rejoin_probability=1.0)
    if cost_inputs.fault in {FaultKind.ERROR, FaultKind.PROCESS}:
        return replace(action, back_after_s=cost_inputs.costs.spawn_cold_s, exposed_s=cost_inputs.costs.spawn_cold_s)
    return replace(action, until_repair=True)


def waiting_s(cost_inputs: CostInputs) -> float:
    """Seconds for which an action that waits for repairs is degraded, on average: E[min(R, X)] over the quantiles."""
    return sum(each.share * until_back(each.seconds, cost_inputs.job_rate) for each in cost_inputs.odds.repairs)


def rejoins(cost_inputs: CostInputs) -> float:
    """What it costs the job to take a repaired worker in at the end of a step: regroup, state, first step."""
    return cost_inputs.costs.regroup_s + cost_inputs.move_s + cost_inputs.warm_up_s
