"""Every message between launcher and coordinator: tagged unions, checked while decoding, no pickle.

They speak over TCP with a 4-byte little-endian length before each message; the first one is ``LauncherHello`` with the
job's token. What ranks say travels inside ``FromRank``; see ``worker_messages``.
"""

from __future__ import annotations

import msgspec

from recovery.agent.messages import Group, Inventory
from recovery.disk.manifest import DiskConfig
from recovery.launcher.legacy import Testament
from recovery.launcher.worker_messages import FromWorker, Message, Regroup

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
    domain: str = ""
    """What this node fails together with (rack, power); empty: unknown."""
    door: str = ""
    """``host:port`` where other launchers reach this one; see ``succession``."""


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


class Dying(Message, frozen=True):
    """A process that holds ``rank`` is being ended by a signal; how it ended is told when it is reaped."""

    rank: int
    pid: int
    signal: int
    time: float


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


class Saved(Message, frozen=True):
    """Answer to ``SaveDisk``; ``problem`` is empty when all was written."""

    epoch: int
    problem: str = ""


class Brought(Message, frozen=True):
    """Answer to ``Bring``."""

    rank: int
    epoch: int
    nbytes: int = 0
    seconds: float = 0.0
    problem: str = ""
    """Why the slot is not here; empty: it is, with the digest that it has there."""


class Heartbeat(Message, frozen=True):
    """Answer to the coordinator's ``Nothing`` of that number."""

    beat: int = 0


class RankWords(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a launcher knows of one rank."""

    rank: int
    pid: int | None
    """None: a process for it is on its way."""
    words: tuple[FromWorker, ...] = ()
    """What it said last, of each kind that a coordinator remembers."""
    exited: Exited | None = None


class Ledger(Message, frozen=True):
    """Follows the hello to a coordinator that has taken over: all ranks of this node."""

    ranks: tuple[RankWords, ...]


FromLauncher = (
    LauncherHello
    | AgentUp
    | WorkerUp
    | Dying
    | Exited
    | StandbysReady
    | Fenced
    | FromRank
    | NodeProgress
    | Stacks
    | Saved
    | Brought
    | Heartbeat
    | Ledger
)

# Coordinator -> launcher


class Welcome(Message, frozen=True):
    """Accepted: the job has ``world_size`` ranks."""

    world_size: int
    run: str = ""
    """Id of this start of the job."""


class Start(Message, frozen=True):
    """Give ``rank`` to a standby, or to a new process where none is warm. The store is where its script finds peers."""

    rank: int
    generation: int
    store_host: str
    store_port: int
    dp: int = 0
    """Data-parallel size that the script is told; 0: none."""
    pp: int = 0
    depths: tuple[int, ...] = ()
    """Stages of each pipeline where they are unlike."""
    world_size: int = 0
    """Ranks of the job now; 0: as it was welcomed."""


class FenceNode(Message, frozen=True):
    """Revoke what is older than ``generation``: end the processes of ``kill``, then the agent, then the other ranks."""

    generation: int
    kill: tuple[int, ...] = ()
    shun: tuple[int, ...] = ()
    """Of these the devices compute wrongly: whoever comes next gets another one, while there is one."""
    last: bool = False
    """The job ends: what its agents hold is saved, then everybody is told to stop."""


class RegroupRank(Message, frozen=True):
    rank: int
    order: Regroup


class Parity(Message, frozen=True):
    """The groups that protect the job's ranks; see ``recovery.agent.messages.ConfigureParity``."""

    groups: tuple[Group, ...]
    every: int
    scheme: str
    wards: Group = ()


class DiscardAfter(Message, frozen=True):
    epoch: int


class Disk(Message, frozen=True):
    """Which run the node's agent writes checkpoints for, and how."""

    config: DiskConfig


class SaveDisk(Message, frozen=True):
    """The job ends: write this epoch of every rank here, then say ``Saved``."""

    epoch: int
    copies: tuple[int, ...] = ()
    """And of these ranks of lost nodes, whose copies are kept here."""


class Bring(Message, frozen=True):
    """``rank`` may move here: have the agent fetch its slot of ``epoch`` from the agent at ``endpoint``."""

    rank: int
    epoch: int
    """``recovery.agent.messages.NEWEST``: whichever is newest there."""
    endpoint: str


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
    """Heartbeat of the coordinator. What one has heard of the other's beats says how long both may go on."""

    beat: int = 0
    heard: int = 0
    """The newest beat that this launcher has answered."""


class Legacy(Message, frozen=True):
    """What is to be known when the coordinator dies."""

    term: int
    holder: str
    """Its node."""
    door: str
    """Of its launcher."""
    testament: Testament | None
    """None for a launcher that is no heir."""


ToLauncher = (
    Welcome
    | Start
    | FenceNode
    | RegroupRank
    | Parity
    | DiscardAfter
    | Disk
    | SaveDisk
    | Bring
    | Training
    | DumpStacks
    | Stop
    | Nothing
    | Legacy
)
