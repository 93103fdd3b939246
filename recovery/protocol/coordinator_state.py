"""What a coordinator replicates so that another launcher can continue the job.

Ranks know their own state, and their launchers what they said last (``rank_report_cache``); what only the coordinator
knows stands here. It is sent before every order that follows from it, on the same connection.
"""

from __future__ import annotations

from typing import Final

import msgspec

from mainstay.recovery.agent.messages import Group
from mainstay.recovery.calibration import PredictionAccuracy
from mainstay.recovery.mesh_shape import MeshShape
from mainstay.recovery.node_warning import NodeWarnings
from mainstay.recovery.recovery_plan import RecoveryStrategyName
from mainstay.recovery.work_assignment import LossPolicy

CANDIDATES: Final = 16
"""Launchers with a copy of the state, in order of node rank: at 2,048 nodes it has 300 KB, and every recovery sends
it again. The others vote, and follow."""


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Part of the state, named field by field."""


class ElectionMember(_Record, frozen=True):
    """One launcher of the job."""

    node: str
    node_rank: int
    nproc: int
    spares: int
    pid: int
    election_endpoint: str
    """``host:port`` where other launchers reach it."""
    agent_endpoint: str
    domain: str
    excluded: int
    alive: bool
    """The coordinator has not lost it."""


class CoordinatorState(_Record, frozen=True):
    """The job as the coordinator of ``term`` knew it. Of two, the one with the higher (term, version) is newer."""

    term: int
    version: int
    generation: int
    electors: tuple[ElectionMember, ...]
    homes: tuple[int, ...]
    """Rank -> index of its node in ``electors``."""
    recoveries: int
    started_at: float
    formed_once: bool
    returns: tuple[tuple[int, int], ...]
    """See ``rollback_history``."""
    parameters_equal: bool
    replicated: bool | None
    groups: tuple[Group, ...]
    run: str
    """See ``checkpointing``."""
    resumed: str | None
    """The run that this one continues from."""
    disk_every: int
    parity_every: int
    on_loss: LossPolicy | None = None
    """As a request has changed it; None: as the job was started."""
    begun_at: int = 0
    """The step of ``resumed``."""
    shape: MeshShape | None = None
    """Of the job, once its script has said it: no rank that knows may be left."""
    warnings: NodeWarnings = msgspec.field(default_factory=NodeWarnings)
    prices: dict[str, tuple[int, float]] = {}
    """What recoveries cost: see ``measured_costs``."""
    accuracy: dict[RecoveryStrategyName, PredictionAccuracy] = {}
    """How accurate their predictions were: see ``mainstay.recovery.calibration``."""

    @property
    def age(self) -> tuple[int, int]:
        return self.term, self.version
