"""The shape of a mesh: which rank is where. Pure, and free of torch, because the coordinator needs it too."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshShape:
    """How ranks are laid out: pipeline after pipeline, stage after stage, slice after slice.

    ``rank = (dp_index * pp + pp_index) * tp + tp_index`` where all pipelines have ``pp`` stages. Pipelines of unlike
    depth, as Oobleck (SOSP'23) has them, are those of ``depths``; make such a shape with ``of``.

    Raises:
        ValueError: ``depths`` do not fit the rest.
    """

    dp: int
    pp: int
    """Stages of each pipeline; of the deepest where they are unlike."""
    tp: int = 1
    depths: tuple[int, ...] = ()
    """Stages of each replica's pipeline where not all have ``pp``; empty: all have."""

    def __post_init__(self) -> None:
        if not self.depths:
            return
        if len(self.depths) != self.dp or min(self.depths) < 1 or max(self.depths) != self.pp:
            raise ValueError(f"stages {list(self.depths)} are not {self.dp} pipelines of at most {self.pp} stages")
        if len({*self.depths}) == 1:
            raise ValueError(f"stages {list(self.depths)} are all alike: that is dp={self.dp} pp={self.pp}")
        if self.tp != 1:
            raise ValueError(f"pipelines of unlike depth need tp=1, not tp={self.tp}")

    @classmethod
    def from_stages(cls, stages: Sequence[int], tp: int = 1) -> Self:
        """One pipeline for each number of ``stages``.

        Raises:
            ValueError: there is none, or one without a stage; or they are unlike, and ``tp`` is not 1.
        """
        if not stages or min(stages) < 1:
            raise ValueError(f"stages {list(stages)}: at least one pipeline, each of at least one stage")
        alike = len({*stages}) == 1
        return cls(dp=len(stages), pp=max(stages), tp=tp, depths=() if alike else tuple(stages))

    def __str__(self) -> str:
        stages = f"stages={','.join(map(str, self.depths))}" if self.depths else f"dp={self.dp} pp={self.pp}"
        return stages if self.tp == 1 else f"{stages} tp={self.tp}"

    @property
    def stages(self) -> tuple[int, ...]:
        """Of each replica's pipeline."""
        return self.depths or (self.pp,) * self.dp

    @property
    def world_size(self) -> int:
        return sum(self.depths) if self.depths else self.dp * self.pp * self.tp

    def rank_of(self, *, dp: int, pp: int, tp: int = 0) -> int:
        return sum(self.depths[:dp]) + pp if self.depths else (dp * self.pp + pp) * self.tp + tp

    def place(self, rank: int) -> tuple[int, int, int]:
        """``(dp, pp, tp)`` indices of ``rank``."""
        if self.depths:
            ends = list(accumulate(self.depths))
            dp = next(dp for dp, end in enumerate(ends) if rank < end)
            return dp, rank - ends[dp] + self.depths[dp], 0
        rest, tp = divmod(rank, self.tp)
        dp, pp = divmod(rest, self.pp)
        return dp, pp, tp

    def cut(self, rank: int) -> tuple[int, int, int]:
        """(stages of its pipeline, stage, slice): ranks with the same hold the same part of the model."""
        dp, pp, tp = self.place(rank)
        return self.stages[dp], pp, tp

    def dp_peers(self, rank: int) -> list[int]:
        """Ranks that hold the same parameters as ``rank``, itself included: those of pipelines cut alike."""
        depth, pp, tp = self.cut(rank)
        return [self.rank_of(dp=d, pp=pp, tp=tp) for d, stages in enumerate(self.stages) if stages == depth]

    def pp_peers(self, rank: int) -> list[int]:
        """Ranks of the same pipeline, first stage first."""
        dp, _, tp = self.place(rank)
        return [self.rank_of(dp=dp, pp=p, tp=tp) for p in range(self.stages[dp])]

    def tp_peers(self, rank: int) -> list[int]:
        dp, pp, _ = self.place(rank)
        return [self.rank_of(dp=dp, pp=pp, tp=t) for t in range(self.tp)]

    def models(self) -> list[list[list[int]]]:
        """The whole model, once for each depth: its parts in order, and of each the ranks that hold it."""
        firsts = {stages: self.rank_of(dp=dp, pp=0) for dp, stages in reversed([*enumerate(self.stages)])}
        return [
            [self.dp_peers(rank) for rank in range(first, first + stages * self.tp)]
            for stages, first in sorted(firsts.items(), reverse=True)
        ]

    def parts(self) -> list[list[int]]:
        """Ranks that hold the same parameters, part after part, of all depths."""
        return [peers for model in self.models() for peers in model]

    def covered(self, ranks: Collection[int]) -> bool:
        """Whether ``ranks`` hold the whole model between them, cut in one way or another."""
        return any(all(not set(peers).isdisjoint(ranks) for peers in model) for model in self.models())

    def newest_common(self, held: Mapping[int, set[int]], *, replicated: bool) -> int | None:
        """The newest epoch that every rank holds; of equal replicas, that one of each part of the model holds.

        Args:
            held: rank -> epochs of its snapshots.
            replicated: whether data-parallel replicas hold the same.
        """
        whole = _common([held.get(rank, set()) for rank in range(self.world_size)])
        if not replicated:
            return whole
        covered = [
            _common([set().union(*(held.get(peer, set()) for peer in peers)) for peers in model])
            for model in self.models()
        ]
        return max((epoch for epoch in (whole, *covered) if epoch is not None), default=None)


def _common(sets: list[set[int]]) -> int | None:
    return max(set.intersection(*sets), default=None)


@dataclass(frozen=True)
class GenerationRanks:
    """The ranks of one generation: numbered again, without gaps, in the order of their numbers in the whole job.

    Every method takes a new number. Torch knows no other.
    """

    shape: MeshShape
    """Of the whole job."""
    ranks: tuple[int, ...]
    """Numbers in the whole job, rising."""

    @classmethod
    def whole(cls, shape: MeshShape) -> GenerationRanks:
        return cls(shape, tuple(range(shape.world_size)))

    @property
    def size(self) -> int:
        return len(self.ranks)

    @cached_property
    def places(self) -> dict[int, int]:
        """Number in the whole job -> number here."""
        return {rank: place for place, rank in enumerate(self.ranks)}

    def dp_peers(self, place: int) -> list[int]:
        """Those that are there of the ranks that hold the same parameters, itself included."""
        return self._there(self.shape.dp_peers(self.ranks[place]))

    def pp_peers(self, place: int) -> list[int]:
        """Those that are there of its pipeline, first stage first."""
        return self._there(self.shape.pp_peers(self.ranks[place]))

    def tp_peers(self, place: int) -> list[int]:
        return self._there(self.shape.tp_peers(self.ranks[place]))

    def _there(self, ranks: list[int]) -> list[int]:
        return [self.places[rank] for rank in ranks if rank in self.places]
