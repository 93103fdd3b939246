"""The shape of a mesh: which rank is where. Pure, and free of torch, because the coordinator needs it too."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How ranks are laid out: ``rank = (dp_index * pp + pp_index) * tp + tp_index``."""

    dp: int
    pp: int
    tp: int = 1

    @property
    def world_size(self) -> int:
        return self.dp * self.pp * self.tp

    def rank_of(self, *, dp: int, pp: int, tp: int = 0) -> int:
        return (dp * self.pp + pp) * self.tp + tp

    def place(self, rank: int) -> tuple[int, int, int]:
        """``(dp, pp, tp)`` indices of ``rank``."""
        rest, tp = divmod(rank, self.tp)
        dp, pp = divmod(rest, self.pp)
        return dp, pp, tp

    def dp_peers(self, rank: int) -> list[int]:
        """Ranks that hold the same parameters as ``rank``, itself included."""
        _, pp, tp = self.place(rank)
        return [self.rank_of(dp=d, pp=pp, tp=tp) for d in range(self.dp)]

    def pp_peers(self, rank: int) -> list[int]:
        """Ranks of the same pipeline, first stage first."""
        dp, _, tp = self.place(rank)
        return [self.rank_of(dp=dp, pp=p, tp=tp) for p in range(self.pp)]

    def tp_peers(self, rank: int) -> list[int]:
        dp, pp, _ = self.place(rank)
        return [self.rank_of(dp=dp, pp=pp, tp=t) for t in range(self.tp)]
