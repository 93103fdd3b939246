"""A running job as the cost inputs that every recovery strategy is weighed by. Pure: from what the coordinator knows.

Where something is not known the worse is taken: a source without a report is none, a standby that may come does
not, a script that does not say how many micro-batches it has cannot share them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from mainstay.recovery.cost_inputs import (
    CostInputs,
    FailureOdds,
    FaultKind,
    ProgramCapability,
    RollbackCosts,
    SpareCapacity,
    busiest_node_bytes,
)
from mainstay.recovery.cost_model.iteration import IterationShape as Grid
from mainstay.recovery.mesh_shape import MeshShape
from mainstay.recovery.planner_input import MachineCosts
from mainstay.recovery.recovery_plan import RecoveryStrategyName, RestoreStrategyName
from mainstay.recovery.strategies import WAYS

LEAVES = frozenset({RecoveryStrategyName.DROP_AND_HEAL, RecoveryStrategyName.REROUTE_COUPLED})
"""Ways in which the others continue without them."""
CARRIED = LEAVES | {RecoveryStrategyName.REINSTANTIATE} | {way.way for way in WAYS if way.executed_as is not None}
"""All that a coordinator carries out automatically when something is lost."""
PIECES = 12
"""Layers of a stage where the script says that its model can be cut anywhere: their number is unknown, and with a
dozen each the deepest stage of any other cut is at most a twelfth fuller than the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """A job that trains. Seconds, bytes."""

    shape: MeshShape
    nodes: tuple[str, ...]
    """Rank -> node."""
    state_bytes: tuple[int, ...]
    """Rank -> what a restore moves."""
    micro_batches: int
    """Of the whole job in one step; 0: the script does not ask for them."""
    step_s: float
    """One healthy step."""
    node_rate: float
    """Failures of one node per second."""
    held: RollbackCosts
    pool: SpareCapacity = field(default_factory=SpareCapacity)
    """Of workers: warm standbys, and what could be started beyond them, on living nodes."""
    costs: MachineCosts = field(default_factory=MachineCosts)
    warm_up_s: float = 0.0
    able: frozenset[ProgramCapability] = frozenset()


def held_of(
    *,
    step_s: float,
    committed: int,
    slots: bool,
    replicas: bool,
    protected: int | None,
    tolerance: int,
    copies: bool,
    disk: int | None,
) -> RollbackCosts:
    """What can be gone back to, by the age of each; half a step for the one that is under way.

    Args:
        step_s: one step.
        committed: the newest epoch.
        slots: every rank has a snapshot on its own node.
        replicas: data-parallel peers hold the same, and there is another one.
        protected: the newest epoch that groups of nodes protect; None: none.
        tolerance: members of a group that may be lost at once.
        copies: a group keeps whole copies, not a code.
        disk: the newest epoch that is whole on disk; None: none.
    """

    def age(epoch: int | None) -> float | None:
        return None if epoch is None else (max(0, committed - epoch) + 0.5) * step_s

    near = age(committed)
    return RollbackCosts(
        local_s=near if slots else None,
        peer_s=near if slots and replicas else age(protected) if copies else None,
        parity_s=None if copies else age(protected),
        parity_losses=max(1, tolerance),
        disk_s=age(disk),
        replicated=replicas,
    )


def cost_inputs_of(known: JobFacts, victims: Collection[int], fault: FaultKind, detect_s: float) -> CostInputs:
    """The job and what it has just lost. A worker is the ranks with equal (dp, pp); one is lost with any of them.

    Stages are taken to be alike, a third of a slot each for forward, inputs and weights. Pipelines of unlike depth are
    taken for as many of the deepest.

    Args:
        known: the job.
        victims: ranks that have no process, at least one.
        fault: what happened to them.
        detect_s: since the failure.

    Raises:
        ValueError: the numbers make no sense; the message says which.
    """
    shape = known.shape
    cells = {shape.place(rank)[:2] for rank in victims}
    grid = Grid(dp=shape.dp, pp=shape.pp, micro_batches=max(1, known.micro_batches // shape.dp), tp=shape.tp)
    return CostInputs(
        shape=grid,
        slot_s=known.step_s / grid.slots,
        layers=shape.pp * (PIECES if ProgramCapability.TEMPLATES in known.able else 1),
        state_bytes=busiest_node_bytes(victims, known.nodes, known.state_bytes),
        fault=fault,
        lost=tuple(sum(1 for _, stage in cells if stage == s) for s in range(shape.pp)),
        broken=len({replica for replica, _ in cells}),
        odds=FailureOdds(worker_rate=known.node_rate * len(set(known.nodes)) / (shape.dp * shape.pp)),
        gpus=shape.tp,
        held=known.held,
        pool=known.pool,
        costs=known.costs,
        detect_s=max(0.0, detect_s),
        warm_up_s=known.warm_up_s,
        able=known.able,
        through_disk=True,
    )


def executed(
    strategy: RestoreStrategyName, *, away: bool, warm: bool, rerouted: bool = False, lives: bool = False
) -> RecoveryStrategyName:
    """The way that a coordinator takes.

    Args:
        strategy: from where the planner has state come.
        away: the others continue without what is lost.
        rerouted: of some replica only a part.
        warm: a standby takes the place of each lost rank, on another node.
        lives: no process is gone.
    """
    if lives:
        return RecoveryStrategyName.IN_PROCESS
    if away:
        return RecoveryStrategyName.REROUTE_COUPLED if rerouted else RecoveryStrategyName.DROP_AND_HEAL
    if warm and strategy is RestoreStrategyName.PEER_COPY:
        return RecoveryStrategyName.STANDBY_SWAP
    return RecoveryStrategyName(strategy.value)
