"""Every message between a rank's process and its launcher: tagged unions, checked while decoding, no pickle.

They speak over a Unix socket that keeps message boundaries (SOCK_SEQPACKET), so a message is sent whole or not at all.

An **epoch** is a number of committed steps: epoch 7 is the state after seven steps, and its step record is number 7.
"""

from __future__ import annotations

import msgspec

from mainstay.probes.core_types import StepPhase
from mainstay.recovery.agent.messages import GatherParts, GroupMember, LoadDisk
from mainstay.recovery.protocol.step_replay_messages import StepReplayRepeat, StepReplayRequest
from mainstay.recovery.recovery_plan import RestoreSource
from mainstay.recovery.work_assignment import WorkAssignment

MAX_MESSAGE_BYTES = 1024 * 1024


class WorkerMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag=True):
    """Base of everything on these wires; the tag is the class name."""


# Worker -> launcher


class WorkerHello(WorkerMessage, frozen=True):
    """First on a worker's connection: torch is imported, the process can take a rank."""

    token: str
    pid: int


class Joined(WorkerMessage, frozen=True):
    """The script called ``init``: this process wants to be part of ``generation`` and holds no live state."""

    generation: int
    dp: int
    pp: int
    tp: int
    depths: tuple[int, ...] = ()
    """Stages of each pipeline where they are unlike."""


class Attached(WorkerMessage, frozen=True):
    """Model and optimizer are known. ``protected`` is False when no agent memory could be had; ``reason`` says why."""

    state_bytes: int
    slots: int
    protected: bool
    reason: str = ""
    adapts: bool = False
    """Started again in another (dp, pp), the script takes it from its environment, and its tensors from any stage."""
    cuts: bool = False
    """The script says how it cuts tensors among tensor-parallel ranks: it can be started with another tp too."""


class Ready(WorkerMessage, frozen=True):
    """A survivor is out of all collectives of earlier generations and waits for ``generation`` to form."""

    generation: int
    live_epoch: int | None
    """Epoch that its own tensors hold, None when an update was cut in half."""
    newest_epoch: int
    """The last epoch that it saw committed."""


class Resumed(WorkerMessage, frozen=True):
    """The rank's vote after a regroup: its state is at ``epoch``, or why not."""

    generation: int
    epoch: int
    source: RestoreSource | None
    """None at the first start, when there is nothing to restore."""
    seconds: float
    """Time that its restore took."""
    nbytes: int
    ok: bool
    reason: str = ""
    digest: int | None = None
    """Of its parameters then; None at the first start and where nothing was restored."""
    blame: int | None = None
    """The replica whose part could not be had, where that and not the rank's own source failed."""
    damaged: bool = False
    """A file of the step on disk is."""


class StepRecord(WorkerMessage, frozen=True):
    """One committed step of one rank."""

    generation: int
    epoch: int
    step_time: float
    compute_time: float
    snapshot_blocked: float
    end_ns: int
    loss: float | None = None
    digest: int | None = None
    """xxh3_64 of the parameters, only in the first steps of a generation."""
    buffers: int | None = None
    """The same of the buffers."""
    optimizer: int | None = None
    """A digest of the optimizer's tensors, and of names, shapes, and places of all tensors; likewise."""
    micro_batches: int = 0
    """That the rank was assigned for it; 0: its script does not ask."""
    routed: bool = False
    """Its script asks with whom to exchange each of them, so that a lost rank's can go to another rank."""
    signals: dict[str, float] = {}
    """Other signals of source rank by name, where the rank measured them; NaN is not sent."""


class ProgressReport(WorkerMessage, frozen=True):
    """What a rank is doing, told by a thread that does not wait for the training thread."""

    generation: int
    time_ns: int
    """Unix time."""
    step: int
    """Steps committed."""
    phase: StepPhase
    in_call: float
    """Seconds that the training thread has been inside its present collective or point-to-point call; 0: in none."""
    call: str = ""
    """Its name and group, ``all_reduce dp``."""
    enqueued: dict[str, int] = {}
    """Kind of group -> collectives begun in it."""
    completed: dict[str, int] = {}


class Transfers(WorkerMessage, frozen=True):
    """What a rank received from its peers in one committed step."""

    generation: int
    epoch: int
    end_ns: int
    seconds: dict[int, float]
    """Sending rank -> median seconds of its transfers, without the time in which the sender was not ready."""
    nbytes: dict[int, float]


class CollectiveFailed(WorkerMessage, frozen=True):
    """A collective of ``generation`` failed here; this rank has no reason for it yet."""

    generation: int
    reason: str


class StepFailed(WorkerMessage, frozen=True):
    """A step raised what its script calls transient. The process lives, and waits for the fence to make it again."""

    generation: int
    error: str


class StepsTotal(WorkerMessage, frozen=True):
    total: int


class Replayed(WorkerMessage, frozen=True):
    """The rank has repeated the steps of its ``StepReplayRequest`` and waits for the next fence; or why not."""

    generation: int
    seconds: float
    runs: tuple[StepReplayRepeat, ...] = ()
    reason: str = ""


class FlightRecorderDump(WorkerMessage, frozen=True):
    """Answer to ``DumpFlightRecorder``: which collectives the rank has entered and left."""

    request: int
    content: bytes
    """JSON as torch writes it, compressed by zlib."""
    problem: str = ""
    """Why there is none."""


class SpeedMeasured(WorkerMessage, frozen=True):
    """Answer to ``MeasureSpeed``."""

    request: int
    seconds: dict[str, float] = {}
    """Kernel -> seconds that one call takes."""
    problem: str = ""
    """Why there is no result."""


class RankDone(WorkerMessage, frozen=True):
    """All steps are committed and the last snapshot is safe."""

    epoch: int


class ScriptFailed(WorkerMessage, frozen=True):
    """The script raised an exception of its own. The process ends after this."""

    error: str
    traceback: str


FromWorker = (
    WorkerHello
    | Joined
    | Attached
    | Ready
    | Resumed
    | StepRecord
    | ProgressReport
    | Transfers
    | CollectiveFailed
    | StepFailed
    | StepsTotal
    | Replayed
    | FlightRecorderDump
    | SpeedMeasured
    | RankDone
    | ScriptFailed
)

# Launcher -> worker


class Assign(WorkerMessage, frozen=True):
    """Become ``rank``: set ``env``, then run the script."""

    rank: int
    generation: int
    env: dict[str, str]
    script: str
    module: bool
    argv: tuple[str, ...]
    agent_socket: str
    job: str
    snapshot_certificate: str = ""
    """PEM of what this rank shows to agents of other nodes; empty: it reads from none."""
    shard_snapshots: bool = False
    """Save only this rank's part of what its data-parallel replicas hold alike."""


class FenceRank(WorkerMessage, frozen=True):
    """Generations below ``generation`` are over: leave every collective, then say ``Ready``."""

    generation: int


class Shard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where another replica's slot lies in a job that saves in shards."""

    rank: int
    endpoint: str
    """``host:port`` of the agent of the node where that rank runs."""


class RestoreOrder(WorkerMessage, frozen=True):
    """Where this rank's state at ``epoch`` comes from; the rank asks its own agent for it."""

    epoch: int
    source: RestoreSource
    from_rank: int | None = None
    endpoint: str | None = None
    """``host:port`` of the agent that holds ``from_rank``'s slot."""
    group: tuple[GroupMember, ...] = ()
    """Of its parity; or, from disk, one rank of each node that reads the same."""
    cut: bool = False
    """The step on disk is cut among data-parallel ranks: ``group`` reads the same only if its ranks are not."""
    directory: str | None = None
    run: str = ""
    """Which run in ``directory``, whose rank ``from_rank`` (None: the same)."""
    upload: str = ""
    """URL of the upload level, where ``directory`` takes what a rank needs from there; empty: all is there."""
    part: int = 0
    """Generation of the part there; 0: the newest."""
    parts: tuple[tuple[int, int], ...] = ()
    """(rank, generation) of the parts that its tensors lie in, where they were saved with other pipeline stages."""
    shards: tuple[Shard, ...] = ()
    """The other replicas, where each saves only its part."""
    holders: tuple[GroupMember, ...] = ()
    """See ``LoadDisk``."""

    def disk_request(self, rank: int, *, open_first: bool = False, gather: GatherParts | None = None) -> LoadDisk:
        """What the agent of ``rank`` is asked for, where the source is the disk; see ``AgentClient.load``."""
        return LoadDisk(
            rank=rank,
            epoch=self.epoch,
            directory=self.directory or "",
            run=self.run,
            from_rank=self.from_rank,
            generation=self.part,
            group=() if self.cut and gather is None else self.group,
            open=open_first,
            gather=gather,
            holders=self.holders,
        )


class Regroup(WorkerMessage, frozen=True):
    """Form ``generation`` through the store; then restore, where there is something to restore."""

    generation: int
    store_host: str
    store_port: int
    restore: RestoreOrder | None = None
    digest_steps: int = 0
    """How many of the next step records carry a digest of the parameters."""
    replay_request: StepReplayRequest | None = None
    """Restore, and then only replay."""
    assignment: WorkAssignment | None = None
    """Who takes part, and who computes what; None: all replicas, alike."""


class AgentRestarted(WorkerMessage, frozen=True):
    """Another agent serves this node now; its memory may be another too."""


class DumpFlightRecorder(WorkerMessage, frozen=True):
    """Answer with what torch has recorded of this rank's collectives: the job hangs."""

    request: int


class MeasureSpeed(WorkerMessage, frozen=True):
    """After the present step, measure how long some kernels take; then train on."""

    request: int


ToWorker = Assign | FenceRank | Regroup | AgentRestarted | DumpFlightRecorder | MeasureSpeed
