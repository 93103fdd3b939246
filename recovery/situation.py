"""What is known at the moment of a failure: everything a plan depends on, as data. Nothing here decides anything.

A ``Situation`` is complete and checked: the planner never asks a clock, a socket or a default. ``Case`` is the same,
indexed for the strategies, with the failed ranks placed on nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One rank of the job. Ranks of equal (pp, tp) and different dp hold the same state."""

    rank: int
    dp: int
    pp: int
    node: str
    tp: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotHold:
    """A snapshot in an agent's memory."""

    node: str
    rank: int
    epoch: int
    verified: bool = True
    """Only a slot whose digest the agent has checked is worth anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityHold:
    """A member's parity rows in memory: any ``parity`` of ``ranks`` come back from the others' rows and slots."""

    node: str
    epoch: int
    ranks: tuple[int, ...]
    place: int = -1
    """Whose rows they are: an index of ``ranks``; -1: of a member whose slot is on the node."""
    parity: int = 1
    """Losses that the group outlives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskHold:
    """A rank's checkpoint on disk; ``node`` is None where every node can read it."""

    rank: int
    epoch: int
    node: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A job, what failed of it, and what is at hand.

    Raises:
        ValueError: a rank, node or number makes no sense; the message names it.
    """

    job: str
    generation: int
    """The generation that failed; the plan creates the next."""
    step: int
    """Last step known to be committed; an epoch is named after the step it follows."""
    step_seconds: float
    ranks: tuple[Place, ...]
    """In order of rank, from 0, without gaps."""
    state_bytes: tuple[int, ...]
    """Per rank: what a restore has to move."""
    failed_ranks: tuple[int, ...] = ()
    """Processes that are gone. Ranks of a lost node are gone too, named here or not."""
    lost_nodes: tuple[str, ...] = ()
    """Nodes whose memory is gone with them."""
    live: dict[int, int] = field(default_factory=dict)
    """Survivor -> epoch that its own tensors hold, whole; a survivor in the middle of an update is not here."""
    slots: tuple[SlotHold, ...] = ()
    parity: tuple[ParityHold, ...] = ()
    disk: tuple[DiskHold, ...] = ()
    standbys: dict[str, int] = field(default_factory=dict)
    """Node -> idle warm standbys."""
    cold: dict[str, int] = field(default_factory=dict)
    """Node -> processes that could be started there beyond its own ranks (a free GPU without a standby)."""
    replicated: bool = True
    """Data-parallel peers hold identical state. False for a job that shards it among them (ZeRO, FSDP)."""
    away: tuple[int, ...] = ()
    """Ranks that take no part in the next generation: nothing is asked of them; their slots still serve."""
    sharded: bool = False
    """Each data-parallel replica's slot holds its part of what all hold alike: to go back to a slot takes all of them,
    so no replica's slot replaces another's (``replicated`` is False then)."""
    costs: Costs = field(default_factory=Costs)

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
        _check_known("failed_ranks", self.failed_ranks, range(size))
        _check_known("live", self.live, range(size))
        _check_known("away", self.away, range(size))
        _check_known("slots", (slot.rank for slot in self.slots), range(size))
        _check_known("parity", (rank for row in self.parity for rank in row.ranks), range(size))
        _check_known("disk", (entry.rank for entry in self.disk), range(size))
        _check_known("lost_nodes", self.lost_nodes, self.nodes)
        if not self.step_seconds >= 0.0 or min(self.state_bytes) < 0:
            raise ValueError("step_seconds and state_bytes must not be negative")

    @property
    def nodes(self) -> frozenset[str]:
        """Every node that the job runs on or could run on."""
        return frozenset(place.node for place in self.ranks) | self.standbys.keys() | self.cold.keys()


def _check_known(what: str, values: Iterable[object], known: range | frozenset[str]) -> None:
    for value in values:
        if value not in known:
            raise ValueError(f"{what} names {value!r}, which the job does not have")


class Case:
    """A situation indexed: who is gone, who runs where next, and which epoch of which rank lies where."""

    def __init__(self, situation: Situation) -> None:
        self.situation = situation
        self.lost = frozenset(situation.lost_nodes)
        gone = {place.rank for place in situation.ranks if place.node in self.lost}
        away = frozenset(situation.away)
        self.failed: tuple[int, ...] = tuple(sorted(gone.union(situation.failed_ranks) - away))
        others = away.union(self.failed)
        self.survivors: tuple[int, ...] = tuple(r for r in range(len(situation.ranks)) if r not in others)
        self.newest = max([situation.step, *(situation.live.get(r, situation.step) for r in self.survivors)])
        self.slots: dict[int, dict[int, list[str]]] = {}
        for slot in situation.slots:
            if slot.verified and slot.node not in self.lost:
                self.slots.setdefault(slot.rank, {}).setdefault(slot.epoch, []).append(slot.node)
        self.rows: dict[tuple[int, ...], dict[int, list[ParityHold]]] = {}
        for row in situation.parity:
            if row.node not in self.lost:
                self.rows.setdefault(row.ranks, {}).setdefault(row.epoch, []).append(row)
        self.disk: dict[int, list[tuple[int, str | None]]] = {}
        for entry in situation.disk:
            if entry.node not in self.lost:
                self.disk.setdefault(entry.rank, []).append((entry.epoch, entry.node))
        self._roles: dict[tuple[int, int], list[int]] = {}
        for place in situation.ranks:
            self._roles.setdefault((place.pp, place.tp), []).append(place.rank)
        self.node = [place.node for place in situation.ranks]
        self.warm: set[int] = set()
        self.homeless: int | None = None
        """A failed rank that no node has room for; then nothing is feasible."""
        self._place()

    def peers(self, rank: int) -> list[int]:
        """Ranks of the same role, itself included."""
        place = self.situation.ranks[rank]
        return self._roles[place.pp, place.tp]

    def _place(self) -> None:
        """Give every failed rank a node. Ranks of lost nodes choose first: the others can start cold where they are."""
        standbys = {n: k for n, k in self.situation.standbys.items() if n not in self.lost and k > 0}
        cold = {n: k for n, k in self.situation.cold.items() if n not in self.lost and k > 0}
        for rank in (r for r in self.failed if self.node[r] in self.lost):
            room = standbys or cold
            if not room:
                self.homeless = rank
                return
            self.node[rank] = node = self._best_home(rank, room)
            if room is standbys:
                self.warm.add(rank)
            _take(room, node)
        for rank in self.failed:
            if rank not in self.warm and self.situation.ranks[rank].node == self.node[rank] in standbys:
                self.warm.add(rank)
                _take(standbys, self.node[rank])

    def _best_home(self, rank: int, room: dict[str, int]) -> str:
        """Away from one's own replicas first, so that the next node loss takes one copy; then where most is free."""

        def burden(node: str) -> tuple[int, int, str]:
            replicas = sum(self.node[peer] == node for peer in self.peers(rank) if peer != rank)
            return (replicas, -room[node], node)

        return min(room, key=burden)


def _take(room: dict[str, int], node: str) -> None:
    room[node] -= 1
    if not room[node]:
        del room[node]
