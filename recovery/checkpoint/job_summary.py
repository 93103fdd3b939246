"""The steps of a run beside what only the job knows: who holds parts, what steps survive, and the time of a loss."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from mainstay.recovery.checkpoint.listed_files import ParityFile, PartFile
from mainstay.recovery.checkpoint.summary import NAMED, USABLE, CheckpointLevel, CheckpointStep, StepState, link
from mainstay.recovery.protection_scheme import ProtectionScheme, SchemeKind

MOST_PARTS: Final = 200_000
"""Parts in the directories of nodes that are looked at: a fraction of a second."""


class CheckpointFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What only the job knows of its checkpoints."""

    begun_at: int = 0
    """The step that the run continued from; 0: none."""
    held: Mapping[str, Sequence[PartFile]] = {}
    """Node -> parts that its agent sees in its directory."""
    parity: Mapping[str, Sequence[ParityFile]] = {}
    """Node -> parity rows, likewise."""
    replicas: tuple[tuple[int, ...], ...] = ()
    """Ranks with equal state."""
    world_size: int = 0
    recovers_from_disk: bool = True
    """A recovery may use steps of this run; False: it writes quantized ones."""
    step_seconds: float = 0.0
    """0: not known."""
    read_rate: float | None = None
    """Bytes a second that the slowest node reads from its directory."""


class _Parts:
    """The parts of one step in the directories of nodes."""

    def __init__(self) -> None:
        self.nodes: defaultdict[int, set[str]] = defaultdict(set)
        """Rank -> nodes."""
        self.sizes: dict[tuple[int, int], int] = {}
        self.parity_bytes = 0
        self.groups: defaultdict[tuple[tuple[int, ...], int], set[tuple[int, str]]] = defaultdict(set)
        """(ranks of a parity group, members that may be lost) -> (rank, node) of rows."""

    def add_part(self, node: str, part: PartFile) -> None:
        self.nodes[part.rank].add(node)
        self.sizes[part.rank, part.generation] = part.nbytes

    def add_row(self, node: str, row: ParityFile) -> None:
        self.groups[row.ranks, row.parity].add((row.rank, node))
        self.parity_bytes += row.nbytes

    def fewest(self, job: CheckpointFacts) -> int:
        """Fewest nodes whose loss takes a rank's part, and those of its replicas; 0: a rank has none."""
        if not self.nodes:
            return 0
        twins = {rank: ranks for ranks in job.replicas for rank in ranks}
        held = [[self.nodes.get(r, set()) for r in twins.get(rank, (rank,))] for rank in range(job.world_size)]
        return min((len(set().union(*nodes)) for nodes in held), default=0)

    def least(self, job: CheckpointFacts) -> int:
        """The same, where what is lost is decoded from parity; a group counts if rows lie beside each of its parts."""
        fewest = self.fewest(job)
        home = {rank: min(nodes) for rank, nodes in self.nodes.items() if rank < job.world_size}
        whole = {g: t for (g, t), rows in self.groups.items() if {(r, home.get(r, "")) for r in g} <= rows}
        if not fewest or not whole or len(home) < job.world_size:
            return fewest
        homes = tuple(home[rank] for rank in range(job.world_size))
        return max(fewest, _least_loss(homes, tuple(job.replicas), tuple(whole), max(whole.values())))


@functools.lru_cache(maxsize=8)  # most steps lie alike
def _least_loss(
    home: tuple[str, ...], replicas: tuple[tuple[int, ...], ...], groups: tuple[tuple[int, ...], ...], tolerance: int
) -> int:
    from mainstay.recovery.durability import HeldSnapshots, least_loss  # noqa: PLC0415 - a service has no numpy

    scheme = ProtectionScheme(SchemeKind.RS, tolerance, 1, max(map(len, groups)))
    loss = dict.fromkeys(home, 0.0)
    return least_loss(HeldSnapshots(loss=loss, home=home, replicas=replicas, scheme=scheme, groups=groups))


def with_job(steps: Iterable[CheckpointStep], job: CheckpointFacts) -> tuple[CheckpointStep, ...]:
    """Relate steps (see ``link``), and add what the job knows: durability, and the times of a restore and of a loss."""
    parts, nodes, count = defaultdict[int, _Parts](_Parts), 0, 0
    for node, seen in job.held.items():
        if count > MOST_PARTS:  # of a shared directory that all see alike
            break
        nodes, count = nodes + 1, count + len(seen)
        for part in seen:
            parts[part.epoch].add_part(node, part)
        for row in job.parity.get(node, ()):
            parts[row.epoch].add_row(node, row)
    known = link([_on_nodes(step, parts[step.step], job) for step in steps], job.begun_at)
    shared = nodes > 1 and any(
        min(map(len, parts[step.step].nodes.values()), default=0) == nodes
        for step in known
        if step.state is StepState.COMPLETE
    )
    return tuple(_with_job(step, parts[step.step], job, shared=shared) for step in known)


def _on_nodes(step: CheckpointStep, parts: _Parts, job: CheckpointFacts) -> CheckpointStep:
    """A step that is not complete here is usable where the directories of all nodes together have every part."""
    if step.state is not StepState.INCOMPLETE or len(parts.nodes) <= step.ranks or not parts.fewest(job):
        return step
    if not job.recovers_from_disk:
        problem = "each node has the parts of its own ranks only, and no recovery uses steps of a quantized run"
        return msgspec.structs.replace(step, problem=problem)
    sizes, parity = parts.sizes.values(), parts.parity_bytes
    return msgspec.structs.replace(
        step, state=StepState.ON_NODES, problem="", ranks=len(parts.nodes), disk_bytes=sum(sizes) + parity,
        parity_bytes=parity, read_bytes=max(sizes),
    )  # fmt: skip


def _with_job(step: CheckpointStep, parts: _Parts, job: CheckpointFacts, *, shared: bool) -> CheckpointStep:
    nodes, usable = sorted(set().union(*parts.nodes.values())), step.state in USABLE
    local = CheckpointLevel.LOCAL in step.levels
    if usable and local and (shared or len(job.held) == 1):  # agents may not have seen the newest step yet
        nodes = sorted(job.held)
    is_near = local or parts.fewest(job) > 0
    return msgspec.structs.replace(
        step,
        nodes=tuple(nodes[:NAMED]),
        node_count=len(nodes),
        serves_recovery=usable and (0 < job.begun_at == step.step or (job.recovers_from_disk and is_near)),
        survives=_survives(step, parts, job, nodes, shared=shared) if usable else "",
        seconds_lost=round((step.step - (step.previous or 0)) * job.step_seconds, 3)
        if usable and job.step_seconds
        else None,
        restore_seconds=step.read_bytes / job.read_rate if local and step.read_bytes and job.read_rate else None,
    )


def _survives(step: CheckpointStep, parts: _Parts, job: CheckpointFacts, nodes: Sequence[str], *, shared: bool) -> str:
    if CheckpointLevel.UPLOAD in step.levels:
        return "any loss of nodes and of the local directory: it is uploaded"
    if shared:
        return "the loss of any nodes: they share the directory"
    if len(nodes) == 1:
        return f"not the loss of {nodes[0]}, if the directory is on a disk of this node"
    if least := parts.least(job):
        less = f"the loss of any {least - 1}" if least > 1 else "not the loss of any one"
        how = ", with parity on the disks" if least > parts.fewest(job) else ""
        return f"{less} of its {len(nodes)} nodes{how}"
    return ""
