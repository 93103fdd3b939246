"""What each rank could go back to, and what most of them share, worked out once for many losses.

A loss touches a few ranks. What the others have of their own does not depend on it: a survivor goes back to its own
tensors, its own slot where it runs, or a checkpoint, and whoever held something on a lost node is lost itself. So the
many are kept by kinds (ranks with the same epochs), and a plan costs what the few cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from recovery.plan import Restore, RestoreSource
from recovery.situation import Case


@dataclass(frozen=True, slots=True)
class Offer:
    """One way in which one rank can have one epoch."""

    source: RestoreSource
    from_rank: int | None = None
    from_nodes: tuple[str, ...] = ()

    def restore(self, rank: int, node: str) -> Restore:
        """The same as a part of a plan."""
        return Restore(rank=rank, node=node, source=self.source, from_rank=self.from_rank, from_nodes=self.from_nodes)


Offers = Mapping[int, Offer]
"""Epoch -> offer, of one rank."""

LIVE, SLOT = Offer(RestoreSource.LIVE), Offer(RestoreSource.LOCAL_SLOT)


def local_offers(case: Case, rank: int) -> dict[int, Offer]:
    """Verified slots of the rank on the node where it runs next."""
    node = case.node[rank]
    return {epoch: SLOT for epoch, at in case.slots(rank).items() if node in at}


def survivor_offers(case: Case, rank: int) -> dict[int, Offer]:
    """What a survivor has without help: its slots and, better, its own tensors.

    In a job that saves in shards tensors count only with the slot beside them: replicas need this rank's part.
    """
    live, slots = case.situation.live.get(rank), local_offers(case, rank)
    if case.situation.sharded and live not in slots:
        return slots
    return slots | ({} if live is None else {live: LIVE})


def disk_offers(case: Case, rank: int) -> dict[int, Offer]:
    """Checkpoints that the node where the rank runs next can read; of two copies the one that all can read."""
    return {
        epoch: Offer(RestoreSource.DISK, from_nodes=() if node is None else (node,))
        for epoch, node in sorted(case.disk(rank), key=lambda held: held[1] is None)
        if node in (None, case.node[rank])
    }


class Standing:
    """What every rank that takes part offers while it stands."""

    def __init__(self, case: Case, *, disk: bool) -> None:
        if disk:
            own = standing(case).offers
            self.offers: dict[int, Offers] = {rank: disk_offers(case, rank) | dict(own[rank]) for rank in own}
        else:
            self.offers = {rank: survivor_offers(case, rank) for rank in case.index.present}
        self._kinds: dict[frozenset[int], list[int]] = {}
        """Epochs -> the ranks that offer just these, in order."""
        for rank, offers in self.offers.items():
            self._kinds.setdefault(frozenset(offers), []).append(rank)
        self._together: dict[int, Together] = {}

    def kinds(self, gone: frozenset[int]) -> Iterator[tuple[int, Offers]]:
        """Of each kind the first rank that is not gone."""
        for ranks in self._kinds.values():
            first = next((rank for rank in ranks if rank not in gone), None)
            if first is not None:
                yield first, self.offers[first]

    def together(self, case: Case, epoch: int) -> Together:
        """All of them at one epoch."""
        if epoch not in self._together:
            self._together[epoch] = Together(case, self.offers, epoch)
        return self._together[epoch]


class Together:
    """Every rank at one epoch by what it has of its own, and the bytes that this makes nodes load and read."""

    def __init__(self, case: Case, offers: Mapping[int, Offers], epoch: int) -> None:
        self.restores: list[Restore | None] = [None] * len(case.index.node)
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


def standing(case: Case, *, disk: bool = False) -> Standing:
    """Of the case's situation, whatever is lost; with checkpoints on disk or without."""
    name = "offers, disk" if disk else "offers"
    kept: Standing | None = case.index.kept.get(name)
    if kept is None:
        intact = Case(case.situation, case.index, failed=(), lost=())
        kept = case.index.kept[name] = Standing(intact, disk=disk)
    return kept


class Everyone:
    """The offers of failed ranks beside those of the standing ones."""

    def __init__(self, case: Case, failed: Mapping[int, Offers], *, disk: bool = False) -> None:
        self.case = case
        self.failed = failed
        self.standing = standing(case, disk=disk)
        self._gone = frozenset(failed)

    def __getitem__(self, rank: int) -> Offers:
        return self.failed[rank] if rank in self.failed else self.standing.offers[rank]

    def kinds(self) -> list[tuple[int, Offers]]:
        """In order of rank: each failed one, and of the others the first with each choice of epochs."""
        return sorted((*self.standing.kinds(self._gone), *self.failed.items()), key=lambda kind: kind[0])

    def together(self, epoch: int) -> Together:
        """The standing ones at an epoch, as if nobody had failed."""
        return self.standing.together(self.case, epoch)
