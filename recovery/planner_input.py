"""What is known at the moment of a failure: everything a plan depends on, as data. Nothing here decides anything.

A ``PlannerInput`` is complete and checked: the planner needs no clock, socket or default. ``FailureCase`` is the same,
indexed for the strategies, with the failed ranks placed on nodes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from itertools import accumulate
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineCosts:
    """Measured constants of this job's machines. Replace them with what the agents and past recoveries measured.

    The defaults come from measured four-rank recoveries on two CPU cores over loopback, where not said otherwise.

    Raises:
        ValueError: a constant is not positive; the message names it.
    """

    fence_s: float = 0.06
    """Kill, revoke the generation, peers raise: 40-65 ms after the kill."""
    spawn_warm_s: float = 0.1
    """A standby that has imported everything takes a rank: planned re-join in 80-130 ms."""
    spawn_cold_s: float = 3.1
    """Process start and ``import torch``."""
    regroup_s: float = 0.06
    """Process groups of the next generation over a long-lived store: 2-60 ms for three to four ranks."""
    copy_Bps: float = 2e9  # noqa: N815 - bytes per second, as the unit is written
    """Arena to tensors with its check: a copy ran at 7.7 GB/s and a digest at 15 GB/s alone; half, with all ranks."""
    net_Bps: float = 0.9e9  # noqa: N815
    """Between nodes: 1.07 GB in 1.20 s over 10 Gb/s (Parcae's cost table)."""
    xor_Bps: float = 5e9  # noqa: N815
    """XOR of two arrays in numpy: 5.4 GB/s on one core."""
    disk_Bps: float = 0.5e9  # noqa: N815
    """Sequential read of one SATA SSD, the slowest disk that a node is likely to have."""

    def __post_init__(self) -> None:
        for f in fields(self):
            if not getattr(self, f.name) > 0.0:
                raise ValueError(f"cost {f.name} must be positive, not {getattr(self, f.name)}")


class RankPlacement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One rank of the job. Ranks of equal (pp, tp) and different dp hold the same state."""

    rank: int
    dp: int
    pp: int
    node: str
    tp: int = 0


class HeldSlot(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A snapshot in an agent's memory."""

    node: str
    rank: int
    epoch: int
    verified: bool = True
    """Only a slot whose digest the agent has checked is worth anything."""


class HeldParity(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A member's parity rows in memory: any ``parity`` of ``ranks`` come back from the others' rows and slots."""

    node: str
    epoch: int
    ranks: tuple[int, ...]
    place: int = -1
    """Whose rows they are: an index of ``ranks``; -1: of a member whose slot is on the node."""
    parity: int = 1
    """Losses that the group outlives."""


class HeldCheckpoint(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A rank's checkpoint on disk; ``node`` is None where every node can read it."""

    rank: int
    epoch: int
    node: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerInput:
    """A job, what failed of it, and what is available.

    Raises:
        ValueError: a rank, node or number makes no sense; the message names it.
    """

    job: str
    """Name of the job."""
    generation: int
    """The generation that failed; the plan creates the next."""
    step: int
    """Last step known to be committed; an epoch is named after the step it follows."""
    step_seconds: float
    """Seconds of a training step."""
    ranks: tuple[RankPlacement, ...]
    """In order of rank, from 0, without gaps."""
    state_bytes: tuple[int, ...]
    """Per rank: what a restore has to move."""
    failed_ranks: tuple[int, ...] = ()
    """Processes that are gone. Ranks of a lost node are gone too, named here or not."""
    lost_nodes: tuple[str, ...] = ()
    """Nodes whose memory is gone with them."""
    live: dict[int, int] = field(default_factory=dict)
    """Survivor -> epoch that its own tensors hold, whole; a survivor in the middle of an update is not here."""
    slots: tuple[HeldSlot, ...] = ()
    """Snapshots in the memory of nodes."""
    parity: tuple[HeldParity, ...] = ()
    """Parity rows in the memory of nodes."""
    disk: tuple[HeldCheckpoint, ...] = ()
    """Checkpoints on disk."""
    standbys: dict[str, int] = field(default_factory=dict)
    """Node -> idle warm standbys."""
    cold: dict[str, int] = field(default_factory=dict)
    """Node -> processes that could be started there beyond its own ranks (a free GPU without a standby)."""
    last_resort: dict[str, int] = field(default_factory=dict)
    """Living node that is not trusted -> ranks that it has room for: it takes one where no other node can."""
    cordoned: tuple[str, ...] = ()
    """Living nodes that take no rank at all; their memory still serves."""
    replicated: bool = True
    """Data-parallel peers hold identical state. False for a job that shards it among them (ZeRO, FSDP)."""
    away: tuple[int, ...] = ()
    """Ranks that take no part in the next generation: nothing is asked of them; their slots still serve."""
    sharded: bool = False
    """Each data-parallel replica's slot holds its part of what all hold alike: to go back to a slot takes all of them,
    so no replica's slot replaces another's (``replicated`` is False then)."""
    costs: MachineCosts = field(default_factory=MachineCosts)
    """Measured constants of the machines."""

    def __post_init__(self) -> None:
        size = len(self.ranks)
        if not size:
            raise ValueError("a job needs at least one rank")
        wrong = next((i for i, place in enumerate(self.ranks) if place.rank != i), None)
        if wrong is not None:
            raise ValueError(
                f"ranks[{wrong}] is rank {self.ranks[wrong].rank}: list ranks in order from 0 without gaps"
            )
        if len(self.state_bytes) != size:
            raise ValueError(f"state_bytes has {len(self.state_bytes)} entries for {size} ranks")
        known = frozenset(range(size))
        _check_known("failed_ranks", self.failed_ranks, known)
        _check_known("live", self.live, known)
        _check_known("away", self.away, known)
        _check_known("slots", [slot.rank for slot in self.slots], known)
        _check_known("parity", [rank for row in self.parity for rank in row.ranks], known)
        _check_known("disk", [entry.rank for entry in self.disk], known)
        _check_known("lost_nodes", self.lost_nodes, self.nodes if self.lost_nodes else frozenset())
        if not self.step_seconds >= 0.0 or min(self.state_bytes) < 0:
            raise ValueError("step_seconds and state_bytes must not be negative")

    @property
    def nodes(self) -> frozenset[str]:
        """Every node that the job runs on or could run on."""
        return frozenset(place.node for place in self.ranks) | self.standbys.keys() | self.cold.keys()


def _check_known(what: str, values: Iterable[object], known: frozenset[object]) -> None:
    if not known.issuperset(values):
        unknown = next(value for value in values if value not in known)
        raise ValueError(f"{what} names {unknown!r}, which the job does not have")


_Held = TypeVar("_Held", HeldSlot, HeldCheckpoint)


class _ByRank(Generic[_Held]):
    """What is held of each rank: one sorted list. A list for each of thousands of ranks would take twice the time."""

    def __init__(self, held: Iterable[_Held]) -> None:
        self._held: list[_Held] = sorted(held, key=attrgetter("rank"))
        self._counts = Counter([each.rank for each in self._held])
        self._first = dict(zip(self._counts, accumulate(self._counts.values(), initial=0), strict=False))

    def __getitem__(self, rank: int) -> list[_Held]:
        first = self._first.get(rank, 0)
        return self._held[first : first + self._counts[rank]]


class FailureCase:
    """A situation, indexed by rank: who is gone, who runs where next, and which epoch of which rank lies where."""

    def __init__(self, situation: PlannerInput) -> None:
        self.situation = situation
        self.lost = frozenset(situation.lost_nodes)
        self.closed = self.lost.union(situation.cordoned)
        """Nodes on which no rank can run."""
        away = frozenset(situation.away)
        gone = frozenset(situation.failed_ranks)
        if self.lost:
            gone |= {place.rank for place in situation.ranks if place.node in self.lost}
        self.failed: tuple[int, ...] = tuple(sorted(gone - away))
        absent = gone | away
        self.survivors = tuple([rank for rank in range(len(situation.ranks)) if rank not in absent])
        self._roles: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        self._homes: dict[tuple[int, int], Counter[str]] = {}
        self._copies: dict[tuple[int, int, int], dict[int, dict[str, list[int]]]] = {}
        self.slots = _ByRank(slot for slot in situation.slots if slot.verified and slot.node not in self.lost)
        """Verified slots of each rank on living nodes."""
        self.disk = _ByRank(held for held in situation.disk if held.node not in self.lost)
        """Checkpoints of each rank that no lost node keeps."""
        living = [row for row in situation.parity if row.node not in self.lost]
        self.has_parity = bool(living)
        """Whether a living node keeps any."""
        self._rows: dict[int, dict[tuple[int, ...], dict[int, list[HeldParity]]]] = {}
        wanted = frozenset(self.failed)
        for row in living:
            for rank in wanted.intersection(row.ranks):
                self._rows.setdefault(rank, {}).setdefault(row.ranks, {}).setdefault(row.epoch, []).append(row)
        self.live = {rank: epoch for rank, epoch in situation.live.items() if rank not in absent}
        """Survivor -> epoch that its own tensors hold."""
        self.newest = max((situation.step, *self.live.values()))
        self.node = [place.node for place in situation.ranks]
        self.warm: set[int] = set()
        self.unplaced: int | None = None
        """A failed rank that no node has room for; then nothing is feasible."""
        self._place()
        self.kept: dict[bool, Any] = {}
        """What strategies work out of it once, with checkpoints on disk (True) and without."""

    def peers(self, rank: int) -> list[int]:
        """Ranks of the same role, itself included."""
        place = self.situation.ranks[rank]
        if not self._roles:
            for each in self.situation.ranks:
                self._roles[each.pp, each.tp].append(each.rank)
        return self._roles[place.pp, place.tp]

    def copies(self, rank: int) -> dict[int, dict[str, list[int]]]:
        """Epoch -> living node -> ranks whose verified slots there hold the rank's state, lowest first.

        The node of the lowest rank comes first. Without replicas a rank's state is in its own slots alone.
        """
        place = self.situation.ranks[rank]
        role = (place.pp, place.tp, -1 if self.situation.replicated else rank)
        if role not in self._copies:
            found = self._copies[role] = {}
            for peer in self.peers(rank) if self.situation.replicated else [rank]:
                for slot in sorted(self.slots[peer], key=attrgetter("node")):
                    found.setdefault(slot.epoch, {}).setdefault(slot.node, []).append(peer)
        return self._copies[role]

    def rows(self, rank: int) -> dict[tuple[int, ...], dict[int, list[HeldParity]]]:
        """Group of a failed rank -> epoch -> its parity rows on living nodes."""
        return self._rows.get(rank, {})

    def _place(self) -> None:
        """Give every failed rank a node. Ranks of lost nodes choose first: the others can start cold where they are.

        Those of nodes that are not trusted come next, and stay if there is no room on a node that is.
        """
        last = self.situation.last_resort
        standbys, cold, others = (self._free(rooms) for rooms in (self.situation.standbys, self.situation.cold, last))
        leaving = self._place_whole_nodes([r for r in self.failed if self.node[r] in self.closed], standbys)
        for rank in (*leaving, *(r for r in self.failed if self.node[r] in last)):
            room = standbys or cold
            if not room and self.node[rank] in last:
                continue
            room = room or others
            if not room:
                self.unplaced = rank
                return
            node = self._best_home(rank, room)
            homes = self._homes_of(rank)
            homes[self.node[rank]] -= 1
            homes[node] += 1
            self.node[rank] = node
            if room is standbys:
                self.warm.add(rank)
            _take(room, node)
        for rank in self.failed:
            if rank not in self.warm and self.situation.ranks[rank].node == self.node[rank] in standbys:
                self.warm.add(rank)
                _take(standbys, self.node[rank])

    def _place_whole_nodes(self, leaving: list[int], standbys: dict[str, int]) -> list[int]:
        """Let ranks of a node stay together on a node without ranks that has standbys for all; the ranks left over."""
        used = {place.node for place in self.situation.ranks} if leaving else set()
        idle = {node: count for node, count in standbys.items() if node not in used}
        homes: dict[str, list[int]] = {}
        for rank in leaving if idle else ():
            homes.setdefault(self.node[rank], []).append(rank)
        for ranks in homes.values():
            node = min(idle, key=lambda name: (-idle[name], name), default="")
            if idle.get(node, 0) < len(ranks):
                continue
            del idle[node]
            for rank in ranks:
                self.node[rank] = node
                self.warm.add(rank)
                _take(standbys, node)
        return [rank for rank in leaving if rank not in self.warm]

    def _free(self, rooms: Mapping[str, int]) -> dict[str, int]:
        return {node: count for node, count in rooms.items() if node not in self.closed and count > 0}

    def _best_home(self, rank: int, room: dict[str, int]) -> str:
        """Away from one's own replicas first, so that the next node loss takes one copy; then where most is free."""
        replicas, here = self._homes_of(rank), self.node[rank]
        return min(room, key=lambda node: (replicas[node] - (node == here), -room[node], node))

    def _homes_of(self, rank: int) -> Counter[str]:
        """Node -> ranks of the same role on it: kept, because thousands of lost ranks ask."""
        place = self.situation.ranks[rank]
        role = place.pp, place.tp
        if role not in self._homes:
            self._homes[role] = Counter(self.node[peer] for peer in self.peers(rank))
        return self._homes[role]


def _take(room: dict[str, int], node: str) -> None:
    room[node] -= 1
    if not room[node]:
        del room[node]
