"""What the planner knows when it compares strategies: the job's shape, what failed, what is available, what may fail.

Where a ``PlannerInput`` says which rank holds which epoch, ``CostInputs`` says it by classes: workers of one stage are
alike, so that a cluster of thousands of nodes is a few numbers and a decision takes milliseconds. A worker is what
fails together, most often a node with its tensor-parallel ranks; workers form a grid of dp pipelines x pp stages.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from mainstay.recovery.cost_model.allocation import Tenant
from mainstay.recovery.cost_model.failure_cost import Repair
from mainstay.recovery.cost_model.iteration import IterationShape
from mainstay.recovery.cost_model.layouts import LayoutModel
from mainstay.recovery.cost_model.redundancy import RedundancyScheme
from mainstay.recovery.cost_model.resources import ScalingSample
from mainstay.recovery.planner_input import MachineCosts


class FaultKind(StrEnum):
    """What happened to the workers that are named."""

    ERROR = "error"
    """An error or a hang inside a process that itself lives."""
    PROCESS = "process"
    """A process is gone; its node and the node's memory are not."""
    NODE = "node"
    """Nodes are gone, and their memory with them."""
    SLOW = "slow"
    """They work, but slowly."""
    NOTICE = "notice"
    """They will go: a predicted failure, a notice of preemption, maintenance."""


GONE = frozenset({FaultKind.ERROR, FaultKind.PROCESS, FaultKind.NODE})
"""Faults after which nothing trains until something is done."""


class ProgramCapability(StrEnum):
    """What the training program can do beyond being started; most can do nothing of it."""

    IN_PROCESS = "in_process"
    """Its training loop can be entered again without a new process."""
    REROUTE = "reroute"
    """A worker can compute another pipeline's micro-batches of its stage."""
    DECOUPLED = "decoupled"
    """Gradients of weights may wait for a bubble."""
    STAGGERED = "staggered"
    """A stage may begin the next step without waiting for the others."""
    TEMPLATES = "templates"
    """Pipelines of unlike depth can work together."""
    REDUNDANT = "redundant"
    """Each worker also computes its successor's layers."""
    POOL = "pool"
    """Micro-batches find their way through pools of workers, one a stage."""
    RESHAPE = "reshape"
    """It can continue at another (dp, pp)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackCosts:
    """Training seconds that are repeated when one goes back to each source, on average; None: there is none."""

    local_s: float | None = None
    """Snapshots in the memory of the worker's own node."""
    peer_s: float | None = None
    """Snapshots of a data-parallel peer, or of one's own on another node."""
    parity_s: float | None = None
    parity_losses: int = 1
    """Workers that the code bears at once."""
    disk_s: float | None = None
    replicated: bool = True
    """Data-parallel peers hold identical state; False for ZeRO and FSDP, whose shards are unique."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpareCapacity:
    """What could take the place of what is lost."""

    standbys: int = 0
    """Idle and warm: everything is imported."""
    spares: int = 0
    """Idle nodes on which processes would have to start."""
    standby_after_s: float = math.inf
    """Until another standby is warm; inf: none comes but by repair."""
    least_stages: int = 1
    """Fewest stages that hold the model in memory."""
    room_bytes: float = math.inf
    """Host memory of a worker that redundancy may take."""
    others: tuple[Tenant, ...] = ()
    """Other jobs of the cluster, which could give workers up."""
    schemes: tuple[RedundancyScheme, ...] = ()
    """Ways in which states are kept redundant in memory."""
    samples: tuple[ScalingSample, ...] = ()
    """Seconds of a step that were seen with other numbers of workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureOdds:
    """How sure one is, and what comes next."""

    worker_rate: float
    """Failures of one worker per second (1 / its mean time between failures)."""
    confidence: float = 1.0
    """That the alarm is real, 0..1."""
    confirm_s: float = 0.0
    """Until it would be certain, if one waits."""
    repairs: tuple[Repair, ...] = (Repair(0.7, 900.0), Repair(0.25, 3600.0), Repair(0.05, 86400.0))
    """Shares of repairs and how long they take. A reboot takes 10 to 20 minutes, an exchange of hardware hours to days
    (the reference's spans); the shares are an assumption until repairs have been seen."""
    single_copy_s: float = 600.0
    """How long any part of the state may have a single copy."""
    notice_s: float = 0.0
    """Until those with notice go."""

    @property
    def repair_s(self) -> float:
        """The mean time of a repair."""
        return sum(each.share * each.seconds for each in self.repairs)

    def __post_init__(self) -> None:
        if not 0.0 <= self.confidence <= 1.0:
            raise ValueError(f"confidence lies in 0..1, not {self.confidence:g}")
        for name in ("worker_rate", "confirm_s", "single_copy_s", "notice_s"):
            if not getattr(self, name) >= 0.0:
                raise ValueError(f"{name} is at least 0, not {getattr(self, name):g}")
        if not all(repair.share >= 0.0 and repair.seconds >= 0.0 for repair in self.repairs):
            raise ValueError("repairs: shares and seconds are at least 0")
        if not math.isclose(sum(repair.share for repair in self.repairs), 1.0, abs_tol=1e-6):
            raise ValueError(f"repairs: shares sum to 1, not {sum(repair.share for repair in self.repairs):g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CostInputs:
    """One job and one event.

    Raises:
        ValueError: a number that makes no sense; the message names it.
    """

    shape: IterationShape
    slot_s: float
    """One micro-batch on one stage."""
    layers: int
    """Of the model, for other depths than today's."""
    state_bytes: float
    """Of one worker: parameters and moments."""
    fault: FaultKind
    lost: tuple[int, ...]
    """Workers concerned, of each stage."""
    odds: FailureOdds
    broken: int | None = None
    """Pipelines that they belong to; None: not known, and taken to be one each."""
    gpus: int = 1
    """Of a worker."""
    speed: float = 1.0
    """Of those that are slow, against a healthy worker."""
    held: RollbackCosts = field(default_factory=RollbackCosts)
    pool: SpareCapacity = field(default_factory=SpareCapacity)
    costs: MachineCosts = field(default_factory=MachineCosts)
    detect_s: float = 0.026
    """Since the failure, until it was known: 21-31 ms for an exit on the machine of ``failure_cost.MEASURED``."""
    warm_up_s: float = 0.045
    restart_s: float = 0.0
    """Of the whole job by its scheduler, beyond a cold process: queue, rendezvous of all."""
    able: frozenset[ProgramCapability] = frozenset()
    through_disk: bool = False
    """State goes from one shape to another through a checkpoint, and all start again; else from worker to worker."""

    def __post_init__(self) -> None:
        if len(self.lost) != self.shape.pp:
            raise ValueError(f"lost has {len(self.lost)} entries for {self.shape.pp} stages")
        if min(self.lost) < 0 or not 0 < sum(self.lost) <= self.workers:
            raise ValueError(f"lost names {sum(self.lost)} of {self.workers} workers")
        if max(self.lost) > self.shape.dp:
            raise ValueError(f"lost names {max(self.lost)} workers of a stage that has {self.shape.dp}")
        if self.broken is not None and not max(self.lost) <= self.broken <= min(sum(self.lost), self.shape.dp):
            raise ValueError(f"broken: {sum(self.lost)} workers cannot be of {self.broken} pipelines")
        if not self.slot_s > 0.0 or not self.state_bytes >= 0.0 or self.gpus < 1:
            raise ValueError("step_seconds above 0, state_bytes at least 0 and gpus at least 1")
        if self.layers < self.shape.pp:
            raise ValueError(f"layers: {self.layers} layers do not make {self.shape.pp} stages")
        if not 0.0 < self.speed <= 1.0:
            raise ValueError(f"speed lies above 0 and is at most 1, not {self.speed}")
        if min(self.detect_s, self.warm_up_s, self.restart_s) < 0.0:
            raise ValueError("detect_s, warm_up_s and restart_s must not be negative")

    @property
    def workers(self) -> int:
        return self.shape.dp * self.shape.pp

    @property
    def gone(self) -> int:
        """Workers that are lost, will be, or are slow."""
        return sum(self.lost)

    @property
    def hit(self) -> int:
        """Pipelines that are concerned, at worst."""
        return min(self.gone, self.shape.dp) if self.broken is None else self.broken

    @property
    def left(self) -> int:
        """Workers that continue."""
        return self.workers - self.gone

    @property
    def step_s(self) -> float:
        """One healthy iteration under 1F1B."""
        return self.shape.slots * self.slot_s

    @property
    def model(self) -> LayoutModel:
        """For strategies that change the shape: layers such that today's fullest stage takes today's slot."""
        deepest = -(-self.layers // self.shape.pp)
        return LayoutModel(
            layers=self.layers,
            layer_s=self.slot_s / deepest,
            batch=self.shape.micro_batches * self.shape.dp,
            least=self.pool.least_stages,
        )

    @property
    def job_rate(self) -> float:
        """Failures per second of all workers together."""
        return self.workers * self.odds.worker_rate

    @property
    def move_s(self) -> float:
        """One worker's state over the network and into its tensors."""
        return self.state_bytes / self.costs.net_Bps + self.load_s

    @property
    def load_s(self) -> float:
        return self.state_bytes / self.costs.copy_Bps

    @property
    def read_s(self) -> float:
        """One worker's state from disk, or to it."""
        return self.state_bytes / self.costs.disk_Bps

    @property
    def spawn_s(self) -> float:
        """A process in the place of each lost one."""
        return self.costs.spawn_warm_s if self.pool.standbys >= self.gone else self.costs.spawn_cold_s

    @property
    def reload_s(self) -> float:
        """All start again and read the checkpoint, each worker its own part, all at the same time."""
        return self.restart_s + self.costs.spawn_cold_s + self.read_s

    @property
    def from_disk_s(self) -> float:
        """The same, and what was computed since the checkpoint on disk, if one is there."""
        return self.reload_s + (self.held.disk_s or 0.0)

    @property
    def stop_s(self) -> float:
        """The job stands still: after a failure, or for a change that is planned for the end of a step."""
        return self.down_s() if self.fault in GONE else self.costs.regroup_s + self.warm_up_s

    @property
    def cut_s(self) -> float:
        """Of the step that a failure breaks off, half on average; a planned change waits for its end."""
        return self.step_s / 2.0 if self.fault in GONE else 0.0

    def down_s(self, more_s: float = 0.0) -> float:
        """Seen, fenced, regrouped and warm again, and what a strategy adds to that."""
        return self.detect_s + self.costs.fence_s + self.costs.regroup_s + self.warm_up_s + more_s


def busiest_node_bytes(ranks: Iterable[int], nodes: Sequence[str], state_bytes: Sequence[int]) -> float:
    """What one node has to move at most for ``ranks``: those of one node share its network and memory."""
    moved = Counter[str]()
    for rank in ranks:
        moved[nodes[rank]] += state_bytes[rank]
    return float(max(moved.values()))
