"""From which nodes' disks a rank can have its part of a step, where each node has a disk of its own. Pure.

See decision 75.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from mainstay.recovery.agent.messages import Group, GroupMember
from mainstay.recovery.agent.parity import Geometry
from mainstay.recovery.checkpoint.listed_files import ParityFile, PartFile
from mainstay.recovery.checkpoint.manifest import Manifest, PartEntry, RunInfo, holds
from mainstay.recovery.membership.members import Members, NodeMember, RankMember
from mainstay.recovery.mesh_shape import MeshShape
from mainstay.recovery.planner_input import HeldCheckpoint
from mainstay.recovery.protocol.worker_messages import RestoreOrder
from mainstay.recovery.recovery_plan import RestoreSource


class NodeFiles(NamedTuple):
    """What the directory of one node shows of a run."""

    node: NodeMember
    parts: Iterable[PartFile]
    parity: Iterable[ParityFile]


class CheckpointHolders:
    """What the disks of ``nodes`` give together."""

    def __init__(self, disks: Iterable[NodeFiles]) -> None:
        self.epochs: set[int] = set()
        self._nodes: dict[str, NodeMember] = {}
        self._parts: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
        """(rank, epoch) -> nodes."""
        self._rows: defaultdict[_Group, dict[int, str]] = defaultdict(dict)
        """Place -> node."""
        self._groups: defaultdict[tuple[int, int], set[_Group]] = defaultdict(set)
        """(rank, epoch) -> groups."""
        for node, parts, parity in disks:
            self._nodes[node.name] = node
            for part in parts:
                self._parts[part.rank, part.epoch].append(node.name)
                self.epochs.add(part.epoch)
            for file in parity:
                group = _Group(file.epoch, file.ranks, file.parity)
                self._rows[group][file.ranks.index(file.rank)] = node.name
                for rank in file.ranks:
                    self._groups[rank, file.epoch].add(group)

    def has(self, rank: int, epoch: int, node: str) -> bool:
        """Whether the disk of ``node`` has the part of ``rank``."""
        return node in self._parts.get((rank, epoch), ())

    def find(self, rank: int, epoch: int, node: str) -> Group:
        """From where ``node`` can have the part of ``rank`` if its own disk does not have it; empty: from nowhere."""
        there = [name for name in self._parts.get((rank, epoch), ()) if name != node]
        if there:
            return (self._member(there[0], rank),)
        for group in self._groups.get((rank, epoch), ()):
            rows, parts = self._rows[group], [self._parts.get((one, epoch), [""]) for one in group.ranks]
            # Rows lie beside the part of their member.
            homes = [rows.get(place) or nodes[0] for place, nodes in enumerate(parts)]
            held = {place for place, nodes in enumerate(parts) if homes[place] and homes[place] in nodes}
            lost = group.ranks.index(rank)
            if Geometry(len(homes), group.parity).covers(lost, held, rows):
                homes[lost] = ""  # its rows never cover its own part
                return tuple(self._member(home, one) for home, one in zip(homes, group.ranks, strict=True))
        return ()

    def from_other_nodes(self, ranks: Iterable[RankMember]) -> Iterator[HeldCheckpoint]:
        """What ranks can have although the disk of their node does not have it."""
        for rank in ranks if self.epochs else ():
            for epoch in self.epochs:
                if not self.has(rank.number, epoch, rank.node) and self.find(rank.number, epoch, rank.node):
                    yield HeldCheckpoint(rank=rank.number, epoch=epoch, node=rank.node)

    def _member(self, node: str, rank: int) -> GroupMember:
        return GroupMember(node=node, endpoint=self._nodes[node].endpoint if node else "", rank=rank)


class _Group(NamedTuple):
    """Of which there are rows."""

    epoch: int
    ranks: tuple[int, ...]
    parity: int
    """Rows a codeword."""


class StepOnNodes:
    """A step of an earlier run that the disks of the nodes give together, while no directory holds all of it."""

    def __init__(self, info: RunInfo, epoch: int, nodes: Collection[NodeMember]) -> None:
        self.info, self._nodes, self._disks = info, tuple(nodes), _disks_of(nodes, info)
        ranks = {rank for rank in range(info.shape.world_size) if self._disks.find(rank, epoch, "")}
        self.missing = sorted({*range(info.shape.world_size)}.difference(ranks, info.away or ()))
        """Ranks of which too little is there."""
        self.enough = not self.missing or (info.replicated is True and info.shape.covered(ranks))
        self.manifest = Manifest(
            run=info.run, job=info.job, epoch=epoch, dp=info.dp, pp=info.pp, tp=info.tp, depths=info.depths,
            replicated=info.replicated is True, time=0.0,
            parts=tuple(PartEntry(rank=rank, generation=0, nbytes=0, check="") for rank in sorted(ranks)),
        )  # fmt: skip
        """As a directory with all of it would have it."""
        self.age = info.run, epoch

    def part_of(self, rank: int, members: Members) -> tuple[int, Group] | None:
        """Whose part ``rank`` takes, and ``LoadDisk.holders`` of it; None: living nodes have too little.

        A replica's only where a disk has it: what is decoded is the rank's own.
        """
        if self._nodes != (nodes := tuple(members.alive())):
            self._nodes, self._disks = nodes, _disks_of(nodes, self.info)
        node, epoch = members.ranks[rank].node, self.manifest.epoch
        for peer in (rank, *(self.info.shape.dp_peers(rank) if self.manifest.replicated else ())):
            holders = self._disks.find(peer, epoch, node)
            holders = holders if peer == rank or len(holders) == 1 else ()
            if holders or self._disks.has(peer, epoch, node):
                return peer, holders
        return None

    def order(self, rank: int, members: Members, directory: Path) -> RestoreOrder:
        """How ``rank`` restores it; the agent says what is missing."""
        of, holders = self.part_of(rank, members) or (rank, ())
        return RestoreOrder(
            epoch=self.manifest.epoch, source=RestoreSource.DISK, from_rank=of, directory=str(directory),
            run=self.info.run, holders=holders,
        )  # fmt: skip

    def unlike(self, shape: MeshShape, directory: Path) -> str:
        """Why a job of ``shape`` cannot continue from it, and what to do; empty: it has the same.

        ``directory`` is that of the checkpoints of one node.
        """
        if shape == self.manifest.shape:
            return ""
        return (
            f"step {self.manifest.epoch} of run {self.info.run} is in parts on the disks of the nodes, for "
            f"{self.manifest.shape}, and this job has {shape}{self.by_hand(directory)}"
        )

    def by_hand(self, directory: Path) -> str:
        """How a job that cuts its state otherwise can take it; appended to why it cannot as it is."""
        run = self.info.run
        return (
            "; a job that cuts its state otherwise needs the step in a directory ALL that all nodes share: "
            f"'cp -r {directory / run} ALL' on each node, once 'mainstay checkpoint rebuild ALL --run {run} --step "
            f"{self.manifest.epoch}', then start it with '--checkpoint-dir ALL --resume {run}'"
        )


def _disks_of(nodes: Iterable[NodeMember], info: RunInfo) -> CheckpointHolders:
    """As the launchers listed them when they began."""
    return CheckpointHolders(
        NodeFiles(node, [p for p in run.parts if holds(info.returns, p.epoch, p.generation)], run.parity)
        for node in nodes
        for run in node.hello.runs
        if run.info.run == info.run
    )


def newest_on_nodes(nodes: Collection[NodeMember], wanted: str | None) -> StepOnNodes | str:
    """The newest step of earlier runs that the disks of ``nodes`` give together; or why there is none.

    Args:
        nodes: all of the job.
        wanted: the id of a run; None: any.
    """
    listed = [run.info for node in nodes for run in node.hello.runs if wanted in {None, run.info.run}]
    infos, problem = {info.run: info for info in sorted(listed, key=lambda info: info.generation)}, ""
    for _, info in sorted(infos.items(), reverse=True):
        for epoch in sorted(_disks_of(nodes, info).epochs, reverse=True):
            step = StepOnNodes(info, epoch, nodes)
            if step.enough:
                return step
            problem = (
                problem or f"step {epoch} of run {info.run} lacks ranks {step.missing[:8]}, and no parity has them"
            )
    return problem or "the disks of the nodes have no step together either"
