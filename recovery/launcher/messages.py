"""Every message between worker, launcher and coordinator: tagged unions, checked while decoding, no pickle.

Worker and launcher speak over a Unix socket that keeps message boundaries (SOCK_SEQPACKET), so a message is sent whole
or not at all. Launcher and coordinator speak over TCP with a 4-byte little-endian length before each message; the first
one is ``LauncherHello`` with the job's token.

An **epoch** is a number of committed steps: epoch 7 is the state after seven steps, and its step record is number 7.
"""

from __future__ import annotations

import msgspec

from probes.words import StepPhase
from recovery.agent.messages import GroupMember, Inventory
from recovery.launcher.rehearsal import Rehearsal, RehearsalRun
from recovery.plan import RestoreSource

MAX_MESSAGE_BYTES = 1024 * 1024


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag=True):
    """Base of everything on these wires; the tag is the class name."""


# Worker -> launcher


class WorkerHello(Message, frozen=True):
    """First on a worker's connection: torch is imported, the process can take a rank."""

    token: str
    pid: int


class Joined(Message, frozen=True):
    """The script called ``init``: this process wants to be part of ``generation`` and holds no live state."""

    generation: int
    dp: int
    pp: int
    tp: int


class Attached(Message, frozen=True):
    """Model and optimizer are known. ``protected`` is False when no agent memory could be had; ``reason`` says why."""

    state_bytes: int
    slots: int
    protected: bool
    reason: str = ""


class Ready(Message, frozen=True):
    """A survivor is out of all collectives of earlier generations and waits for ``generation`` to form."""

    generation: int
    live_epoch: int | None
    """Epoch that its own tensors hold, None when an update was cut in half."""
    newest_epoch: int
    """The last epoch that it saw committed."""


class Resumed(Message, frozen=True):
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


class StepRecord(Message, frozen=True):
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
    signals: dict[str, float] = {}
    """Other signals of source rank by name, where the rank measured them; NaN is not sent."""


class Progress(Message, frozen=True):
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


class Transfers(Message, frozen=True):
    """What a rank received from its peers in one committed step."""

    generation: int
    epoch: int
    end_ns: int
    seconds: dict[int, float]
    """Sending rank -> median seconds of its transfers, without the time in which the sender was not ready."""
    nbytes: dict[int, float]


class Trouble(Message, frozen=True):
    """A collective of ``generation`` failed here; nobody has told this rank why yet."""

    generation: int
    reason: str


class StepsTotal(Message, frozen=True):
    total: int


class Replayed(Message, frozen=True):
    """The rank has made the steps of its ``Rehearsal`` again and waits for the next fence; or why it could not."""

    generation: int
    seconds: float
    runs: tuple[RehearsalRun, ...] = ()
    reason: str = ""


class Done(Message, frozen=True):
    """All steps are committed and the last snapshot is safe."""

    epoch: int


class ScriptFailed(Message, frozen=True):
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
    | Progress
    | Transfers
    | Trouble
    | StepsTotal
    | Replayed
    | Done
    | ScriptFailed
)

# Launcher -> worker


class Assign(Message, frozen=True):
    """Become ``rank``: set ``env``, then run the script."""

    rank: int
    generation: int
    env: dict[str, str]
    script: str
    module: bool
    argv: tuple[str, ...]
    agent_socket: str
    agent_token: str
    job: str


class Fence(Message, frozen=True):
    """Generations below ``generation`` are over: leave every collective, then say ``Ready``."""

    generation: int


class RestoreOrder(Message, frozen=True):
    """Where this rank's state at ``epoch`` comes from; the rank asks its own agent for it."""

    epoch: int
    source: RestoreSource
    from_rank: int | None = None
    endpoint: str | None = None
    """``host:port`` of the agent that holds ``from_rank``'s slot."""
    group: tuple[GroupMember, ...] = ()
    directory: str | None = None


class Regroup(Message, frozen=True):
    """Form ``generation`` through the store; then restore, where there is something to restore."""

    generation: int
    store_host: str
    store_port: int
    restore: RestoreOrder | None = None
    digest_steps: int = 0
    """How many of the next step records carry a digest of the parameters."""
    rehearsal: Rehearsal | None = None
    """Restore, and then only replay."""


class AgentBack(Message, frozen=True):
    """Another agent serves this node now; its memory may be another too."""


ToWorker = Assign | Fence | Regroup | AgentBack

# Launcher -> coordinator


class LauncherHello(Message, frozen=True):
    """First on a launcher's connection. A wrong token closes it."""

    token: str
    job: str
    node: str
    node_rank: int
    nnodes: int
    nproc: int
    spares: int
    standbys: int
    pid: int
    agent_endpoint: str
    """``host:port`` where other nodes' agents reach this node's; empty while the agent is starting."""


class AgentUp(Message, frozen=True):
    endpoint: str


class WorkerUp(Message, frozen=True):
    """``rank`` was given to process ``pid``."""

    rank: int
    pid: int


class Exited(Message, frozen=True):
    """A process that held ``rank`` is gone and reaped."""

    rank: int
    pid: int
    exit_code: int | None
    signal: int | None
    expected: bool
    """The launcher itself ended it."""
    time: float
    tail: tuple[str, ...] = ()
    """The last lines that it wrote, on either stream."""
    stderr: tuple[str, ...] = ()
    """The last of those on stderr: a loop that prints much does not push a traceback out of these."""
    out_of_memory: bool = False
    """The kernel counted a process of this launcher's control group as killed for memory, just before."""
    peak_bytes: int | None = None
    """The most memory that it had."""


class StandbysReady(Message, frozen=True):
    count: int


class Fenced(Message, frozen=True):
    """Everything of this node below ``generation`` is fenced; what its agent holds."""

    generation: int
    inventory: Inventory | None
    reason: str = ""


class FromRank(Message, frozen=True):
    rank: int
    pid: int
    message: FromWorker


class NodeProgress(Message, frozen=True):
    """The newest ``Progress`` of each rank of this node since the last such message."""

    rows: bytes
    """Packed as ``recovery.launcher.progress.ROW``: at 16,384 ranks two of these a second are 32,768 words."""


class ThreadStack(msgspec.Struct, frozen=True, kw_only=True):
    thread: str
    frames: tuple[str, ...]
    """Innermost first: ``function (file:line)``."""


class Stacks(Message, frozen=True):
    """Answer to ``DumpStacks`` for one rank."""

    request: int
    rank: int
    pid: int
    tool: str
    """``py-spy`` and its version; empty when there is none here."""
    stacks: tuple[ThreadStack, ...] = ()
    problem: str = ""
    """Why there are none."""
    state: str = ""
    """What the kernel says of the process: ``stopped``, ``sleeping``, ``in the kernel, not to be interrupted``."""


class Heartbeat(Message, frozen=True):
    pass


FromLauncher = (
    LauncherHello | AgentUp | WorkerUp | Exited | StandbysReady | Fenced | FromRank | NodeProgress | Stacks | Heartbeat
)

# Coordinator -> launcher


class Welcome(Message, frozen=True):
    """Accepted: the job has ``world_size`` ranks."""

    world_size: int


class Start(Message, frozen=True):
    """Give ``rank`` to a standby, or to a new process where none is warm. The store is where its script finds peers."""

    rank: int
    generation: int
    store_host: str
    store_port: int


class FenceNode(Message, frozen=True):
    """Revoke what is older than ``generation``: end the processes of ``kill``, then the agent, then the other ranks."""

    generation: int
    kill: tuple[int, ...] = ()
    shun: tuple[int, ...] = ()
    """Of these the devices compute wrongly: whoever comes next gets another one, while there is one."""


class RegroupRank(Message, frozen=True):
    rank: int
    order: Regroup


class Parity(Message, frozen=True):
    """The parity group that this node's agent belongs to; empty for none."""

    group: tuple[GroupMember, ...]
    every: int


class DiscardAfter(Message, frozen=True):
    epoch: int


class Training(Message, frozen=True):
    """Training goes on: now is the time to warm new standbys."""


class DumpStacks(Message, frozen=True):
    """Say what the threads of these ranks are doing: they hang, or are to be compared with some that do."""

    request: int
    ranks: tuple[int, ...]


class Stop(Message, frozen=True):
    """The job is over for this node."""

    exit_code: int
    reason: str


class Nothing(Message, frozen=True):
    """Heartbeat of the coordinator."""


ToLauncher = Welcome | Start | FenceNode | RegroupRank | Parity | DiscardAfter | Training | DumpStacks | Stop | Nothing
