"""What each rank could go back to, and what survivors share, worked out once for all strategies.

Most ranks are survivors with the same epochs, so the choice of an epoch looks at kinds of ranks instead of ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from mainstay.recovery.planner_input import FailureCase
from mainstay.recovery.recovery_plan import RankRestore, RestoreSource


@dataclass(frozen=True, slots=True)
class RestoreOption:
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


def local_offers(case: FailureCase, rank: int) -> dict[int, RestoreOption]:
    """Verified slots of the rank on the node where it runs next."""
    node = case.node[rank]
    return {epoch: SLOT for epoch, at in case.slots(rank).items() if node in at}


def survivor_offers(case: FailureCase, rank: int) -> dict[int, RestoreOption]:
    """What a survivor has without help: its slots and, better, its own tensors.

    In a job that saves in shards tensors count only with the slot beside them: replicas need this rank's part.
    """
    live, slots = case.situation.live.get(rank), local_offers(case, rank)
    if case.situation.sharded and live not in slots:
        return slots
    return slots | ({} if live is None else {live: LIVE})


def disk_offers(case: FailureCase, rank: int) -> dict[int, RestoreOption]:
    """Checkpoints that the node where the rank runs next can read; of two copies the one that all can read."""
    return {
        epoch: RestoreOption(RestoreSource.DISK, from_nodes=() if node is None else (node,))
        for epoch, node in sorted(case.disk(rank), key=lambda held: held[1] is None)
        if node in (None, case.node[rank])
    }


class SurvivorOptions:
    """What every survivor offers."""

    def __init__(self, case: FailureCase, *, disk: bool) -> None:
        if disk:
            own = survivor_options(case).offers
            self.offers: dict[int, Offers] = {rank: disk_offers(case, rank) | dict(own[rank]) for rank in own}
        else:
            self.offers = {rank: survivor_offers(case, rank) for rank in case.survivors}
        first: dict[frozenset[int], int] = {}
        for rank, offers in self.offers.items():
            first.setdefault(frozenset(offers), rank)
        self.kinds = [(rank, self.offers[rank]) for rank in first.values()]
        """Of the ranks that offer the same epochs, the first."""
        self._together: dict[int, CommonEpoch] = {}

    def together(self, case: FailureCase, epoch: int) -> CommonEpoch:
        """All of them at one epoch."""
        if epoch not in self._together:
            self._together[epoch] = CommonEpoch(case, self.offers, epoch)
        return self._together[epoch]


class CommonEpoch:
    """Every survivor at one epoch by what it has of its own, and the bytes that this makes nodes load and read."""

    def __init__(self, case: FailureCase, offers: Mapping[int, Offers], epoch: int) -> None:
        self.restores: list[RankRestore | None] = [None] * len(case.node)
        """By rank; None: failed, away, or without the epoch."""
        self.loaded, self.read = Counter[str](), Counter[str]()
        for rank, own in offers.items():
            if offer := own.get(epoch):
                node, nbytes = case.node[rank], case.situation.state_bytes[rank]
                self.restores[rank] = offer.restore(rank, node)
                if offer is not LIVE:
                    self.loaded[node] += nbytes
                if offer.source is RestoreSource.DISK:
                    self.read[node] += nbytes


def survivor_options(case: FailureCase, *, disk: bool = False) -> SurvivorOptions:
    """With checkpoints on disk or without."""
    name = "offers, disk" if disk else "offers"
    if name not in case.kept:
        case.kept[name] = SurvivorOptions(case, disk=disk)
    kept: SurvivorOptions = case.kept[name]
    return kept


class AllRankOptions:
    """The offers of failed ranks beside those of the survivors."""

    def __init__(self, case: FailureCase, failed: Mapping[int, Offers], *, disk: bool = False) -> None:
        self.case = case
        self.failed = failed
        self.survivors = survivor_options(case, disk=disk)

    def __getitem__(self, rank: int) -> Offers:
        return self.failed[rank] if rank in self.failed else self.survivors.offers[rank]

    def kinds(self) -> list[tuple[int, Offers]]:
        """In order of rank: each failed one, and of the others the first with each choice of epochs."""
        return sorted((*self.survivors.kinds, *self.failed.items()), key=lambda kind: kind[0])

    def together(self, epoch: int) -> CommonEpoch:
        """The survivors at an epoch."""
        return self.survivors.together(self.case, epoch)
