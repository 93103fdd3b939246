"""Every message between launcher and coordinator: tagged unions, checked while decoding, no pickle.

They speak over TCP with a 4-byte little-endian length before each message; the first one is ``LauncherHello`` with the
job's token. What ranks say travels inside ``FromRank``; see ``worker_messages``.
"""

from __future__ import annotations

from typing import Final

import msgspec

from mainstay.detectors.localize.model import DeviceCheck
from mainstay.probes.benchmarks.pair_protocol import PairTask
from mainstay.probes.benchmarks.result import BenchmarkResult
from mainstay.recovery.agent.messages import Group, Inventory
from mainstay.recovery.checkpoint.listed_files import RunOnDisk
from mainstay.recovery.checkpoint.manifest import DiskConfig
from mainstay.recovery.protocol.coordinator_state import CoordinatorState
from mainstay.recovery.protocol.worker_messages import FromWorker, Regroup, RestoreOrder, WorkerMessage

# Launcher -> coordinator

DUMP_SECONDS: Final = 4.0
"""For the stacks of one rank. A dump takes 10 to 50 ms; on a starved machine, a second."""
DEBUGGED: Final = "stopped by a debugger"
"""The state of such a process in ``Stacks``."""


class FromLauncher(WorkerMessage, frozen=True):
    """Launcher to coordinator: each class that derives from this one."""


class LauncherHello(FromLauncher, frozen=True):
    """First on a launcher's connection."""

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
    election_endpoint: str = ""
    """``host:port`` where other launchers reach this one; see ``coordinator_election``."""
    spare_nodes: int = 0
    """Nodes beyond ``nnodes`` that the job may have."""
    runs: tuple[RunOnDisk, ...] = ()
    """What its disk has of runs that the job may continue from."""


class AgentUp(FromLauncher, frozen=True):
    endpoint: str


class WorkerUp(FromLauncher, frozen=True):
    """``rank`` was given to process ``pid``."""

    rank: int
    pid: int


class Exited(FromLauncher, frozen=True):
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


class Dying(FromLauncher, frozen=True):
    """A process that holds ``rank`` is being ended by a signal; its end is reported when it is reaped."""

    rank: int
    pid: int
    signal: int
    time: float


class StandbysReady(FromLauncher, frozen=True):
    count: int


class Fenced(FromLauncher, frozen=True):
    """Everything of this node below ``generation`` is fenced; what its agent holds."""

    generation: int
    inventory: Inventory | None
    reason: str = ""


class FromRank(FromLauncher, frozen=True):
    rank: int
    pid: int
    message: FromWorker


class NodeProgress(FromLauncher, frozen=True):
    """The newest ``ProgressReport`` of each rank of this node since the last such message."""

    rows: bytes
    """Packed as ``telemetry.progress.ROW``: at 16,384 ranks two of these a second are 32,768 words."""


class ThreadStack(msgspec.Struct, frozen=True, kw_only=True):
    thread: str
    frames: tuple[str, ...]
    """Innermost first: ``function (file:line)``."""


class Stacks(FromLauncher, frozen=True):
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


class Saved(FromLauncher, frozen=True):
    """Answer to ``SaveCheckpointCommand``; ``problem`` is empty when all was written."""

    epoch: int
    problem: str = ""


class PrefetchResult(FromLauncher, frozen=True):
    """Answer to ``Prefetch``."""

    rank: int
    epoch: int
    nbytes: int = 0
    seconds: float = 0.0
    problem: str = ""
    """Why the slot is not here; empty: it is, with the digest that it has there."""


class NodeChecked(FromLauncher, frozen=True):
    """Answer to ``CheckNode``: the devices, or one side of the pair; before that, the port of the side that listens."""

    request: int
    port: int = 0
    devices: tuple[DeviceCheck, ...] = ()
    pair: BenchmarkResult | None = None
    problem: str = ""
    """Why there is no more."""


class LauncherHeartbeat(FromLauncher, frozen=True):
    """Answer to the coordinator's ``CoordinatorHeartbeat`` of that number."""

    sequence: int = 0


class RankReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a launcher knows of one rank."""

    rank: int
    pid: int | None
    """None: a process for it is on its way."""
    words: tuple[FromWorker, ...] = ()
    """What it said last, of each kind that a coordinator remembers."""
    exited: Exited | None = None


class RankReports(FromLauncher, frozen=True):
    """Follows the hello to a coordinator that has taken over: all ranks of this node."""

    ranks: tuple[RankReport, ...]


# Coordinator -> launcher


class ToLauncher(WorkerMessage, frozen=True):
    """Coordinator to launcher: each class that derives from this one."""


class LauncherWelcome(ToLauncher, frozen=True):
    """Accepted: the job has ``world_size`` ranks."""

    world_size: int
    run: str = ""
    """Id of this start of the job."""


class StartRank(ToLauncher, frozen=True):
    """Give ``rank`` to a standby, or to a new process where none is warm. The store is where its script finds peers."""

    rank: int
    generation: int
    store_host: str
    store_port: int
    dp: int = 0
    """Data-parallel size passed to the script; 0: none."""
    pp: int = 0
    tp: int = 0
    """0: as many tensor-parallel ranks as the script says."""
    depths: tuple[int, ...] = ()
    """Stages of each pipeline where they are unlike."""
    world_size: int = 0
    """Ranks of the job now; 0: as it was welcomed."""


class FenceNode(ToLauncher, frozen=True):
    """Revoke what is older than ``generation``: end the processes of ``kill``, then the agent, then the other ranks."""

    generation: int
    kill: tuple[int, ...] = ()
    exclude: tuple[int, ...] = ()
    """Of these the devices compute wrongly: whoever comes next gets another one, while there is one."""
    last: bool = False
    """The job ends: what its agents hold is saved, then every launcher stops."""


class RegroupRank(ToLauncher, frozen=True):
    rank: int
    order: Regroup


class ConfigureJobParity(ToLauncher, frozen=True):
    """The groups that protect the job's ranks; see ``mainstay.recovery.agent.messages.ConfigureParity``."""

    groups: tuple[Group, ...]
    every: int
    scheme: str
    extra_copies: Group = ()


class DiscardCommand(ToLauncher, frozen=True):
    epoch: int


class ConfigureCheckpoint(ToLauncher, frozen=True):
    """Which run the node's agent writes checkpoints for, and how."""

    config: DiskConfig


class SaveCheckpointCommand(ToLauncher, frozen=True):
    """The job ends: write this epoch of every rank here, then say ``Saved``."""

    epoch: int
    copies: tuple[int, ...] = ()
    """And of these ranks of lost nodes, whose copies are kept here."""


class Prefetch(ToLauncher, frozen=True):
    """``rank`` may move here: have the agent fetch its slot of ``epoch`` from the agent at ``endpoint``."""

    rank: int
    epoch: int
    """``mainstay.recovery.agent.messages.NEWEST``: whichever is newest there."""
    endpoint: str


class PrefetchCheckpoint(ToLauncher, frozen=True):
    """``rank`` starts here: have the agent read meanwhile what it will restore first."""

    rank: int
    order: RestoreOrder


class TrainingResumed(ToLauncher, frozen=True):
    """Training continues: now is the time to warm new standbys."""


class DumpStacks(ToLauncher, frozen=True):
    """Say what the threads of these ranks are doing: they hang, or are to be compared with some that do."""

    request: int
    ranks: tuple[int, ...]


class DumpFlightRecorders(ToLauncher, frozen=True):
    """Have these ranks answer with their flight recorders (``FlightRecorderDump``)."""

    request: int
    ranks: tuple[int, ...]


class MeasureSpeeds(ToLauncher, frozen=True):
    """Have these ranks answer with their speeds (``SpeedMeasured``)."""

    request: int
    ranks: tuple[int, ...]


class CheckNode(ToLauncher, frozen=True):
    """Check the devices of this node, or measure one side of a pair; no rank runs here."""

    request: int
    pair: PairTask | None = None
    """None: check the devices."""


class StopJob(ToLauncher, frozen=True):
    """The job is over for this node."""

    exit_code: int
    reason: str


class CoordinatorHeartbeat(ToLauncher, frozen=True):
    """Heartbeat of the coordinator. What one has heard of the other's beats says how long both may continue."""

    sequence: int = 0
    heard: int = 0
    """The newest beat that this launcher has answered."""


class ReplicateState(ToLauncher, frozen=True):
    """What is to be known when the coordinator dies."""

    term: int
    holder: str
    """Its node."""
    election_endpoint: str
    """Of its launcher."""
    coordinator_state: CoordinatorState | None
    """None for a launcher that is no candidate."""
