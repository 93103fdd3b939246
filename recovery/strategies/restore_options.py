"""What each rank could go back to, and what survivors share, worked out once for all strategies.

Most of thousands of ranks are survivors with the same epochs, so an index by epoch says which of them have it: the
choice of an epoch compares sets and looks at no rank.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

import msgspec

from mainstay.recovery.planner_input import FailureCase
from mainstay.recovery.recovery_plan import RankRestore, RestoreSource


class RestoreOption(msgspec.Struct, frozen=True, gc=False):
    """One way in which one rank can have one epoch."""

    source: RestoreSource
    from_rank: int | None = None
    from_nodes: tuple[str, ...] = ()

    def restore(self, rank: int, node: str) -> RankRestore:
        """The same as a part of a plan."""
        return RankRestore(
            rank=rank, node=node, source=self.source, from_rank=self.from_rank, from_nodes=self.from_nodes
        )


Offers = Mapping[int, RestoreOption]
"""Epoch -> offer, of one rank."""

LIVE, SLOT = RestoreOption(RestoreSource.LIVE), RestoreOption(RestoreSource.LOCAL_SLOT)
DISK = RestoreOption(RestoreSource.DISK)


def local_offers(case: FailureCase, rank: int) -> dict[int, RestoreOption]:
    """Verified slots of the rank on the node where it runs next."""
    node = case.node[rank]
    return {slot.epoch: SLOT for slot in case.slots[rank] if slot.node == node}


def disk_offers(case: FailureCase, rank: int) -> dict[int, RestoreOption]:
    """Checkpoints that the node where the rank runs next can read; of two copies the one that all can read."""
    return {
        held.epoch: DISK if held.node is None else RestoreOption(RestoreSource.DISK, from_nodes=(held.node,))
        for held in sorted(case.disk[rank], key=lambda held: held.node is None)
        if held.node in (None, case.node[rank])
    }


class SurvivorOptions:
    """Which survivors could go back to each epoch by what they have of their own."""

    def __init__(self, case: FailureCase, *, disk: bool) -> None:
        self._case = case
        self._together: dict[int, CommonEpoch] = {}
        self._ranks = frozenset(case.survivors)
        self.slots: defaultdict[int, set[int]] = defaultdict(set)
        """Epoch -> survivors with a verified slot on their node."""
        self.live: defaultdict[int, set[int]] = defaultdict(set)
        """Epoch -> survivors whose tensors hold it.

        In a job that saves in shards tensors count only with the slot beside them: replicas need this rank's part.
        """
        self.disk: defaultdict[int, dict[int, RestoreOption]] = defaultdict(dict)
        """Epoch -> survivor -> its checkpoint; see ``disk_offers``."""
        if disk:
            memory = survivor_options(case)
            self.slots, self.live = memory.slots, memory.live
            self._index_disk()
        else:
            self._index_memory()
        known = self.slots.keys() | self.live.keys() | self.disk.keys()
        self.common = {e for e in known if self._ranks <= self.slots[e] | self.live[e] | self.disk[e].keys()}
        """Epochs that every survivor has; without survivors, none."""

    def _index_memory(self) -> None:
        situation, ranks, node = self._case.situation, self._ranks, self._case.node
        for slot in situation.slots:
            if slot.node == node[slot.rank] and slot.verified and slot.rank in ranks:
                self.slots[slot.epoch].add(slot.rank)
        live = self._case.live
        for epoch in set(live.values()):
            self.live[epoch] = {rank for rank, held in live.items() if held == epoch}
            if situation.sharded:
                self.live[epoch] &= self.slots[epoch]

    def _index_disk(self) -> None:
        ranks, node = self._ranks, self._case.node
        for held in self._case.situation.disk:
            if held.rank not in ranks:
                continue
            if held.node is None:
                self.disk[held.epoch][held.rank] = DISK
            elif held.node == node[held.rank]:
                self.disk[held.epoch].setdefault(held.rank, RestoreOption(RestoreSource.DISK, from_nodes=(held.node,)))

    def offers(self, rank: int) -> Offers:
        """What one survivor has; its own tensors before a slot, and a slot before the disk."""
        disk = {epoch: options[rank] for epoch, options in self.disk.items() if rank in options}
        slots = {epoch: SLOT for epoch, ranks in self.slots.items() if rank in ranks}
        return disk | slots | {epoch: LIVE for epoch, ranks in self.live.items() if rank in ranks}

    def together(self, epoch: int) -> CommonEpoch:
        """All of them at one epoch."""
        if epoch not in self._together:
            self._together[epoch] = CommonEpoch(self._case, self, epoch)
        return self._together[epoch]


class CommonEpoch:
    """Every survivor at one epoch by what it has of its own, and the bytes that this makes nodes load and read."""

    def __init__(self, case: FailureCase, options: SurvivorOptions, epoch: int) -> None:
        node = case.node
        self.restores: list[RankRestore | None] = [None] * len(node)
        """By rank; None: failed, away, or without the epoch."""
        self.loaded, self.read = Counter[str](), Counter[str]()
        live = options.live[epoch]
        for rank in live:
            self.restores[rank] = RankRestore(rank=rank, node=node[rank], source=RestoreSource.LIVE)
        loaded = options.disk[epoch] | dict.fromkeys(options.slots[epoch], SLOT)
        for rank in loaded.keys() - live:
            self.restores[rank] = loaded[rank].restore(rank, node[rank])
            nbytes = case.situation.state_bytes[rank]
            self.loaded[node[rank]] += nbytes
            if loaded[rank].source is RestoreSource.DISK:
                self.read[node[rank]] += nbytes


def survivor_options(case: FailureCase, *, disk: bool = False) -> SurvivorOptions:
    """With checkpoints on disk or without."""
    if disk not in case.kept:
        case.kept[disk] = SurvivorOptions(case, disk=disk)
    kept: SurvivorOptions = case.kept[disk]
    return kept


class AllRankOptions:
    """The offers of failed ranks beside those of the survivors."""

    def __init__(self, case: FailureCase, failed: Mapping[int, Offers], *, disk: bool = False) -> None:
        self.case = case
        self.failed = failed
        self.survivors = survivor_options(case, disk=disk)

    def __getitem__(self, rank: int) -> Offers:
        return self.failed[rank] if rank in self.failed else self.survivors.offers(rank)

    def ranks(self) -> list[int]:
        """All of them, in order."""
        return sorted((*self.case.survivors, *self.failed))

    def common(self) -> set[int]:
        """Epochs that every rank offers."""
        everyone = [set(offers) for offers in self.failed.values()]
        if self.case.survivors:
            everyone.append(self.survivors.common)
        return set.intersection(*everyone) if everyone else set()
