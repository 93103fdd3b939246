"""From the inventories of all agents to what ``mainstay.recovery.durability`` wants to know. Pure.

What an inventory does not say is not there: a rank without a verified slot at home, or a node that did not answer,
makes the figure unknown, never good.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from mainstay.recovery.agent.messages import Inventory
from mainstay.recovery.checkpoint.listed_files import PartFile
from mainstay.recovery.durability import HeldSnapshots
from mainstay.recovery.memory.records import NO_EPOCH
from mainstay.recovery.placement import holders
from mainstay.recovery.protection_scheme import ProtectionScheme, SchemeKind

BEHIND: Final = 1
"""Steps that an extra copy may be behind its rank: each rank keeps the newest two."""


_Slots = Mapping[tuple[str, int], set[int]]
"""(node, rank) -> epochs of verified slots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLayout:
    """What the coordinator knows."""

    home: tuple[str, ...]
    """Rank -> node."""
    replicas: tuple[tuple[int, ...], ...]
    """Ranks with equal state, as their digests said."""
    scheme: ProtectionScheme
    groups: tuple[tuple[int, ...], ...]
    loss: Mapping[str, float]
    """Node -> probability of loss within the hour."""
    away: Mapping[int, int] = field(default_factory=dict)
    """Rank that takes no part -> a replica that does: what the one would hold, only the other does."""

    @property
    def serving(self) -> list[tuple[int, str]]:
        """Ranks that take part, with their nodes."""
        return [(rank, node) for rank, node in enumerate(self.home) if rank not in self.away]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotInventory:
    """What is kept now."""

    holding: HeldSnapshots | None
    """None: not known."""
    unknown: tuple[str, ...]
    """Why it is not."""
    newest: int | None
    """The newest epoch of which every rank has a verified slot at home or is at most a step ahead."""
    protected: int | None
    """The newest epoch that all groups protect whole."""
    on_disk: frozenset[int]
    """Epochs of which every rank has a part on disk."""
    common: frozenset[int] = frozenset()
    """Those that the disks of all nodes give together; none where one disk gives them alone."""
    reached: int = NO_EPOCH
    """Each rank has this one or a later one there; ``NO_EPOCH``: not so, or as for ``common``."""

    @property
    def disk(self) -> int | None:
        """The newest epoch of which every rank has a part on disk."""
        return max(self.on_disk, default=None)


def build_inventory(job: JobLayout, inventories: Mapping[str, Inventory]) -> SnapshotInventory:
    """Put together what the agents of the job's nodes say; their answers may be some steps apart."""
    slots = _slots(inventories)
    nodes = dict.fromkeys(node for _, node in job.serving)
    unknown = [f"the agent of node {node} does not answer" for node in nodes if node not in inventories]
    newest = dict[int, int]()
    for rank, node in job.serving:
        if epochs := slots.get((node, rank)):
            newest[rank] = max(epochs)
        elif node in inventories:
            unknown.append(f"rank {rank} has no verified snapshot yet")
    step = min(newest.values(), default=None)
    protected = _protected(job, inventories, slots)
    holding = None
    if not unknown:
        holding = HeldSnapshots(
            loss=job.loss,
            home=tuple(job.home[job.away.get(rank, rank)] for rank in range(len(job.home))),
            replicas=job.replicas,
            extra=_extra(job, slots, newest),
            scheme=job.scheme,
            groups=() if protected is None else job.groups,
        )
    held = _ranks_on_disk(inventories)
    common, reached = _common(job, held, inventories)
    return SnapshotInventory(
        holding=holding, unknown=tuple(unknown), newest=step, protected=protected, on_disk=_on_disk(job, held),
        common=common, reached=reached,
    )  # fmt: skip


def _slots(inventories: Mapping[str, Inventory]) -> _Slots:
    found = defaultdict[tuple[str, int], set[int]](set)
    for node, inventory in inventories.items():
        for slot in inventory.slots:
            if slot.verified:
                found[node, slot.rank].add(slot.epoch)
    return found


def _extra(job: JobLayout, slots: _Slots, newest: Mapping[int, int]) -> dict[int, frozenset[str]]:
    """Rank -> other nodes with a copy of a step that all ranks still have."""
    found = defaultdict[int, set[str]](set)
    for (node, rank), epochs in slots.items():
        elsewhere = rank in newest and node in job.loss and node != job.home[rank]
        if elsewhere and max(epochs) >= newest[rank] - BEHIND:
            found[rank].add(node)
    return {rank: frozenset(nodes) for rank, nodes in found.items()}


def _protected(job: JobLayout, inventories: Mapping[str, Inventory], slots: _Slots) -> int | None:
    groups = [group for group in job.groups if len(group) > 1]
    if not groups:
        return None
    own = set.intersection(*(slots.get((node, rank), set()) for rank, node in job.serving))
    of_groups = [_of_group(job, group, inventories, slots) for group in groups]
    return max(own.intersection(*of_groups), default=None)


def _of_group(job: JobLayout, group: Sequence[int], inventories: Mapping[str, Inventory], slots: _Slots) -> set[int]:
    """Epochs of which every member keeps its rows, or its copies."""
    sets: list[set[int]] = []
    copies = job.scheme.fitted(len(group)).kind is SchemeKind.COPIES
    for place, rank in enumerate(group):
        if copies:
            kept = holders(job.scheme, len(group), place)
            sets += [slots.get((job.home[group[p]], rank), set()) for p in kept]
        else:
            inventory = inventories.get(job.home[rank])
            rows = inventory.parity if inventory else ()
            sets.append({r.epoch for r in rows if r.complete and r.place == place and r.ranks == tuple(group)})
    return set.intersection(*sets)


def _ranks_on_disk(inventories: Mapping[str, Inventory]) -> Mapping[int, set[int]]:
    """Epoch -> ranks that have a part."""
    held = defaultdict[int, set[int]](set)
    last: tuple[PartFile, ...] = ()
    for inventory in inventories.values():
        if inventory.disk != last:  # nodes that share a directory see the same
            for part in inventory.disk:
                held[part.epoch].add(part.rank)
        last = inventory.disk
    return held


def _common(
    job: JobLayout, held: Mapping[int, set[int]], inventories: Mapping[str, Inventory]
) -> tuple[frozenset[int], int]:
    wanted = {rank for rank, _ in job.serving}
    common = frozenset(epoch for epoch, ranks in held.items() if wanted <= ranks)
    one = next(iter(inventories.values()), None)  # of nodes that share a directory, any sees all
    if one is None or wanted <= {part.rank for part in one.disk if part.epoch == max(common, default=NO_EPOCH)}:
        return frozenset(), NO_EPOCH
    newest = dict[int, int]()
    for epoch, ranks in sorted(held.items()):
        newest |= dict.fromkeys(ranks, epoch)
    return common, min(newest.get(rank, NO_EPOCH) for rank in wanted)


def _on_disk(job: JobLayout, held: Mapping[int, set[int]]) -> frozenset[int]:
    """A replica's part serves its equals."""
    single = {*range(len(job.home))}.difference(*job.replicas)
    sets = [*job.replicas, *((rank,) for rank in single)]
    return frozenset(epoch for epoch, ranks in held.items() if not any(ranks.isdisjoint(some) for some in sets))
