"""Who is in the job: nodes with their launchers, ranks with their processes. Data and questions about it.

``mainstay.recovery.controller.state.reducer`` is the only module that changes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from mainstay.recovery.agent.messages import Inventory
from mainstay.recovery.mesh_shape import MeshShape
from mainstay.recovery.node_warning import NodeWarnings
from mainstay.recovery.options import RunOptions
from mainstay.recovery.protocol.messages import LauncherHello
from mainstay.recovery.protocol.worker_messages import Attached, Ready, Resumed, ScriptFailed
from mainstay.recovery.work_assignment import LossPolicy


@dataclass(eq=False, slots=True)
class NodeMember:
    """One launcher that said hello."""

    hello: LauncherHello
    endpoint: str
    """Where other agents reach this node's agent."""
    standbys: int
    warm: int = 0
    """Standbys that it had when the last failure came."""
    alive: bool = True
    excluded: int = 0
    """Places whose device is not used any more."""
    fenced: int = 0
    """The newest generation whose fence it has confirmed."""
    inventory: Inventory | None = None

    @property
    def name(self) -> str:
        return self.hello.node

    @property
    def places(self) -> int:
        """Ranks that it has room for."""
        return self.hello.nproc + self.hello.spares - self.excluded


@dataclass(eq=False, slots=True)
class RankMember:
    """One rank and the process that holds it now."""

    number: int
    node: str
    pid: int | None = None
    lost: bool = False
    """Its process is gone, or never was."""
    live: bool = False
    """Its process has a state of its own: it has voted for an epoch since it started."""
    away: int = 0
    """Generation since which the job continues without it; 0: it takes part."""
    unplaced: bool = False
    """It has no place to run: its node is lost, and no other has room."""
    joined: int = 0
    """Generation in which its script called ``init``; 0: not yet."""
    joined_at: float = 0.0
    ready: Ready | None = None
    resumed: Resumed | None = None
    attached: Attached | None = None
    troubled: bool = False
    """A collective of this generation failed on it."""
    error: ScriptFailed | None = None
    done: bool = False
    finished: bool = False
    """Its process has ended well."""
    epoch: int = 0
    """The last epoch that it committed."""
    epoch_generation: int = 0
    digests: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Epoch -> digests of its parameters and of its optimizer, since the last recovery."""
    buffers: dict[int, int] = field(default_factory=dict)
    """Epoch -> digest of its buffers, likewise."""

    @property
    def waits(self) -> bool:
        """It is away, and its process waits for the next generation that it may take part in."""
        here = self.pid is not None and not self.lost
        return bool(self.away) and here and (self.ready is not None or self.joined >= self.away)

    def waits_for(self, generation: int) -> bool:
        """Its process has left what is older than ``generation``, or has none of it, and waits to form it."""
        return self.joined == generation or self.ready is not None

    @property
    def gone(self) -> bool:
        """It has left the training loop for good, and will not take part in a recovery."""
        return self.done or self.finished

    @property
    def state(self) -> str:
        """As a job's topology reports it."""
        if self.lost:
            return "lost"
        return "running" if (self.live or self.finished) and not self.away else "restoring"


class AllRanks:
    """Whether something holds for all ranks, asked after each message of one of them.

    It begins with the rank for which it did not hold the last time: thousands of ranks are not looked at thousands of
    times.
    """

    def __init__(self) -> None:
        self._missing = 0

    def have(self, ranks: Sequence[RankMember], done: Callable[[RankMember], bool]) -> bool:
        """Whether ``done`` holds for each."""
        begin = self._missing if self._missing < len(ranks) else 0
        places = chain(range(begin, len(ranks)), range(begin))
        missing = next((place for place in places if not done(ranks[place])), None)
        self._missing = missing or 0
        return missing is None


class NodesByTrust(NamedTuple):
    """Living nodes by whether they take a rank (decision 51)."""

    trusted: list[NodeMember]
    """Without a warning."""
    last_resort: list[NodeMember]
    """With a warning: they take a rank where no other node has room."""
    cordoned: list[NodeMember]
    """They take none."""


class Members:
    """Nodes and ranks of the job."""

    def __init__(self, nnodes: int, nproc: int, spare_nodes: int = 0) -> None:
        self.nnodes = nnodes
        self.nproc = nproc
        self.spare_nodes = spare_nodes
        self.nodes: dict[str, NodeMember] = {}
        self.ranks: list[RankMember] = []
        self.warnings = NodeWarnings()
        self.shape: MeshShape | None = None
        self.absent: tuple[int, ...] = ()
        """Ranks that are away, rising: every step of every rank asks for them."""

    @property
    def known_shape(self) -> MeshShape:
        """Of a job whose script uses the SDK and has said its shape."""
        assert self.shape is not None
        return self.shape

    @property
    def complete(self) -> bool:
        """Nodes for all ranks are here."""
        return len(self.nodes) >= self.nnodes

    @property
    def occupants(self) -> list[NodeMember]:
        """Nodes whose name and number no other node may have: a lost one gives way only in a job with spare nodes."""
        return self.alive() if self.spare_nodes else list(self.nodes.values())

    @property
    def full(self) -> bool:
        return len(self.occupants) >= self.nnodes + self.spare_nodes

    @property
    def present(self) -> list[RankMember]:
        """Ranks that take part in this generation."""
        return [rank for rank in self.ranks if not rank.away]

    def fixed_shape(self) -> str:
        """Why the script cannot be started in another shape; empty: it can.

        Of a lost rank a coordinator that took over has heard nothing; it runs the script of the others.
        """
        known = [rank for rank in self.ranks if rank.attached or not rank.lost]
        ranks = [rank.number for rank in known if not (rank.attached and rank.attached.adapts)]
        if not ranks:
            return ""
        return (
            f"the script of ranks {ranks} cannot be started in another shape: it must leave dp and pp of mainstay.init "
            "to mainstay run --dp --pp, and give mainstay.attach names="
        )

    def cuts_tensors(self) -> bool:
        """Whether the script says how it cuts tensors among tensor-parallel ranks."""
        return all(rank.attached.cuts for rank in self.ranks if rank.attached)

    def homes(self, count: int) -> tuple[str, ...]:
        """Rank -> node of a job that begins with ``count`` ranks, on nodes that live, in order of node rank.

        Without warnings, ranks are numbered as torchrun numbers them. Places that ``--standbys`` gives are taken
        last, and after them those of nodes with a warning.
        """
        names: list[str] = []
        groups = self.by_trust()
        for nodes in (groups.trusted, groups.last_resort):
            ordered = sorted(nodes, key=lambda node: node.hello.node_rank)
            names += [node.name for node in ordered for _ in range(node.hello.nproc - node.excluded)]
            names += [n.name for n in ordered for _ in range(n.places - max(0, n.hello.nproc - n.excluded))]
        return tuple(names[:count])

    def places(self, *, last_resort: bool = False) -> int:
        """Ranks that living nodes without a warning have room for; ``last_resort``: with those that may take one."""
        groups = self.by_trust()
        return sum(node.places for node in (*groups.trusted, *(groups.last_resort if last_resort else ())))

    def by_trust(self) -> NodesByTrust:
        """Living nodes by what is known of them now."""
        warned, groups = self.warnings.current(), NodesByTrust([], [], [])
        for node in self.alive():
            warning = warned.get(node.name)
            group = groups.trusted if warning is None else groups.cordoned if warning.cordoned else groups.last_resort
            group.append(node)
        return groups

    def held_by(self, number: int, pid: int) -> RankMember | None:
        """Rank ``number``, if process ``pid`` holds it: what a process says that was replaced is not heard."""
        rank = self.ranks[number] if number < len(self.ranks) else None
        return rank if rank is not None and rank.pid == pid else None

    def alive(self) -> list[NodeMember]:
        return [node for node in self.nodes.values() if node.alive]

    def on(self, node: str) -> list[RankMember]:
        return [rank for rank in self.ranks if rank.node == node]

    def alive_with_ranks(self) -> list[tuple[NodeMember, list[RankMember]]]:
        """Living nodes, each with the ranks on it: one look at the ranks for all nodes."""
        here: dict[str, list[RankMember]] = {}
        for rank in self.ranks:
            here.setdefault(rank.node, []).append(rank)
        return [(node, here.get(node.name, [])) for node in self.alive()]

    def can_run(self, node: str) -> bool:
        """Whether a rank may get a process there, if only as a last resort."""
        warning = self.warnings.current().get(node)
        return self.nodes[node].alive and not (warning is not None and warning.cordoned)

    def rooms(self) -> dict[str, int]:
        """Ranks that could still move to each living node; none to a node with a warning."""
        return {node.name: 0 for node in self.alive()} | self._free(self.by_trust().trusted)

    def last_rooms(self) -> dict[str, int]:
        """Ranks that could move to each node with a warning that may take one where no other node has room."""
        return self._free(self.by_trust().last_resort)

    def _free(self, nodes: list[NodeMember]) -> dict[str, int]:
        taken = Counter(rank.node for rank in self.ranks)  # one look at the ranks for all nodes
        return {node.name: max(0, node.places - taken[node.name]) for node in nodes}

    def standbys(self) -> dict[str, int]:
        """Standbys of each living node that have a place there."""
        rooms = self.rooms()
        return {node.name: min(node.standbys, rooms[node.name]) for node in self.alive()}


def misfit(hello: LauncherHello, options: RunOptions, members: Members) -> str:
    """Why a launcher cannot be part of this job; empty when it can."""
    if hello.job != options.job:
        return f"this is job {options.job}, not {hello.job}"
    here, there = _spell_nodes(options), _spell_nodes(hello)
    if (here, options.nproc) != (there, hello.nproc):
        here = f"--nnodes {here} --nproc-per-node {options.nproc}"
        return f"the coordinator has {here}, this node {there} and {hello.nproc}"
    if options.on_loss is not LossPolicy.WAIT and not options.spare_nodes and _comes_back(hello, members):
        return ""
    return _place_taken(hello, members)


def _place_taken(hello: LauncherHello, members: Members) -> str:
    if members.full:
        return "the job has all its nodes"
    if any(node.name == hello.node for node in members.occupants):
        return f"a node named {hello.node} is here already; give each its --node-name"
    if any(node.hello.node_rank == hello.node_rank for node in members.occupants):
        return f"a node with --node-rank {hello.node_rank} is here already"
    return ""


def _spell_nodes(found: RunOptions | LauncherHello) -> str:
    return f"{found.nnodes}:{found.nnodes + found.spare_nodes}" if found.spare_nodes else f"{found.nnodes}"


def _comes_back(hello: LauncherHello, members: Members) -> bool:
    """Whether it is the launcher of a node that was lost, started again."""
    node = members.nodes.get(hello.node)
    return bool(members.ranks) and node is not None and not node.alive and node.hello.node_rank == hello.node_rank


def surplus_nodes(members: Members, heard_at: Mapping[str, float], heard_before: float) -> list[str]:
    """Lost nodes beyond the largest number of nodes, which may be forgotten: those that are silent for longest.

    A lost node counts as one that may follow another coordinator, until a node has come in its place.
    """
    surplus = len(members.nodes) - members.nnodes - members.spare_nodes
    if surplus <= 0:
        return []
    needed = {rank.node for rank in members.ranks}
    lost = [name for name, node in members.nodes.items() if not node.alive and name not in needed]
    silent = [name for name in lost if heard_at[name] < heard_before]
    return sorted(silent, key=lambda name: heard_at[name])[:surplus]
