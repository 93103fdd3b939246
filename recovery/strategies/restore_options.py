"""What each rank could go back to, and what most of them share, worked out once for many losses.

A loss touches a few ranks. What the others have of their own does not depend on it: a survivor goes back to its own
tensors, its own slot where it runs, or a checkpoint, and whoever held something on a lost node is lost itself. So the
many are kept by kinds (ranks with the same epochs), and a plan costs what the few cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
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
    """What every rank that takes part offers while it stands."""

    def __init__(self, case: FailureCase, *, disk: bool) -> None:
        if disk:
            own = survivor_options(case).offers
            self.offers: dict[int, Offers] = {rank: disk_offers(case, rank) | dict(own[rank]) for rank in own}
        else:
            self.offers = {rank: survivor_offers(case, rank) for rank in case.index.present}
        self._kinds: dict[frozenset[int], list[int]] = {}
        """Epochs -> the ranks that offer just these, in order."""
        for rank, offers in self.offers.items():
            self._kinds.setdefault(frozenset(offers), []).append(rank)
        self._together: dict[int, CommonEpoch] = {}

    def kinds(self, gone: frozenset[int]) -> Iterator[tuple[int, Offers]]:
        """Of each kind the first rank that is not gone."""
        for ranks in self._kinds.values():
            first = next((rank for rank in ranks if rank not in gone), None)
            if first is not None:
                yield first, self.offers[first]

    def together(self, case: FailureCase, epoch: int) -> CommonEpoch:
        """All of them at one epoch."""
        if epoch not in self._together:
            self._together[epoch] = CommonEpoch(case, self.offers, epoch)
        return self._together[epoch]


class CommonEpoch:
    """Every rank at one epoch by what it has of its own, and the bytes that this makes nodes load and read."""

    def __init__(self, case: FailureCase, offers: Mapping[int, Offers], epoch: int) -> None:
        self.restores: list[RankRestore | None] = [None] * len(case.index.node)
        """By rank; None: away, or without the epoch."""
        self.loaded, self.read = Counter[str](), Counter[str]()
        for rank, own in offers.items():
            if offer := own.get(epoch):
                node, nbytes = case.index.node[rank], case.situation.state_bytes[rank]
                self.restores[rank] = offer.restore(rank, node)
                if offer is not LIVE:
                    self.loaded[node] += nbytes
                if offer.source is RestoreSource.DISK:
                    self.read[node] += nbytes


def survivor_options(case: FailureCase, *, disk: bool = False) -> SurvivorOptions:
    """Of the case's planner input, for any loss; with checkpoints on disk or without."""
    name = "offers, disk" if disk else "offers"
    kept: SurvivorOptions | None = case.index.kept.get(name)
    if kept is None:
        intact = FailureCase(case.situation, case.index, failed=(), lost=())
        kept = case.index.kept[name] = SurvivorOptions(intact, disk=disk)
    return kept


class AllRankOptions:
    """The offers of failed ranks beside those of the survivors."""

    def __init__(self, case: FailureCase, failed: Mapping[int, Offers], *, disk: bool = False) -> None:
        self.case = case
        self.failed = failed
        self.survivors = survivor_options(case, disk=disk)
        self._gone = frozenset(failed)

    def __getitem__(self, rank: int) -> Offers:
        return self.failed[rank] if rank in self.failed else self.survivors.offers[rank]

    def kinds(self) -> list[tuple[int, Offers]]:
        """In order of rank: each failed one, and of the others the first with each choice of epochs."""
        return sorted((*self.survivors.kinds(self._gone), *self.failed.items()), key=lambda kind: kind[0])

    def together(self, epoch: int) -> CommonEpoch:
        """The survivors at an epoch, as if no rank had failed."""
        return self.survivors.together(self.case, epoch)
