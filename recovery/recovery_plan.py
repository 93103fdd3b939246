"""The plan: what could be done about a failure, what each way costs, and which one was chosen. Data, not code."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

import msgspec

LISTED: Final = 2048
"""Restores of one alternative that an event lists."""
NOTHING_POSSIBLE: Final = "Nothing brings the job back automatically, an operator is needed."
"""The answer of a plan, or a decision, without a feasible strategy; the reasons follow."""


class RestoreStrategyName(StrEnum):
    """Recovery strategies to a consistent step. Grows with each strategy file in ``recovery/strategies``."""

    LOCAL_SLOT = "local_slot"
    PEER_COPY = "peer_copy"
    PARITY_REBUILD = "parity_rebuild"
    DISK_RESTART = "disk_restart"


class RecoveryStrategyName(StrEnum):
    """Every strategy with a cost estimate. A running job's coordinator carries out those of ``RestoreStrategyName``."""

    LOCAL_SLOT = "local_slot"
    PEER_COPY = "peer_copy"
    PARITY_REBUILD = "parity_rebuild"
    DISK_RESTART = "disk_restart"
    JUST_IN_TIME = "just_in_time"
    IN_PROCESS = "in_process"
    STANDBY_SWAP = "standby_swap"
    DROP_AND_HEAL = "drop_and_heal"
    REROUTE_COUPLED = "reroute_coupled"
    REROUTE_DECOUPLED = "reroute_decoupled"
    REROUTE_STAGGERED = "reroute_staggered"
    REINSTANTIATE = "reinstantiate"
    REDUNDANT_COMPUTE = "redundant_compute"
    PROACTIVE = "proactive"
    POOL_REBALANCE = "pool_rebalance"
    MORPH = "morph"
    DEGRADE = "degrade"
    BORROW_WORKERS = "borrow_workers"
    REPLAN_RESOURCES = "replan_resources"
    LEAST_REDUNDANCY = "least_redundancy"


class RestoreSource(StrEnum):
    """The source of the state of one rank."""

    LIVE = "live"  # a survivor already holds the epoch in its own tensors
    LOCAL_SLOT = "local_slot"
    PEER_COPY = "peer_copy"
    PARITY = "parity"
    DISK = "disk"


class RankRestore(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One rank's part of a plan."""

    rank: int
    node: str
    """Where the rank runs in the new generation."""
    source: RestoreSource
    from_rank: int | None = None
    """The data-parallel peer whose slot is copied (``PEER_COPY``)."""
    from_nodes: tuple[str, ...] = ()
    """Agents that bytes are read from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One strategy, priced. An infeasible one says why and has no price."""

    strategy: RestoreStrategyName
    feasible: bool
    reason: str
    """One sentence for a tired human: why this can (not) work here."""
    epoch: int | None = None
    """Step that every rank would restart after."""
    seconds: float | None = None
    """Predicted time from now to the first new step."""
    steps_lost: int | None = None
    """Committed steps that would have to be repeated."""
    cost_seconds: float | None = None
    """The objective: seconds + steps_lost * step time. The least wins."""
    parts: dict[str, float] = field(default_factory=dict)
    """Predicted seconds per phase (fence, spawn, fetch, decode, load, regroup)."""
    restores: tuple[RankRestore, ...] = ()
    left_out: int = 0
    """Further restores that are not listed, see ``listed``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPlan:
    """Priced alternatives, best first; ``chosen`` names the one to execute, or None when nothing is feasible."""

    id: str
    job: str
    generation: int
    """The generation that the plan creates."""
    failed_ranks: tuple[int, ...]
    alternatives: tuple[Alternative, ...]
    chosen: RestoreStrategyName | None
    explanation: str

    def alternative(self) -> Alternative:
        """The chosen alternative.

        Raises:
            ValueError: nothing was feasible.
        """
        for alternative in self.alternatives:
            if alternative.strategy is self.chosen:
                return alternative
        raise ValueError(f"plan {self.id} has no feasible alternative: {self.explanation}")


def summarize_plan(plan: RecoveryPlan) -> RecoveryPlan:
    """The plan as an event tells it: of a job of thousands of ranks, those that move in what was chosen.

    Four alternatives of 16,384 ranks would be half a million values, more than a service takes, for one lost rank.
    """
    return replace(plan, alternatives=tuple(_listed(a, chosen=a.strategy is plan.chosen) for a in plan.alternatives))


def _listed(alternative: Alternative, *, chosen: bool) -> Alternative:
    restores = alternative.restores
    if len(restores) <= LISTED:
        return alternative
    kept = [restore for restore in restores if chosen and restore.source is not RestoreSource.LIVE][:LISTED]
    return replace(alternative, restores=tuple(kept), left_out=len(restores) - len(kept))
