"""What can happen to the state of a job: what launchers and ranks say, and what the coordinator has decided.

An event holds all that ``reducer`` needs, so that a recording of them says how a job came to its state. Whoever decides
looks at the state first: an event is always carried out.
"""

from __future__ import annotations

import msgspec

from mainstay.recovery.agent.messages import Group
from mainstay.recovery.controller.state.job_state import JobPhase
from mainstay.recovery.mesh_shape import MeshShape
from mainstay.recovery.node_warning import NodeWarnings
from mainstay.recovery.protocol.coordinator_state import CoordinatorState
from mainstay.recovery.protocol.messages import AgentUp, Fenced, LauncherHello, RankReport, StandbysReady, WorkerUp
from mainstay.recovery.protocol.worker_messages import (
    Attached,
    CollectiveFailed,
    Joined,
    RankDone,
    Ready,
    Resumed,
    ScriptFailed,
    StepRecord,
    StepsTotal,
)
from mainstay.recovery.work_assignment import LossPolicy

RankMessage = Joined | Attached | Ready | Resumed | StepRecord | CollectiveFailed | StepsTotal | RankDone | ScriptFailed
"""What a rank says that belongs to the state of the job."""


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    pass


# Nodes


class NodeJoined(_Event, frozen=True):
    """A launcher is part of the job from now on."""

    hello: LauncherHello


class NodeLost(_Event, frozen=True):
    node: str
    reason: str


class NodeForgotten(_Event, frozen=True):
    """A lost node counts no more: others have taken its place, or the job had not formed yet."""

    node: str


class LauncherMessageReceived(_Event, frozen=True):
    node: str
    message: AgentUp | Fenced | StandbysReady | WorkerUp


class WarningsChanged(_Event, frozen=True):
    """Which nodes are not trusted."""

    warnings: NodeWarnings


# Ranks


class RankMessageReceived(_Event, frozen=True):
    """By the process that holds the rank."""

    rank: int
    message: RankMessage
    at: float
    """Unix seconds."""


class ProcessEnded(_Event, frozen=True):
    """The rank's process is being killed, or has ended."""

    rank: int


class RankFinished(_Event, frozen=True):
    """The rank's process has ended well."""

    rank: int


class RanksLost(_Event, frozen=True):
    """The ranks' processes are gone, or must go."""

    ranks: tuple[int, ...]


class RanksAssigned(_Event, frozen=True):
    """The job begins: rank -> node."""

    homes: tuple[str, ...]
    started_at: float


class RanksUnplaced(_Event, frozen=True):
    """These ranks, and no others, have no place to run."""

    ranks: tuple[int, ...]


class RankStarted(_Event, frozen=True):
    """The rank gets a new process on ``node``, while others train."""

    rank: int
    node: str


class ParticipationChosen(_Event, frozen=True):
    """Who takes part in the generation that begins."""

    ranks: tuple[int, ...] | None
    """None: all."""


# Generations


class GenerationBegun(_Event, frozen=True):
    """The generation ends, and the next begins."""

    reason: str


class GenerationFenced(_Event, frozen=True):
    """All leave the old generation. Ranks of ``homes`` get a new process on that node."""

    homes: dict[int, str]
    exclude: tuple[int, ...] = ()
    """Of these ranks: those whose device is not used any more."""


class LastSaveBegun(_Event, frozen=True):
    """Every rank ends, so that what agents hold is saved."""


class ShapeChanged(_Event, frozen=True):
    """Every rank ends, and others begin in another shape, in a run of their own: rank -> node."""

    shape: MeshShape
    homes: tuple[str, ...]
    run: str


class TrainingFormed(_Event, frozen=True):
    """Every rank has voted for its epoch."""


class PhaseChanged(_Event, frozen=True):
    phase: JobPhase
    at: float
    """Unix seconds."""


class SavingChanged(_Event, frozen=True):
    """The last save begins or ends."""

    saving: bool


class FailureCounted(_Event, frozen=True):
    """``--max-restarts`` counts one more."""


class StoreOpened(_Event, frozen=True):
    """Ranks meet in another, empty store from now on."""

    host: str
    port: int


# Protection


class GroupsArranged(_Event, frozen=True):
    groups: tuple[Group, ...]


class SettingsChanged(_Event, frozen=True):
    """Settings of the job that may change while it runs; None: as before."""

    disk_every: int | None = None
    """In steps, as ``parity_every``."""
    parity_every: int | None = None
    on_loss: LossPolicy | None = None


class ReplicasCompared(_Event, frozen=True):
    """What digests of the first step say of data-parallel peers."""

    parameters_equal: bool
    replicated: bool


# Takeover


class TakeoverStarted(_Event, frozen=True):
    """This coordinator takes over."""

    state: CoordinatorState
    generation: int
    hellos: tuple[LauncherHello, ...]
    """Of the members of ``state``, as far as they are known."""


class RankReportReceived(_Event, frozen=True):
    """What the launcher of ``node`` knows of a rank."""

    node: str
    report: RankReport
    at: float
    """Unix seconds."""


class NodeReportReceived(_Event, frozen=True):
    """The launcher of ``node`` has told of all its ranks."""

    node: str
    excluded: int


class TakeoverCompleted(_Event, frozen=True):
    """The new coordinator knows what is left."""

    present: tuple[str, ...]
    """Nodes whose launchers have come."""


JobEvent = (
    NodeJoined
    | NodeLost
    | NodeForgotten
    | LauncherMessageReceived
    | WarningsChanged
    | RankMessageReceived
    | ProcessEnded
    | RankFinished
    | RanksLost
    | RanksAssigned
    | RanksUnplaced
    | RankStarted
    | ParticipationChosen
    | GenerationBegun
    | GenerationFenced
    | LastSaveBegun
    | ShapeChanged
    | TrainingFormed
    | PhaseChanged
    | SavingChanged
    | FailureCounted
    | StoreOpened
    | GroupsArranged
    | SettingsChanged
    | ReplicasCompared
    | TakeoverStarted
    | RankReportReceived
    | NodeReportReceived
    | TakeoverCompleted
)
